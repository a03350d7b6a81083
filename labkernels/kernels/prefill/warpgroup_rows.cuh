// A warpgroup has 64 rows of a work tile. This file has the blocks of keys that they see, their
// mask and their store. A thread holds rows g and g + 8 of its warp's 16, and columns 2t and 2t + 1
// of each 8, where g = lane / 4 and t = lane % 4.
#pragma once
#include "lab/attention/online_softmax.cuh"
#include "lab/hopper/mbarrier.cuh"
#include "packed_gqa/rows.cuh"

namespace lab {

// Returns this lane's first row of the tile; the lane's other row is 8 rows further.
LAB_DEVICE int lane_row(int warpgroup) {
  return warpgroup * 64 + thread_x() / 32 % 4 * 16 + (thread_x() & 31) / 4;
}

// KeyBlocks goes through the blocks of keys of a work tile, from the last to the first. A block
// begins at a multiple of C::keys, so that the first block of a split may hold keys of the split
// before.
template <class C> struct KeyBlocks {
  int key, first, seen_by_all;
  LAB_DEVICE KeyBlocks(const PrefillParams& p, const typename C::Work& tile)
      : key((tile.end_key - 1) / C::keys * C::keys), first(tile.first_key),
        seen_by_all(least(row_limit(p, tile, 0), tile.end_key)) {
    if (tile.end_key <= tile.first_key) key = -C::keys;
  }
  LAB_DEVICE bool more() const { return key >= 0 && key + C::keys > first; }
  LAB_DEVICE void next() { key -= C::keys; }
  LAB_DEVICE bool masked() const { return key + C::keys > seen_by_all || key < first; }
};

// Sets the scores of the keys that a row does not see to -inf. Only blocks at a boundary need this.
// s: [64 rows of the warpgroup, keys of a block].
template <class C, int N>
LAB_DEVICE void mask(float (&s)[N], const PrefillParams& p, const typename C::Work& tile, int row,
                     int key) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int column = key + (thread_x() & 3) * 2, begin = tile.first_key - column;
    const int end = least(row_limit(p, tile, row + 8 * r), tile.end_key) - column;
#pragma unroll
    for (int j = 0; j < N / 4; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (j * 8 + i >= end || j * 8 + i < begin) s[4 * j + 2 * r + i] = minus_infinity();
  }
}

// Writes out and lse2, or the split's partial {m, l, o}. o: [64 rows of the warpgroup, dim_vo].
template <class C, class P, int N>
LAB_DEVICE void store_rows(const float (&o)[N], OnlineSoftmax& softmax, const PrefillParams& p,
                           const typename C::Work& tile, int row) {
  const int t = thread_x() & 3;
  const bool whole = tile.live_splits <= 1;
  auto* out = static_cast<typename P::Out*>(p.out);
  softmax.reduce();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (row + 8 * r >= tile.n_rows) continue;
    const i64 head = head_index(p, tile, row + 8 * r), slot = head * p.splits + tile.split;
    const auto [inverse_l, lse2] = softmax.finalize(r);
    if (t == 0 && whole) store_global(p.lse2 + head, lse2);
    if (t == 0 && !whole) store_partial(p, slot, softmax.m[r], softmax.l[r]);
#pragma unroll
    for (int n = 0; n < N / 4; ++n) {
      const float x = o[4 * n + 2 * r], y = o[4 * n + 2 * r + 1];
      const int dim = n * 8 + 2 * t;
      if (whole) store2(out + head * C::dim_vo + dim, x * inverse_l, y * inverse_l);
      else store2(p.partial_o + slot * C::dim_vo + dim, x, y);
    }
  }
}

// Named barrier 1 + w gives consumer warpgroup w its turn; all consumers meet at the next barrier.
template <class C> constexpr int consumers_done = 1 + C::consumer_warpgroups;
template <class C> struct ConsumerSync {
  LAB_DEVICE void operator()() const {
    named_sync(consumers_done<C>, 128 * C::consumer_warpgroups);
  }
};

// Ends a work tile: stores the rows; the last block of the tile's splits merges the splits. o: [64
// rows of the warpgroup, dim_vo].
template <class C, class P, int N>
LAB_DEVICE void finish_rows(const float (&o)[N], OnlineSoftmax& softmax, const PrefillParams& p,
                            const typename C::Work& tile, int row, float& is_last_split) {
  store_rows<C, P>(o, softmax, p, tile, row);
  if (tile.live_splits > 1 && arrives_last(is_last_split, p, tile, ConsumerSync<C>{}, 128))
    merge_splits<P, 4 * C::consumer_warpgroups, C::dim_vo>(p, tile, thread_x() / 32 - 4);
}

}  // namespace lab
