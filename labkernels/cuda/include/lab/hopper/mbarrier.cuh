// Blocks whose warps do different work use these barriers on sm_90: mbarriers, which also count the
// bytes that asynchronous copies bring, and named barriers, at which some of a block's warps meet.
// A warpgroup can also give registers to another.
#pragma once
#include "lab/core/ptx.cuh"

namespace lab {

// An mbarrier lies in shared memory. Its phases are numbered from 0; a phase ends after `arrivals`
// arrivals, as soon as all the bytes that were announced in it are there.
struct alignas(8) Mbarrier { u64 state; };

}  // namespace lab
#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include "lab/host/instructions/barrier_words.hpp"
#else

namespace lab {

// One thread calls this, and then fence_mbarrier_init; then all threads call sync_block.
LAB_DEVICE void mbarrier_init(Mbarrier& b, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
               :
               : "r"(shared_address(&b)), "r"(arrivals)
               : "memory");
}
LAB_DEVICE void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;\n"
               "fence.proxy.async.shared::cta;"
               :
               :
               : "memory");
}
LAB_DEVICE void mbarrier_arrive(Mbarrier& b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(shared_address(&b)) : "memory");
}
// Arrives, and announces bytes that copies will bring in this phase.
LAB_DEVICE void mbarrier_arrive_expect_tx(Mbarrier& b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :
               : "r"(shared_address(&b)), "r"(bytes)
               : "memory");
}
// Arrives as soon as this thread's earlier cp_async_16 have landed, while the thread goes on. These
// copies need neither cp_async_commit nor cp_async_wait. Who reads them by wgmma first calls
// fence_async_shared.
LAB_DEVICE void mbarrier_arrive_copied(Mbarrier& b) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];"
               :
               : "r"(shared_address(&b))
               : "memory");
}
// Waits until the phase of this parity has ended. The running phase and the one before it have
// different parities. parity = 1 on a new barrier does not wait.
LAB_DEVICE void mbarrier_wait(Mbarrier& b, int parity) {
  asm volatile("{.reg .pred p;\n"
               "again:\n"
               "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
               "@p bra done;\n"
               "bra again;\n"
               "done:}"
               :
               : "r"(shared_address(&b)), "r"(parity)
               : "memory");
}

// Kernels have the named barriers 1 to 15 (sync_block uses 0). `threads` counts all threads that
// come, those that wait and those that only arrive; they come in whole warps.
LAB_DEVICE void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" : : "r"(id), "r"(threads) : "memory");
}
LAB_DEVICE void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" : : "r"(id), "r"(threads) : "memory");
}

// Sets a warpgroup's registers per thread to N, a multiple of 8 from 24 to 240 (PTX allows 256).
// setmaxnreg_inc waits until other warps have given up enough. All warps of a warpgroup call it.
template <int N> LAB_DEVICE void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(N));
}
template <int N> LAB_DEVICE void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(N));
}

// Tells the compiler that a value is the same in all lanes of the warp.
LAB_DEVICE int warp_uniform(int v) { return __shfl_sync(~0u, v, 0); }

}  // namespace lab
#endif
