// This is the backward pass on Hopper: a block keeps a tile of keys and goes through the query rows
// that see it. A producer warp loads K, V and tiles of Q and dO by the TMA; two warpgroups compute
// by wgmma. S and dP are computed transposed, keys by rows: P^T and dS^T are then in registers, as
// the left operands of dV += P^T dO and dK += dS^T Q. dS^T goes through shared memory for dQ = dS
// K, which sums over all keys of the block. Each warpgroup computes half of dQ a step later, so
// that it need not wait for the other one's dS, and one computes P and dS while the tensor core has
// the products of the other. dQ is added in fp32 to global memory, by two more warps in turn if
// shared memory has room for dQ. dV += P^T dO starts as soon as P^T is computed, so that the tensor
// core has work while the threads compute dS. Products of two tiles in shared memory take its whole
// bandwidth. lse2 is therefore read early, while dK += dS^T Q runs, which reads one tile; at
// head_dim 64 V is in registers, and dP = V dO^T reads one tile too. A tile of 64 keys is too small
// for two warpgroups: they share its rows in S and its channels in dK and dV, and P^T goes through
// shared memory as dS^T does. Where q and K have 192 channels and V has 128, dK and dV take most
// registers: S and dP are then computed for 32 rows at a time, and a warpgroup's 96 channels of dQ
// as 64 and 32. The launches before and after this one overlap with it (overlap.cuh).
#pragma once
#include "backward/wgmma/consumer.cuh"
#include "backward/wgmma/producer.cuh"

namespace backward_wgmma {
using namespace lab;

template <class C> LAB_DEVICE void init_barriers(Smem<C>& smem) {
  mbarrier_init(smem.kv_full, 1);
  mbarrier_init(smem.ds_full, consumer_warps);
  smem.q_ring.init(1, consumer_warps);
  smem.dout_ring.init(1, consumer_warps);
  smem.dq_ring.init(consumer_warps, 1);
  fence_mbarrier_init();
}

// A warp clears dq_accum for other heads. If the consumers add dQ themselves, the warp also says
// when all is added: a fence of the consumers would delay their stores.
template <class C> LAB_DEVICE void help_other_launches(const typename C::Params& p) {
  if (p.problem.head_counts == nullptr) return;
  const int first = load_constant(p.first_cleared + block_x());
  const int end = load_constant(p.first_cleared + block_x() + 1);
  if (first < end) {
    wait_previous_launch();  // earlier readers of dq_accum are done
    clear_tiles<C::dim>(p.problem, p.cleared, first, end);
  }
  if constexpr (!C::stages_dq) {
    named_sync(dq_is_sent, consumer_threads + 32);
    if (thread_x() % 32 == 0) count_added(p.problem);
  }
}

// [lab: kernel]
template <class C, class P>
LAB_KERNEL(C::threads, C::blocks_per_sm) backward(LAB_GRID_CONSTANT typename C::Params p) {
  static_assert(sizeof(Smem<C>) == LAB_SMEM_BYTES, "the ledger's bytes are the compiler's");
  auto& smem = shared_memory<Smem<C>>();
  const BackwardKeys b = backward_keys<C::rows, C::keys, typename C::Variant>(p.problem);
  if (thread_x() == 0) init_barriers(smem);
  allow_next_launch();
  sync_block();
  if (const int warp = warp_uniform(thread_x() / 32); warp >= 4) {
    setmaxnreg_inc<LAB_CONSUMER_REGISTERS>();
    Consumer<C, P> consumer(smem, p, b);
    consumer.run();
  } else {
    setmaxnreg_dec<24>();
    if (thread_x() == 0) produce(smem, p, b);
    if constexpr (C::stages_dq)
      if (thread_x() % 32 == 0 && (warp == 1 || warp == 2)) add_passed_dq(smem, p, b, warp - 1);
    if (warp == 3) help_other_launches<C>(p);
  }
}
// [/lab: kernel]

}  // namespace backward_wgmma
