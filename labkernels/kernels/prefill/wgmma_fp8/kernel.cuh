// This prefill multiplies in 8 bits: Q, K, V and the rounded P are in e4m3. The producers, the
// scheduler and the consumers are those of prefill_wgmma. Two more warps transpose V.
#pragma once
#include "prefill/wgmma_fp8/transpose.cuh"

namespace prefill_wgmma_fp8 {
using namespace lab;

template <class C, class P>
LAB_KERNEL(C::threads, C::blocks_per_sm) prefill(LAB_GRID_CONSTANT typename C::Params p) {
  static_assert(sizeof(Smem<C>) == LAB_SMEM_BYTES, "the ledger's bytes are the compiler's");
  auto& smem = shared_memory<Smem<C>>();
  if (thread_x() == 0) {
    smem.k_ring.init(1, C::consumer_warps);
    smem.raw_ring.init(1, transposers);
    smem.v_ring.init(transposers, C::consumer_warps);
    smem.q_ring.init(1, C::consumer_warps);
    smem.tile_ring.init(1, C::consumer_warps + 1 + transposers);
    mbarrier_init(smem.tile_wanted, 1);
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
    if (warp == 0) prefill_wgmma::schedule_tiles<C, P>(smem, p);
    if (warp == 1) bring_codes<C>(smem, p);
    if (warp >= 2) transpose_values<C>(smem, warp - 2);
  } else {
    setmaxnreg_inc<C::consumer_registers>();
    prefill_wgmma::Consumer<C, P>(smem, p.problem, false, warp_uniform(thread_x() / 128) - 1).run();
  }
}

}  // namespace prefill_wgmma_fp8
