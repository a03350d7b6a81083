// Prefill, tensor cores on, by the instructions of sm_90a: a warp asks the TMA for Q, K and V, and
// each consumer warpgroup multiplies 64 rows by wgmma, S = Q K^T from shared memory, O += P V with
// P in registers. Blocks stay, and take tiles from the work list until it is empty.
// A thread of a warpgroup holds rows g and g + 8 of its warp's 16, g = lane / 4, and columns 2t and
// 2t + 1 of each 8, t = lane % 4.
#pragma once
#include "prefill_wgmma/consumer.cuh"
#include "prefill_wgmma/producer.cuh"

namespace prefill_wgmma {
using namespace lab;

// A stage is filled by one thread, and emptied by every consumer warp.
template <class C, int Stages>
LAB_DEVICE void init_ring(Barrier (&full)[Stages], Barrier (&empty)[Stages]) {
  for (int i = 0; i < Stages; ++i) {
    barrier_init(full[i], 1);
    barrier_init(empty[i], 4 * C::consumers);
  }
}

template <class C, class P>
LAB_KERNEL(C::threads, C::blocks_per_sm) prefill(LAB_GRID_CONSTANT Params p) {
  static_assert(sizeof(Smem<C>) == LAB_SMEM_BYTES, "the ledger's bytes are the compiler's");
  auto& smem = shared_memory<Smem<C>>();
  if (thread_x() == 0) {
    init_ring<C>(smem.k_full, smem.k_empty);
    init_ring<C>(smem.v_full, smem.v_empty);
    init_ring<C>(smem.q_full, smem.q_empty);
    init_ring<C>(smem.item_full, smem.item_empty);
    barrier_init(smem.tail_full, 1);
    fence_barrier_init();
  }
  sync_block();                                  // the barriers are there, for every warp
  const int warp = warp_uniform(thread_x() / 32);
  if (warp < 4) {
    lower_registers<C::producer_registers>();
    if (warp == 0) produce<C, P>(smem, p);
  } else {
    raise_registers<C::consumer_registers>();
    consume<C, P>(smem, p.problem);
  }
}

}  // namespace prefill_wgmma
