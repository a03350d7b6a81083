// This is paged MLA decode on Hopper: wgmma multiplies tiles in shared memory, and reads V out of
// K's tile. A block holds 64 packed rows. Two warpgroups take its key blocks of 64 in turn. A
// warpgroup computes S and P of its own key blocks, and passes P through shared memory to the other
// warpgroup, because each has half of O's 512 channels and needs P of all key blocks. No product is
// computed twice, and the softmax of one warpgroup overlaps the wgmma of the other. A third
// warpgroup loads K.
#pragma once
#include "mla/wgmma/consumer.cuh"
#include "mla/wgmma/producer.cuh"

namespace mla_wgmma {

template <class C, class P>
LAB_KERNEL(C::threads, C::blocks_per_sm) mla(LAB_GRID_CONSTANT Params p) {
  static_assert(sizeof(Smem<C>) == LAB_SMEM_BYTES, "the ledger's bytes are the compiler's");
  auto& smem = shared_memory<Smem<C>>();
  if (thread_x() == 0) {
    if (p.box_keys > 0) {
      prefetch_tensormap(p.ckv_map);
      prefetch_tensormap(p.kpe_map);
    }
    for (int half = 0; half < 2; ++half)
      smem.half_ring[half].init(producer_warps<C>(p), C::group_threads / 32);
    fence_mbarrier_init();
  }
  sync_block();         // every thread sees the initialized barriers
  allow_next_launch();  // the merge may start; it waits for this launch
  // Each warpgroup looks up its work by itself. Its first instructions, which are not yet in a
  // cache, are then contiguous in memory.
  const int group = warp_uniform(thread_x() / C::group_threads);
  if (group == 2) {
    setmaxnreg_dec<56>();
    const Work work = work_tile<C::rows, true>(p.mla);
    Producer<C> producer(smem, p, work);
    producer.run();
  } else {
    setmaxnreg_inc<LAB_CONSUMER_REGISTERS>();
    const Work work = work_tile<C::rows, true>(p.mla);
    if (is_idle(work)) return;
    load_q<C>(smem, p.mla, work);
    Consumer<C, P> consumer(smem, p, work, group);
    consumer.run();
  }
}

}  // namespace mla_wgmma
