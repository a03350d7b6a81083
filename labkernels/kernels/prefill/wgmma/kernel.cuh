// This prefill uses the tensor cores by the instructions of sm_90a. Separate warps bring Q, K and
// V. Each consumer warpgroup multiplies 64 rows by wgmma: S = Q K^T from shared memory, and O += P
// V with P in registers. A block takes work tiles from the list until the list is empty. A thread
// of a warpgroup holds rows g and g + 8 of its warp's 16, and columns 2t and 2t + 1 of each 8,
// where g = lane / 4 and t = lane % 4.
#pragma once
#include "prefill/wgmma/consumer.cuh"
#include "prefill/wgmma/copies.cuh"
#include "prefill/wgmma/keys.cuh"
#include "prefill/wgmma/producer.cuh"

namespace prefill_wgmma {
using namespace lab;

template <class C, class P>
LAB_KERNEL(C::threads, C::blocks_per_sm) prefill(LAB_GRID_CONSTANT typename C::Params p) {
  static_assert(sizeof(Smem<C>) == LAB_SMEM_BYTES, "the ledger's bytes are the compiler's");
  auto& smem = shared_memory<Smem<C>>();
  const bool copies = C::paged && p.box_keys == 0;
  if (thread_x() == 0) {
    smem.k_ring.init(copies ? Copier<C>::threads : 1, C::consumer_warps);
    smem.v_ring.init(copies ? Copier<C>::threads : 1, C::consumer_warps);
    smem.q_ring.init(1, C::consumer_warps);
    // The warps that bring K and V read the work tile too.
    smem.tile_ring.init(1, C::consumer_warps + (copies ? Copier<C>::warps : 2));
    mbarrier_init(smem.tile_wanted, 1);
    mbarrier_init(smem.tail_full, 1);
    fence_mbarrier_init();
  }
  // Rows that no whole token fills are never loaded, so they are cleared once.
  for (int stage = 0; stage < C::q_stages; ++stage)
    clear_rows(smem.q[stage], p.tile_rows, thread_x(), C::threads);
  fence_async_shared();
  sync_block();  // every warp sees the initialized barriers
  const int warp = warp_uniform(thread_x() / 32);
  if (warp < 4) {
    setmaxnreg_dec<C::producer_registers>();
    if (warp == 0) schedule_tiles<C, P>(smem, p);
    if (warp == 1 && !copies) bring_keys<C>(smem, p);
    if (warp == 2 && !copies) bring_values<C>(smem, p);
    if constexpr (C::paged)
      if (warp > 0 && copies) Copier<C>(smem, p, warp - 1).run();
  } else {
    setmaxnreg_inc<C::consumer_registers>();
    Consumer<C, P> consumer(smem, p.problem, copies, warp_uniform(thread_x() / 128) - 1);
    consumer.run();
  }
}

}  // namespace prefill_wgmma
