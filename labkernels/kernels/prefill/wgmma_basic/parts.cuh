// What all rungs of prefill_wgmma_basic share: parameters, traits, shared memory, the warp that
// loads, the mask, and how rows leave.
#pragma once
#include "lab/attention/online_softmax.cuh"
#include "lab/hopper/pipeline.cuh"
#include "lab/hopper/tile.cuh"
#include "packed_gqa/rows.cuh"

namespace prefill_wgmma_basic {
using namespace lab;

struct alignas(64) Params {   // kernels/prefill/wgmma_basic/launch.py mirrors it
  TensorMap q, k, v;
  PrefillParams problem;
  int work_tiles, blocks;     // of the work list; of the launch
  int tile_rows;              // those of a tile's rows that whole tokens fill
};

// The rungs of the ladder that this kernel can be compiled as: each has one idea more than the rung
// before it.
enum class Rung { fma, mma, tma, wgmma, within, between, persistent, ahead };

template <class T_, int Dqk, int Dvo, int Rows, int Keys, int Warps, int Stages, int BlocksPerSm,
          Rung Rung_, bool Paged>
struct KernelTraits {
  using T = T_;                                  // of Q, K, V and the rounded P
  static constexpr int dim_qk = Dqk, dim_vo = Dvo, rows = Rows, keys = Keys, stages = Stages;
  static constexpr int threads = 32 * Warps, blocks_per_sm = BlocksPerSm;
  static constexpr int consumer_warpgroups = Warps / 4 - 1;  // one more loads
  static constexpr Rung rung = Rung_;
  using Work = WorkTile<Rows>;
  using Q = SwizzledTile<T, Rows, Dqk>;
  using K = SwizzledTile<T, Keys, Dqk>;
  using V = SwizzledTile<T, Keys, Dvo>;
  // A thread's parts of what a warpgroup has in registers.
  using Output = float[Dvo / 2];                 // O: [64 rows, dim_vo]
  using Scores = float[Keys / 2];                // S, then P: [64 rows, keys of a block]
  using Fragments = u32[Keys / 16][4];           // P in 16 bits: [64 rows, keys of a block]
  static_assert(Rows == 64 * consumer_warpgroups, "a warpgroup takes 64 rows");
  static_assert(!Paged, "ragged K and V alone");
};

template <class C> struct Smem {
  typename C::Q q;
  typename C::K k[C::stages];
  typename C::V v[C::stages];
  Pipeline<1> q_ring;
  Pipeline<C::stages> k_ring, v_ring;
  Mbarrier tail_full;
  float is_last_split;
};

// The progress of a warp: work tiles, blocks of keys, and blocks that end a request.
struct Progress { u32 tiles = 0, blocks = 0, tails = 0; };

// This lane's first row of the tile; the other one is 8 further.
LAB_DEVICE int lane_row(int warpgroup) {
  return warpgroup * 64 + thread_x() / 32 % 4 * 16 + (thread_x() & 31) / 4;
}

// The blocks of keys of a work tile, from the last to the first, which begin at multiples of their
// keys: the first of a split may hold keys of the split before.
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

// [rung: tma]
// Asks for a tile of K or V as soon as its stage is free. full: the barrier of its bytes.
template <class Tile, class Ring>
LAB_DEVICE void load(Tile& tile, Ring& ring, u32 n, Mbarrier& full, const TensorMap& map, int head,
                     i64 token) {
  producer_acquire(ring, n);
  mbarrier_arrive_expect_tx(full, sizeof(Tile));
  load_boxes(tile, map, full, head, token);
}

// The warp that loads. Rows of V after the request's last key belong to another request. They must
// be zero, because P is 0 there and 0 times NaN is NaN.
template <class C>
LAB_DEVICE void produce(Smem<C>& smem, const Params& p, const typename C::Work& tile,
                        Progress& at) {
  const int lane = thread_x() & 31, group = p.problem.group;
  producer_acquire(smem.q_ring, at.tiles);
  if (lane == 0) {
    mbarrier_arrive_expect_tx(smem.q_ring.full[0], p.tile_rows * C::dim_qk * 2);
    load_boxes(smem.q, p.q, smem.q_ring.full[0], tile.kv_head * group,
               tile.first_token + tile.first_row / group);
  }
  ++at.tiles;
  for (KeyBlocks<C> keys(p.problem, tile); keys.more(); keys.next(), ++at.blocks) {
    const u32 n = at.blocks;
    const int stage = n % C::stages;
    const i64 token = tile.first_kv + keys.key;
    const bool is_tail = keys.key + C::keys > tile.kv_len;
    Mbarrier& v_full = smem.v_ring.full[stage];
    if (lane == 0) {
      load(smem.k[stage], smem.k_ring, n, smem.k_ring.full[stage], p.k, tile.kv_head, token);
      load(smem.v[stage], smem.v_ring, n, is_tail ? smem.tail_full : v_full, p.v, tile.kv_head,
           token);
    }
    sync_warp();
    if (!is_tail) continue;
    mbarrier_wait(smem.tail_full, at.tails++ & 1);
    clear_rows(smem.v[stage], tile.kv_len - keys.key, lane, 32);
    fence_async_shared();
    warp_arrive(v_full);
  }
}
// [/rung: tma]

// Masks the keys that a row does not see. Only blocks at a boundary come here.
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

// The named barriers of the consumers: a warpgroup's turn, and one of all.
template <class C> constexpr int consumers_done = 1 + C::consumer_warpgroups;
template <class C> struct ConsumerSync {
  LAB_DEVICE void operator()() const {
    named_sync(consumers_done<C>, 128 * C::consumer_warpgroups);
  }
};

}  // namespace prefill_wgmma_basic
