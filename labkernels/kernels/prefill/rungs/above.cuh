// Each rung above wgmma adds one idea to the rung before it, and changes no bit of the result.
#pragma once
#include "prefill/rungs/traits.cuh"

namespace prefill_wgmma_basic {
using namespace lab;

// [rung: within]
// The scores of the next block, and their softmax, are computed while this block's P V runs.
template <class C, class P>
  requires (C::rung == Rung::within)
LAB_DEVICE void consume(Smem<C>& smem, const PrefillParams& p, const typename C::Work& tile,
                        Progress& at) {
  using T = typename C::T;
  const int warpgroup = warp_uniform(thread_x() / 128) - 1, row = lane_row(warpgroup);
  OnlineSoftmax softmax;  // {m, l} of rows `row` and `row` + 8
  typename C::Output o = {};
  typename C::Scores s;  // S = Q K^T
  typename C::Fragments probabilities;
  consumer_wait(smem.q_ring, at.tiles);
  KeyBlocks<C> keys(p, tile);
  if (keys.more()) {  // no P V runs beside the first block's scores
    consumer_wait(smem.k_ring, at.blocks);
    wgmma_abt(s, smem.q, warpgroup * 64, smem.k[at.blocks % C::stages]);
    wgmma_wait(s);
    consumer_release(smem.k_ring, at.blocks);
    if (keys.masked()) mask<C>(s, p, tile, row, keys.key);
    softmax.update<P, T>(s, p.scale_log2);  // O is 0 and needs no rescaling
    round_to_fragments<T>(probabilities, s);
    for (keys.next(); keys.more(); keys.next(), ++at.blocks) {
      const u32 n = at.blocks;  // the block whose P is ready
      consumer_wait(smem.k_ring, n + 1);
      wgmma_abt(s, smem.q, warpgroup * 64, smem.k[(n + 1) % C::stages]);
      consumer_wait(smem.v_ring, n);  // O += P V
      wgmma_ab(o, probabilities, smem.v[n % C::stages]);
      wgmma_wait<1>(s);  // S is there; P V still runs
      consumer_release(smem.k_ring, n + 1);
      if (keys.masked()) mask<C>(s, p, tile, row, keys.key);
      const Rescale rescale = softmax.update<P, T>(s, p.scale_log2);  // S becomes P
      wgmma_wait(o);
      consumer_release(smem.v_ring, n);
      rescale_rows(o, rescale);
      round_to_fragments<T>(probabilities, s);
    }
    consumer_wait(smem.v_ring, at.blocks);  // the last block's O += P V
    wgmma_ab(o, probabilities, smem.v[at.blocks % C::stages]);
    wgmma_wait(o);
    consumer_release(smem.v_ring, at.blocks++);
  }
  consumer_release(smem.q_ring, at.tiles++);
  finish_rows<C, P>(o, softmax, p, tile, row, smem.is_last_split);
}
// [/rung: within]

// [rung: turns]
// This is ping-pong: the warpgroups take turns to start products, so that one warpgroup
// exponentiates while another's products run.
template <class C> struct PingPong {
  LAB_DEVICE static void wait(int warpgroup) { named_sync(1 + warpgroup, 256); }
  LAB_DEVICE static void pass(int warpgroup) {
    named_arrive(1 + (warpgroup + 1) % C::consumer_warpgroups, 256);
  }
};
// [/rung: turns]

// [rung: between]
// The scores of the next block, and their softmax, are computed while this block's P V runs.
template <class C, class P>
  requires (C::rung == Rung::between || C::rung == Rung::persistent)
LAB_DEVICE void consume(Smem<C>& smem, const PrefillParams& p, const typename C::Work& tile,
                        Progress& at) {
  using T = typename C::T;
  const int warpgroup = warp_uniform(thread_x() / 128) - 1, row = lane_row(warpgroup);
  OnlineSoftmax softmax;  // {m, l} of rows `row` and `row` + 8
  typename C::Output o = {};
  typename C::Scores s;  // S = Q K^T
  typename C::Fragments probabilities;
  consumer_wait(smem.q_ring, at.tiles);
  KeyBlocks<C> keys(p, tile);
  if (keys.more()) {  // no P V runs beside the first block's scores
    if (warpgroup == C::consumer_warpgroups - 1) PingPong<C>::pass(warpgroup);  // the first turn
    consumer_wait(smem.k_ring, at.blocks);
    wgmma_abt(s, smem.q, warpgroup * 64, smem.k[at.blocks % C::stages]);
    wgmma_wait(s);
    consumer_release(smem.k_ring, at.blocks);
    if (keys.masked()) mask<C>(s, p, tile, row, keys.key);
    softmax.update<P, T>(s, p.scale_log2);  // O is 0 and needs no rescaling
    round_to_fragments<T>(probabilities, s);
    for (keys.next(); keys.more(); keys.next(), ++at.blocks) {
      const u32 n = at.blocks;  // the block whose P is ready
      consumer_wait(smem.k_ring, n + 1);
      PingPong<C>::wait(warpgroup);
      wgmma_abt(s, smem.q, warpgroup * 64, smem.k[(n + 1) % C::stages]);
      consumer_wait(smem.v_ring, n);  // O += P V
      wgmma_ab(o, probabilities, smem.v[n % C::stages]);
      PingPong<C>::pass(warpgroup);
      wgmma_wait<1>(s);  // S is there; P V still runs
      consumer_release(smem.k_ring, n + 1);
      if (keys.masked()) mask<C>(s, p, tile, row, keys.key);
      const Rescale rescale = softmax.update<P, T>(s, p.scale_log2);  // S becomes P
      wgmma_wait(o);
      consumer_release(smem.v_ring, n);
      rescale_rows(o, rescale);
      round_to_fragments<T>(probabilities, s);
    }
    if (warpgroup == 0) PingPong<C>::wait(warpgroup);  // takes the last turn passed
    consumer_wait(smem.v_ring, at.blocks);             // the last block's O += P V
    wgmma_ab(o, probabilities, smem.v[at.blocks % C::stages]);
    wgmma_wait(o);
    consumer_release(smem.v_ring, at.blocks++);
  }
  consumer_release(smem.q_ring, at.tiles++);
  finish_rows<C, P>(o, softmax, p, tile, row, smem.is_last_split);
}
// [/rung: between]

// [rung: many tiles]
// A block takes every p.blocks-th work tile. The next tile is loaded while this tile ends.
template <class C, class Work>
  requires (C::rung >= Rung::persistent)
LAB_DEVICE void each_tile(const Params& p, Work work) {
  for (int i = block_x(); i < p.work_tiles; i += p.blocks) {
    const auto tile = work_tile<C::rows, false>(p.problem, i, p.tile_rows);
    if (!is_idle(tile)) work(tile);
  }
}
// [/rung: many tiles]

// [rung: ahead]
// The scores of the next block, and their softmax, are computed while this block's P V runs.
template <class C, class P>
  requires (C::rung == Rung::ahead)
LAB_DEVICE void consume(Smem<C>& smem, const PrefillParams& p, const typename C::Work& tile,
                        Progress& at) {
  using T = typename C::T;
  const int warpgroup = warp_uniform(thread_x() / 128) - 1, row = lane_row(warpgroup);
  OnlineSoftmax softmax;  // {m, l} of rows `row` and `row` + 8
  typename C::Output o = {};
  typename C::Scores s;                        // S = Q K^T
  typename C::Fragments probabilities, spare;  // blocks use them in turn
  consumer_wait(smem.q_ring, at.tiles);
  KeyBlocks<C> keys(p, tile);
  if (keys.more()) {  // no P V runs beside the first block's scores
    if (warpgroup == C::consumer_warpgroups - 1) PingPong<C>::pass(warpgroup);  // the first turn
    consumer_wait(smem.k_ring, at.blocks);
    wgmma_abt(s, smem.q, warpgroup * 64, smem.k[at.blocks % C::stages]);
    wgmma_wait(s);
    consumer_release(smem.k_ring, at.blocks);
    if (keys.masked()) mask<C>(s, p, tile, row, keys.key);
    softmax.update<P, T>(s, p.scale_log2);  // O is 0 and needs no rescaling
    round_to_fragments<T>(probabilities, s);
    // The next block's P is rounded as soon as it is computed. P of this block, which the products
    // still read, has other registers.
    const auto advance = [&](const typename C::Fragments& ready, typename C::Fragments& next) {
      const u32 n = at.blocks++;  // the block whose P is ready
      consumer_wait(smem.k_ring, n + 1);
      PingPong<C>::wait(warpgroup);
      wgmma_abt(s, smem.q, warpgroup * 64, smem.k[(n + 1) % C::stages]);
      consumer_wait(smem.v_ring, n);  // O += P V
      wgmma_ab(o, ready, smem.v[n % C::stages]);
      PingPong<C>::pass(warpgroup);
      wgmma_wait<1>(s);  // S is there; P V still runs
      consumer_release(smem.k_ring, n + 1);
      if (keys.masked()) mask<C>(s, p, tile, row, keys.key);
      const Rescale rescale = softmax.update<P, T>(s, p.scale_log2);  // S becomes P
      round_to_fragments<T>(next, s);
      wgmma_wait(o);
      consumer_release(smem.v_ring, n);
      rescale_rows(o, rescale);
      keys.next();
    };
    keys.next();
    while (keys.more()) {
      advance(probabilities, spare);
      if (!keys.more()) break;
      advance(spare, probabilities);
    }
    round_to_fragments<T>(probabilities, s);  // P of the last block, which may be in `spare`
    if (warpgroup == 0) PingPong<C>::wait(warpgroup);  // takes the last turn passed
    consumer_wait(smem.v_ring, at.blocks);             // the last block's O += P V
    wgmma_ab(o, probabilities, smem.v[at.blocks % C::stages]);
    wgmma_wait(o);
    consumer_release(smem.v_ring, at.blocks++);
  }
  consumer_release(smem.q_ring, at.tiles++);
  finish_rows<C, P>(o, softmax, p, tile, row, smem.is_last_split);
}
// [/rung: ahead]

}  // namespace prefill_wgmma_basic
