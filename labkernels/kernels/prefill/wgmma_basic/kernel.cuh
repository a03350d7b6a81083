// This prefill uses wgmma and the TMA without overlap, for ragged K and V alone: a warp loads,
// warpgroups multiply, and a block takes one tile. prefill/wgmma has the same parts, with the ideas
// that make them fast; prefill/rungs has the rungs of the ladder below this kernel and above it.
#pragma once
#include "lab/hopper/pipeline.cuh"
#include "lab/hopper/tile.cuh"
#include "prefill/warpgroup_rows.cuh"

namespace prefill_wgmma_basic {
using namespace lab;

struct alignas(64) Params {  // kernels/prefill/wgmma_basic/launch.py mirrors this
  TensorMap q, k, v;
  PrefillParams problem;
  int work_tiles, blocks;  // of the work list; of the grid
  int tile_rows;           // rows of a tile that whole tokens fill
};

template <class T_, int Dqk, int Dvo, int Rows, int Keys, int Warps, int Stages, int BlocksPerSm,
          KeyOrder Order, bool Paged>
struct KernelTraits {
  using T = T_;  // of Q, K, V and the rounded P
  static constexpr int dim_qk = Dqk, dim_vo = Dvo, rows = Rows, keys = Keys, stages = Stages;
  static constexpr int threads = 32 * Warps, blocks_per_sm = BlocksPerSm;
  static constexpr int consumer_warpgroups = Warps / 4 - 1;  // the other one loads
  using Work = WorkTile<Rows>;
  using Q = SwizzledTile<T, Rows, Dqk>;
  using K = SwizzledTile<T, Keys, Dqk>;
  using V = SwizzledTile<T, Keys, Dvo>;
  // These are a thread's parts of what a warpgroup has in registers.
  using Output = float[Dvo / 2];        // O: [64 rows, dim_vo]
  using Scores = float[Keys / 2];       // S, then P: [64 rows, keys of a block]
  using Fragments = u32[Keys / 16][4];  // P in 16 bits: [64 rows, keys of a block]
  static_assert(Rows == 64 * consumer_warpgroups, "a warpgroup takes 64 rows");
  static_assert(Order == KeyOrder::descending && !Paged, "ragged K and V, the last keys first");
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

// A warp counts the work tiles, the blocks of keys, and the blocks that end a request.
struct Progress { u32 tiles = 0, blocks = 0, tails = 0; };

// [rung: tma]
// Asks for a tile of K or V as soon as its stage is free. full: the barrier that counts its bytes.
template <class Tile, class Ring>
LAB_DEVICE void load(Tile& tile, Ring& ring, u32 n, Mbarrier& full, const TensorMap& map, int head,
                     i64 token) {
  producer_acquire(ring, n);
  mbarrier_arrive_expect_tx(full, sizeof(Tile));
  load_boxes(tile, map, full, head, token);
}

// One warp loads. Rows of V after the request's last key belong to another request. They must be
// zero, because P is 0 there and 0 times NaN is NaN.
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

// [rung: wgmma]
// A consumer warpgroup computes attention for 64 rows of the tile, key block by key block.
template <class C, class P>
LAB_DEVICE void consume(Smem<C>& smem, const PrefillParams& p, const typename C::Work& tile,
                        Progress& at) {
  using T = typename C::T;
  const int warpgroup = warp_uniform(thread_x() / 128) - 1, row = lane_row(warpgroup);
  OnlineSoftmax softmax;  // {m, l} of rows `row` and `row` + 8
  typename C::Output o = {};
  consumer_wait(smem.q_ring, at.tiles);
  for (KeyBlocks<C> keys(p, tile); keys.more(); keys.next(), ++at.blocks) {
    const u32 n = at.blocks;  // both rings are equally deep here
    typename C::Scores s;     // S = Q K^T
    consumer_wait(smem.k_ring, n);
    wgmma_abt(s, smem.q, warpgroup * 64, smem.k[n % C::stages]);
    wgmma_wait(s);
    consumer_release(smem.k_ring, n);
    if (keys.masked()) mask<C>(s, p, tile, row, keys.key);
    const Rescale rescale = softmax.update<P, T>(s, p.scale_log2);  // S becomes P, {m, l} follow
    rescale_rows(o, rescale);
    typename C::Fragments probabilities;
    round_to_fragments<T>(probabilities, s);
    consumer_wait(smem.v_ring, n);  // O += P V
    wgmma_ab(o, probabilities, smem.v[n % C::stages]);
    wgmma_wait(o);
    consumer_release(smem.v_ring, n);
  }
  consumer_release(smem.q_ring, at.tiles++);
  finish_rows<C, P>(o, softmax, p, tile, row, smem.is_last_split);
}
// [/rung: wgmma]

// [rung: one tile]
// A block takes the one work tile that has its number.
template <class C, class Work> LAB_DEVICE void each_tile(const Params& p, Work work) {
  const auto tile = work_tile<C::rows, false>(p.problem, block_x(), p.tile_rows);
  if (!is_idle(tile)) work(tile);
}
// [/rung: one tile]

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
  // Rows that no whole token fills are never loaded, so they are cleared once.
  clear_rows(smem.q, p.tile_rows, thread_x(), C::threads);
  fence_async_shared();
  sync_block();  // every warp sees the initialized barriers
  using Work = typename C::Work;
  Progress at;
  const auto load = [&](const Work& tile) { produce<C>(smem, p, tile, at); };
  const auto compute = [&](const Work& tile) { consume<C, P>(smem, p.problem, tile, at); };
  const int warp = warp_uniform(thread_x() / 32);
  if (warp < 4) {
    setmaxnreg_dec<40>();
    if (warp == 0) each_tile<C>(p, load);
  } else {
    setmaxnreg_inc<LAB_CONSUMER_REGISTERS>();
    each_tile<C>(p, compute);
  }
}

}  // namespace prefill_wgmma_basic
