// These are the words of lab/hopper/mbarrier.cuh on the CPU. An Mbarrier's 8 bytes of shared memory
// name its state, which barriers.hpp holds; a thread that waits does not run until the phase ends.
#pragma once

namespace lab::host {

LAB_EXPORT void mbarrier_init(Mbarrier& b, int arrivals, Where where);
LAB_EXPORT void fence_mbarrier_init();
LAB_EXPORT void mbarrier_arrive(Mbarrier& b, Word word, int bytes, Where where);
LAB_EXPORT void mbarrier_arrive_copied(Mbarrier& b, Where where);
LAB_EXPORT void mbarrier_wait(Mbarrier& b, int parity, Where where);
LAB_EXPORT void named_sync(int id, int threads, Where where);
LAB_EXPORT void named_arrive(int id, int threads, Where where);
LAB_EXPORT void setmaxnreg_inc(int n, Where where);
LAB_EXPORT void setmaxnreg_dec(int n, Where where);
LAB_EXPORT void act_warp_uniform(Warp& warp);

}  // namespace lab::host

namespace lab {

LAB_WORD void mbarrier_init(Mbarrier& b, int arrivals, LAB_HERE) {
  host::mbarrier_init(b, arrivals, here);
}
LAB_WORD void fence_mbarrier_init() { host::fence_mbarrier_init(); }
LAB_WORD void mbarrier_arrive(Mbarrier& b, LAB_HERE) {
  host::mbarrier_arrive(b, host::Word::mbarrier_arrive, 0, here);
}
LAB_WORD void mbarrier_arrive_expect_tx(Mbarrier& b, int bytes, LAB_HERE) {
  host::mbarrier_arrive(b, host::Word::mbarrier_arrive_expect_tx, bytes, here);
}
LAB_WORD void mbarrier_arrive_copied(Mbarrier& b, LAB_HERE) {
  host::mbarrier_arrive_copied(b, here);
}
LAB_WORD void mbarrier_wait(Mbarrier& b, int parity, LAB_HERE) {
  host::mbarrier_wait(b, parity, here);
}
LAB_WORD void named_sync(int id, int threads, LAB_HERE) { host::named_sync(id, threads, here); }
LAB_WORD void named_arrive(int id, int threads, LAB_HERE) { host::named_arrive(id, threads, here); }
template <int N> LAB_WORD void setmaxnreg_inc(LAB_HERE) {
  static_assert(N >= 24 && N <= 240 && N % 8 == 0);
  host::setmaxnreg_inc(N, here);
}
template <int N> LAB_WORD void setmaxnreg_dec(LAB_HERE) {
  static_assert(N >= 24 && N <= 240 && N % 8 == 0);
  host::setmaxnreg_dec(N, here);
}
// Here it is an error if the lanes' values differ.
LAB_WORD int warp_uniform(int v, LAB_HERE) {
  return static_cast<int>(host::exchange(host::Word::warp_uniform, here, static_cast<u64>(v), 0,
                                         host::act_warp_uniform));
}

}  // namespace lab
