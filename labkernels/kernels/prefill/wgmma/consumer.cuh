// The consumers are warpgroups. For each work tile they compute S, the softmax and P V, and store
// O. prefill/wgmma_basic has the same parts without overlap.
#pragma once
#include "prefill/wgmma/rows.cuh"

namespace prefill_wgmma {
using namespace lab;

// The warpgroups take turns to start products, at the named barriers of warpgroup_rows.cuh.
template <class C> struct PingPong {
  LAB_DEVICE static void wait(int warpgroup) {
    if constexpr (C::overlap == Overlap::inter_warpgroup) named_sync(1 + warpgroup, 256);
  }
  LAB_DEVICE static void pass(int warpgroup) {
    if constexpr (C::overlap == Overlap::inter_warpgroup)
      named_arrive(1 + (warpgroup + 1) % C::consumer_warpgroups, 256);
  }
};

// This is the whole work of a consumer warpgroup. The first scores of a work tile are computed and
// exponentiated beside the last products of the tile before. The last block of a tile is thus
// computed like any other block, and a store follows. Members hold the progress; operands and
// results of products are arguments, of the shapes in rows.cuh.
template <class C, class P> struct Consumer {
  using T = typename C::Rounded;
  using V = typename C::Variant;
  using Sums = SumsOf<C, P>;

  Smem<C>& smem;
  const typename C::Problem& p;
  const bool copied;         // whether warps copy K and V, not the TMA
  const int warpgroup, row;  // row: this lane's first row of the tile
  int i = 0;                 // the work tile whose scores come next
  int k = 0, v = 0;          // how often the rings of K and V have been used
  int unread = 0;            // skipped tiles of V, to be released after the running products
  bool has_ended = false;    // whether the running products are a work tile's last
  float factor = 0.f;        // by which that tile's O is multiplied, once O is complete
  float scale = 1.f;         // of tile i's scores in log2 units, where codes have scales
  KeyBlocks keys;            // the blocks of tile i that are left
  Slope slopes[2];           // of the lane's rows of tile i, with slopes alone

  LAB_DEVICE Consumer(Smem<C>& shared, const typename C::Problem& params, bool copied_,
                      int warpgroup_)
      : smem(shared), p(params), copied(copied_), warpgroup(warpgroup_), row(lane_row(warpgroup_)) {
  }

  // [lab: consume]
  LAB_DEVICE void run() {
    OnlineSoftmax softmax;
    Rescale rescale;  // O's factors, since the last block may have moved the maxima
    Sums o = {};
    Scores<C> s;
    Fragments<C> probabilities, spare;
    keys = receive(smem, i).keys[warpgroup];
    if (keys.count == 0) return;
    begin(softmax, rescale, s, probabilities);
    for (bool multiplies = false;; multiplies = true) {
      // ptxas moves a wait up to the start of its basic block. Here, at the start of the loop, the
      // wait comes after the exponentials that overlap the products, and not before them.
      if (multiplies) fold(o, probabilities, s, rescale);
      has_ended = keys.count == 0;
      if (has_ended && !next_tile(softmax)) break;
      advance(s, o, probabilities, softmax, has_ended && C::two_p_buffers);
      masked_softmax(softmax, rescale, s);
      fence_operand(s);
      fence_operand(softmax.l);
      if (has_ended || keys.masked > 0 || keys.count <= keys.partial_first) continue;
      // In the steady state no block has keys to mask, and no tile ends. The steady state has a
      // loop of its own, which tests for neither.
      if constexpr (C::two_p_buffers) round_to_fragments<T>(spare, s);
      while (true) {
        if constexpr (C::two_p_buffers) {
          steady(softmax, rescale, s, o, spare, probabilities);
          if (keys.count == keys.partial_first) break;
          steady(softmax, rescale, s, o, probabilities, spare);
        } else {
          steady(softmax, rescale, s, o, probabilities, probabilities);
        }
        if (keys.count == keys.partial_first) break;
      }
    }
    end(softmax, o, probabilities);
  }
  // [/lab: consume]

 private:
  // ---- skipped blocks of keys

  // A warpgroup that skips a block still releases the block's K and V and passes its turn when it
  // would have used them, so that warpgroups that skip different numbers of blocks stay in step.
  LAB_DEVICE void skip_keys() {
    for (int j = 0; j < keys.skipped; ++j, ++k) {
      consumer_wait(smem.k_ring, k);
      consumer_release(smem.k_ring, k);
    }
    unread = keys.skipped;
  }
  LAB_DEVICE void skip_values() {
    for (; unread > 0; --unread, ++v) {
      consumer_wait(smem.v_ring, v);
      consumer_release(smem.v_ring, v);
    }
  }
  LAB_DEVICE void skip_turns() {
    for (int j = 0; j < keys.skipped; ++j) {
      PingPong<C>::wait(warpgroup);
      PingPong<C>::pass(warpgroup);
    }
  }

  // ---- products

  // Waits for a block of K or V. What warps have copied needs a fence before wgmma reads it. If the
  // warps that copy made the fence, they would wait for each block to land.
  LAB_DEVICE void await_keys(Pipeline<C::stages>& ring, int n) const {
    consumer_wait(ring, n);
    if (C::paged && copied) fence_async_shared();
  }

  // Starts S = Q K^T.
  LAB_DEVICE void begin_scores(Scores<C>& s) {
    const auto q =
        further(k_major(smem.q[0], warpgroup * 64), smem.q_ring.stage(i) * C::Q::elements);
    wgmma_abt(s, q, further(k_major(smem.k[0]), smem.k_ring.stage(k) * C::K::elements));
  }
  LAB_DEVICE void finish_scores(Scores<C>& s) {
    fence_operand(s);
    consumer_release(smem.k_ring, k);
    ++k;
    // The condition has & and not &&: a branch would end the basic block that the compiler orders.
    if ((keys.count == 1) & ((thread_x() & 31) == 0))
      mbarrier_arrive(smem.q_ring.empty[smem.q_ring.stage(i)]);
  }
  // Starts O += P V.
  LAB_DEVICE void begin_output(Sums& o, const Fragments<C>& ready) {
    await_keys(smem.v_ring, v);
    const int stage = smem.v_ring.stage(v) * C::V::elements;
    if constexpr (C::v_is_transposed)
      wgmma_abt(products(o), ready, further(k_major(smem.v[0]), stage), !P::promoted);
    else wgmma_ab(o, ready, further(mn_major(smem.v[0]), stage));
  }
  LAB_DEVICE void finish_output(Sums& o) {
    wgmma_wait<0>(products(o));
    join(o);
    consumer_release(smem.v_ring, v);
    ++v;
  }

  // Computes the next block's scores beside the products of this block's P. Closes a tile
  // meanwhile, if `closes` is true.
  LAB_DEVICE void advance(Scores<C>& s, Sums& o, const Fragments<C>& ready, OnlineSoftmax& softmax,
                          bool closes) {
    if constexpr (C::overlap == Overlap::none) {
      begin_output(o, ready);
      if (closes) close_tile(softmax);
      finish_output(o);
      await_keys(smem.k_ring, k);
      begin_scores(s);
      wgmma_wait<0>();
    } else {
      // [lab: overlap]
      await_keys(smem.k_ring, k);
      PingPong<C>::wait(warpgroup);
      begin_scores(s);
      begin_output(o, ready);
      PingPong<C>::pass(warpgroup);
      if (closes) close_tile(softmax);
      wgmma_wait<1>();
      // [/lab: overlap]
    }
    finish_scores(s);
  }

  // ---- softmax

  // Begins the softmax of the lane's rows of tile i, before its first block.
  LAB_DEVICE void begin_rows(OnlineSoftmax& softmax) {
    softmax = {};
    const typename C::Work& work = smem.tile(i).work;
    lab::begin_rows<V>(softmax, slopes, p, work, row - (thread_x() & 31) / 4);
    if constexpr (C::codes) scale = p.scale_log2 * p.descales.of_scores(work);
  }

  // Turns q k into scores: the soft cap, slopes, and a mask of bits.
  LAB_DEVICE void shape(Scores<C>& s) {
    if constexpr (V::shapes_scores || V::mask) {
      const ScheduledTile<C>& tile = smem.tile(i);
      const int key = tile.last_key - (tile.blocks - keys.count) * C::keys;
      shape_scores<V, AccumulatorRows>(s, p, slopes, key);
      if constexpr (V::mask) mask_bits<C>(s, p, tile.work, row, key);
    }
  }
  // Turns S into P.
  LAB_DEVICE void update(OnlineSoftmax& softmax, Rescale& rescale, Scores<C>& s) {
    rescale = softmax.template update<P, T>(s, C::codes ? scale : scale_of<V>(p));
    --keys.count;
  }
  LAB_DEVICE void masked_softmax(OnlineSoftmax& softmax, Rescale& rescale, Scores<C>& s) {
    const ScheduledTile<C>& tile = smem.tile(i);
    const auto key = [&] { return tile.last_key - (tile.blocks - keys.count) * C::keys; };
    shape(s);
    if (keys.masked > 0) mask_future<C>(s, p, tile.work, row, key());
    if constexpr (V::window) {
      if (keys.count <= keys.partial_first) mask_past<C>(s, p, tile.work, row, key());
    } else {
      if (keys.count == keys.partial_first) mask_past<C>(s, tile.work.first_key - key());
    }
    update(softmax, rescale, s);
    --keys.masked;
  }
  // Waits for the products that ran beside the scores; then rounds P, and rescales O to the new
  // maxima.
  LAB_DEVICE void fold(Sums& o, Fragments<C>& probabilities, const Scores<C>& s,
                       const Rescale& rescale) {
    if constexpr (C::overlap != Overlap::none) finish_output(o);
    skip_values();  // before the branch: after it, ptxas treats v as divergent
    round_to_fragments<T>(probabilities, s);
    if (has_ended) {
      finish_tile(o);
#pragma unroll
      for (int n = 0; n < C::dim_vo / 2; ++n) total(o)[n] = 0.f;
      // This follows finish_tile, at whose barrier all consumers may meet. A warpgroup that skips
      // nothing passes its next turn only after that barrier.
      skip_turns();
    }
    rescale_rows(total(o), rescale);
  }
  // Computes a block of the steady state. With two buffers of P, this block's P is in `ready`
  // already, and the next block's P is rounded as soon as its exponentials are computed.
  LAB_DEVICE void steady(OnlineSoftmax& softmax, Rescale& rescale, Scores<C>& s, Sums& o,
                         Fragments<C>& ready, Fragments<C>& next) {
    if constexpr (C::overlap != Overlap::none) finish_output(o);
    if constexpr (!C::two_p_buffers) round_to_fragments<T>(ready, s);
    rescale_rows(total(o), rescale);
    advance(s, o, ready, softmax, false);
    shape(s);
    update(softmax, rescale, s);
    if constexpr (C::two_p_buffers) round_to_fragments<T>(next, s);
    fence_operand(s);
    fence_operand(softmax.l);
  }

  // ---- work tiles

  LAB_DEVICE void begin(OnlineSoftmax& softmax, Rescale& rescale, Scores<C>& s,
                        Fragments<C>& probabilities) {
    if (warpgroup == C::consumer_warpgroups - 1) PingPong<C>::pass(warpgroup);
    if constexpr (!V::plain || C::codes) begin_rows(softmax);
    skip_keys();
    skip_values();
    skip_turns();
    consumer_wait(smem.q_ring, i);
    await_keys(smem.k_ring, k);
    begin_scores(s);
    wgmma_wait<0>();
    finish_scores(s);
    masked_softmax(softmax, rescale, s);
    round_to_fragments<T>(probabilities, s);
  }
  // Goes on to the next work tile, and returns whether there is a next tile.
  LAB_DEVICE bool next_tile(OnlineSoftmax& softmax) {
    ++i;
    keys = receive(smem, i).keys[warpgroup];
    if (keys.count == 0) return false;
    if (!C::two_p_buffers) close_tile(softmax);
    skip_keys();
    consumer_wait(smem.q_ring, i);
    return true;
  }
  // Ends the softmax of the rows of the tile before i, and begins the softmax of tile i.
  LAB_DEVICE void close_tile(OnlineSoftmax& softmax) {
    const typename C::Work& work = smem.tile(i - 1).work;
    factor = store_sums<C, P>(softmax, p, work, row);
    if constexpr (C::codes) factor = factor * p.descales.of_values(work);
    begin_rows(softmax);
  }
  // Stores O of the tile before i, which is complete.
  LAB_DEVICE void finish_tile(const Sums& o) {
    const typename C::Work& work = smem.tile(i - 1).work;
    store_rows<C, P>(total(o), factor, p, work, row);
    if (work.live_splits > 1 && arrives_last(smem.is_last_split, p, work, ConsumerSync<C>{}, 128))
      merge_splits<P, C::consumer_warps, head_channels<C::dim_vo>>(p, work, thread_x() / 32 - 4);
    consumer_release(smem.tile_ring, i - 1);
  }
  LAB_DEVICE void end(OnlineSoftmax& softmax, Sums& o, const Fragments<C>& probabilities) {
    begin_output(o, probabilities);
    close_tile(softmax);
    finish_output(o);
    finish_tile(o);
    if (warpgroup == 0) PingPong<C>::wait(warpgroup);  // takes the last turn passed
  }
};

}  // namespace prefill_wgmma
