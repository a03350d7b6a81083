// Prefill, tensor cores on, by the instructions of sm_90a: three warps bring Q, K and V, and
// each consumer warpgroup multiplies 64 rows by wgmma, S = Q K^T from shared memory, O += P V
// with P in registers. Blocks stay, and take tiles from the work list until it is empty.
// A thread of a warpgroup holds rows g and g + 8 of its warp's 16, g = lane / 4, and columns 2t and
// 2t + 1 of each 8, t = lane % 4.
#pragma once
#include "prefill_wgmma/consumer.cuh"
#include "prefill_wgmma/keys.cuh"
#include "prefill_wgmma/producer.cuh"

namespace prefill_wgmma {
using namespace lab;

// A stage is filled by one thread, and emptied by so many warps.
template <int Stages>
LAB_DEVICE void init_ring(Barrier (&full)[Stages], Barrier (&empty)[Stages], int warps) {
  for (int i = 0; i < Stages; ++i) {
    barrier_init(full[i], 1);
    barrier_init(empty[i], warps);
  }
}

template <class C, class P>
LAB_KERNEL(C::threads, C::blocks_per_sm) prefill(LAB_GRID_CONSTANT Params p) {
  static_assert(sizeof(Smem<C>) == LAB_SMEM_BYTES, "the ledger's bytes are the compiler's");
  auto& smem = shared_memory<Smem<C>>();
  if (thread_x() == 0) {
    init_ring(smem.k_full, smem.k_empty, 4 * C::consumers);
    init_ring(smem.v_full, smem.v_empty, 4 * C::consumers);
    init_ring(smem.q_full, smem.q_empty, 4 * C::consumers);
    init_ring(smem.item_full, smem.item_empty, 4 * C::consumers + 2);  // K's and V's producers too
    barrier_init(smem.item_wanted, 1);
    barrier_init(smem.tail_full, 1);
    fence_barrier_init();
  }
  sync_block();                                  // the barriers are there, for every warp
  const int warp = warp_uniform(thread_x() / 32);
  if (warp < 4) {
    lower_registers<C::producer_registers>();
    if (warp == 0) take_items<C, P>(smem, p);
    if (warp == 1) bring_keys<C>(smem, p);
    if (warp == 2) bring_values<C>(smem, p);
  } else {
    raise_registers<C::consumer_registers>();
    consume<C, P>(smem, p.problem);
  }
}

}  // namespace prefill_wgmma
