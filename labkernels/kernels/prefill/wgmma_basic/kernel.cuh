// Prefill by wgmma and the TMA without overlap, for ragged K and V alone: a warp loads, warpgroups
// multiply, and a block takes one tile. prefill/wgmma has the same parts, with the ideas that make
// them fast; the rungs between the two are in rungs_above.cuh, those below in rungs_below.cuh. A
// thread of a warpgroup holds rows g and g + 8 of its warp's 16, g = lane / 4, and columns 2t and
// 2t + 1 of each 8, t = lane % 4.
#pragma once
#include "prefill/wgmma_basic/parts.cuh"
#include "prefill/wgmma_basic/rungs_below.cuh"
#include "prefill/wgmma_basic/rungs_above.cuh"

namespace prefill_wgmma_basic {
using namespace lab;

// [rung: wgmma]
// A consumer warpgroup: 64 rows of the tile against all keys that they see, block by block.
template <class C, class P>
LAB_DEVICE void consume_wgmma(Smem<C>& smem, const PrefillParams& p, const typename C::Work& tile,
                              Progress& at) {
  using T = typename C::T;
  const int warpgroup = warp_uniform(thread_x() / 128) - 1, row = lane_row(warpgroup);
  OnlineSoftmax softmax;                         // {m, l} of rows `row` and `row` + 8
  typename C::Output o = {};
  consumer_wait(smem.q_ring, at.tiles);
  for (KeyBlocks<C> keys(p, tile); keys.more(); keys.next(), ++at.blocks) {
    const u32 n = at.blocks;                     // of both rings, which are equally deep here
    typename C::Scores s;                        // S = Q K^T
    consumer_wait(smem.k_ring, n);
    wgmma_abt(s, smem.q, warpgroup * 64, smem.k[n % C::stages]);
    wgmma_wait(s);
    consumer_release(smem.k_ring, n);
    if (keys.masked()) mask<C>(s, p, tile, row, keys.key);
    const Rescale rescale = softmax.update<P, T>(s, p.scale_log2);  // S becomes P, {m, l} follow
    rescale_rows(o, rescale);
    typename C::Fragments probabilities;
    round_to_fragments<T>(probabilities, s);
    consumer_wait(smem.v_ring, n);               // O += P V
    wgmma_ab(o, probabilities, smem.v[n % C::stages]);
    wgmma_wait(o);
    consumer_release(smem.v_ring, n);
  }
  consumer_release(smem.q_ring, at.tiles++);
  store_rows<C, P>(o, softmax, p, tile, row);
}
// [/rung: wgmma]

// Computes a work tile as the kernel's rung does, and merges the splits if this one comes last.
template <class C, class P>
LAB_DEVICE void consume(Smem<C>& smem, const PrefillParams& p, const typename C::Work& tile,
                        Progress& at) {
  if constexpr (C::rung == Rung::fma) consume_fma<C, P>(smem, p, tile, at);
  else if constexpr (C::rung <= Rung::tma) consume_mma<C, P>(smem, p, tile, at);
  else if constexpr (C::rung == Rung::wgmma) consume_wgmma<C, P>(smem, p, tile, at);
  else if constexpr (C::rung == Rung::within) consume_within<C, P>(smem, p, tile, at);
  else if constexpr (C::rung == Rung::ahead) consume_ahead<C, P>(smem, p, tile, at);
  else consume_between<C, P>(smem, p, tile, at);
  if (tile.live_splits > 1 && arrives_last(smem.is_last_split, p, tile, ConsumerSync<C>{}, 128))
    merge_splits<P, 4 * C::consumer_warpgroups, C::dim_vo>(p, tile, thread_x() / 32 - 4);
}

// [rung: one tile]
// A block takes the one work tile that has its number.
template <class C, class Work> LAB_DEVICE void one_tile(const Params& p, Work work) {
  const auto tile = work_tile<C::rows, false>(p.problem, block_x(), p.tile_rows);
  if (!is_idle(tile)) work(tile);
}
// [/rung: one tile]
// [rung: many tiles]
// A block stays, and takes every p.blocks-th work tile. The next one is loaded while this one ends.
template <class C, class Work> LAB_DEVICE void many_tiles(const Params& p, Work work) {
  for (int i = block_x(); i < p.work_tiles; i += p.blocks) {
    const auto tile = work_tile<C::rows, false>(p.problem, i, p.tile_rows);
    if (!is_idle(tile)) work(tile);
  }
}
// [/rung: many tiles]
template <class C, class Work> LAB_DEVICE void each_tile(const Params& p, Work work) {
  if constexpr (C::rung >= Rung::persistent) many_tiles<C>(p, work);
  else one_tile<C>(p, work);
}

template <class C, class P>
LAB_KERNEL(C::threads, C::blocks_per_sm) prefill(LAB_GRID_CONSTANT Params p) {
  static_assert(sizeof(Smem<C>) == LAB_SMEM_BYTES, "the ledger's bytes are the compiler's");
  auto& smem = shared_memory<Smem<C>>();
  if (thread_x() == 0) {
    smem.q_ring.init(1, 4 * C::consumer_warpgroups);
    smem.k_ring.init(1, 4 * C::consumer_warpgroups);
    smem.v_ring.init(1, 4 * C::consumer_warpgroups);
    mbarrier_init(smem.tail_full, 1);
    fence_mbarrier_init();
  }
  clear_rows(smem.q, p.tile_rows, thread_x(), C::threads);  // which are never loaded
  fence_async_shared();
  sync_block();                                  // the barriers are there, for every warp
  using Work = typename C::Work;
  Progress at;
  const auto load = [&](const Work& tile) {
    if constexpr (C::rung < Rung::tma) produce_copies<C>(smem, p, tile, at);
    else produce<C>(smem, p, tile, at);
  };
  const auto compute = [&](const Work& tile) { consume<C, P>(smem, p.problem, tile, at); };
  const int warp = warp_uniform(thread_x() / 32);
  if (warp < 4) {
    setmaxnreg_dec<40>();
    if (warp == 0) each_tile<C>(p, load);
  } else {
    setmaxnreg_inc<232>();
    each_tile<C>(p, compute);
  }
}

}  // namespace prefill_wgmma_basic
