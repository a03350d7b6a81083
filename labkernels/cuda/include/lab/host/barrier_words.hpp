// The CPU's meaning of lab/barriers.cuh. A Barrier's 8 bytes of shared memory name its state, which
// barriers.hpp holds; a thread that waits is not run until the phase ends.
#pragma once

namespace lab::host {

LAB_EXPORT void barrier_init(Barrier& b, int arrivals, Where where);
LAB_EXPORT void fence_barrier_init();
LAB_EXPORT void barrier_arrive(Barrier& b, Word word, int bytes, Where where);
LAB_EXPORT void barrier_wait(Barrier& b, int parity, Where where);
LAB_EXPORT void named_sync(int id, int threads, Where where);
LAB_EXPORT void named_arrive(int id, int threads, Where where);
LAB_EXPORT void raise_registers(int n, Where where);
LAB_EXPORT void lower_registers(int n, Where where);
LAB_EXPORT void act_warp_uniform(Warp& warp);

}  // namespace lab::host

namespace lab {

LAB_WORD void barrier_init(Barrier& b, int arrivals, LAB_HERE) {
  host::barrier_init(b, arrivals, here);
}
LAB_WORD void fence_barrier_init() { host::fence_barrier_init(); }
LAB_WORD void barrier_arrive(Barrier& b, LAB_HERE) {
  host::barrier_arrive(b, host::Word::barrier_arrive, 0, here);
}
LAB_WORD void barrier_arrive_expect(Barrier& b, int bytes, LAB_HERE) {
  host::barrier_arrive(b, host::Word::barrier_arrive_expect, bytes, here);
}
LAB_WORD void barrier_wait(Barrier& b, int parity, LAB_HERE) {
  host::barrier_wait(b, parity, here);
}
LAB_WORD void named_sync(int id, int threads, LAB_HERE) { host::named_sync(id, threads, here); }
LAB_WORD void named_arrive(int id, int threads, LAB_HERE) {
  host::named_arrive(id, threads, here);
}
template <int N> LAB_WORD void raise_registers(LAB_HERE) {
  static_assert(N >= 24 && N <= 240 && N % 8 == 0);
  host::raise_registers(N, here);
}
template <int N> LAB_WORD void lower_registers(LAB_HERE) {
  static_assert(N >= 24 && N <= 240 && N % 8 == 0);
  host::lower_registers(N, here);
}
// Here it is an error if the lanes' values differ.
LAB_WORD int warp_uniform(int v, LAB_HERE) {
  return static_cast<int>(host::exchange(host::Word::warp_uniform, here, static_cast<u64>(v), 0,
                                         host::act_warp_uniform));
}

}  // namespace lab
