// The producers and consumers of prefill_wgmma share these parameters, traits, memory and work
// tiles.
#pragma once
#include "lab/hopper/pipeline.cuh"
#include "lab/hopper/tile.cuh"
#include "packed_gqa/rows.cuh"

namespace prefill_wgmma {
using namespace lab;

// These are the distances, in a box's last coordinate, between the boxes of neighbouring pages and
// of neighbouring KV heads.
struct PageSteps { int page, head; };

template <class Problem> struct alignas(64) ParamsOver {
  TensorMap q, k, v;  // kernels/prefill/wgmma/launch.py makes them
  Problem problem;
  int* next_work_tile;     // tiles taken after each block's first; 0 between launches
  int work_tiles, blocks;  // of the work list; of the grid
  int tile_rows;           // rows of a tile that whole tokens fill
  int box_keys;            // keys of a page's box; 0: warps copy the keys
  PageSteps k_steps, v_steps;
};
template <class V> using ParamsWith = ParamsOver<ParamsOf<PrefillParams, V>>;
using Params = ParamsWith<Plain>;

// This says what runs while a warpgroup's products run: nothing (none), its own softmax
// (intra_warpgroup), or another warpgroup's too, since they take turns (inter_warpgroup:
// ping-pong).
enum class Overlap { none, intra_warpgroup, inter_warpgroup };

template <class T_, int Dqk, int Dvo, int Rows, int Keys, int Warps, int Stages, int BlocksPerSm,
          Overlap Overlap_, bool Paged, class Variant_ = Plain>
struct KernelTraits {
  using T = T_;  // of Q, K, V and the rounded P
  using Variant = Variant_;
  using Params = ParamsWith<Variant>;
  using Problem = ParamsOf<PrefillParams, Variant>;
  static constexpr int dim_qk = Dqk, dim_vo = Dvo, rows = Rows, keys = Keys, stages = Stages;
  static constexpr int threads = 32 * Warps, blocks_per_sm = BlocksPerSm;
  static constexpr int consumer_warpgroups = Warps / 4 - 1;  // the other one produces
  static constexpr int consumer_warps = 4 * consumer_warpgroups;
  static constexpr Overlap overlap = Overlap_;
  static constexpr bool paged = Paged;
  using Rounded = T;                              // of P
  static constexpr bool codes = false;            // Q, K and V have 16 bits,
  static constexpr bool v_is_transposed = false;  // and V is [keys, channels]
  // If shared memory has room, the next work tile's Q is loaded while this tile's Q is still read.
  static constexpr int q_bytes = Rows * Dqk * 2, kv_bytes = Stages * Keys * (Dqk + Dvo) * 2;
  static constexpr int q_stages = 2 * q_bytes + kv_bytes <= LAB_Q_TWICE_BYTES ? 2 : 1;
  // A block's threads share 64 Ki registers: the consumers get those that the producers give up.
  static constexpr int producer_registers = consumer_warpgroups == 3 ? 32 : 40;
  static constexpr int consumer_registers = LAB_CONSUMER_REGISTERS;
  // These registers hold O, the scores and two blocks' P. If they fit, P is rounded beside the
  // exponentials, and a work tile's m and l are stored beside its last products.
  static constexpr int fragments = Dvo / 2 + Keys / 2 + 2 * (Keys / 4);
  static constexpr int others = LAB_OTHER_REGISTERS + Dqk / 16;
  static constexpr bool two_p_buffers =
      overlap != Overlap::none && fragments + others <= consumer_registers && !Variant::by_distance;
  // A TMA box of ragged K and V has 64 channels of a tile's keys; a box of a page has all channels.
  static constexpr NextAtom next = Paged ? NextAtom::beside : NextAtom::below;
  using Q = SwizzledTile<T, Rows, Dqk>;
  using K = SwizzledTile<T, Keys, Dqk, next>;
  using V = SwizzledTile<T, Keys, Dvo, next>;
  using Work = WorkTile<Rows>;
  static_assert(Rows == 64 * consumer_warpgroups, "a warpgroup takes 64 rows");
};

// A warpgroup goes through these blocks of keys of a work tile, from the last to the first.
struct alignas(16) KeyBlocks {
  int skipped;        // how many it skips first, because none of its rows sees them
  int count;          // how many follow; 0 says that no work tile is left
  int masked;         // how many of these, the first, hold keys that some row does not see
  int partial_first;  // how many, the last, hold keys of the split before or before a row's window
};

// Warpgroups get a tile of rows from the tile scheduler in this form. A block of keys begins at a
// multiple of C::keys, and the box of a page begins at a multiple of box_keys, so that the first
// block of a split may hold keys of the split before.
template <class C> struct ScheduledTile {
  typename C::Work work;
  int last_key, blocks;  // the first key of the last block; how many blocks
  KeyBlocks keys[C::consumer_warpgroups];
};

constexpr int tile_stages = LAB_TILE_STAGES;  // a stage is free when the tile's rows are stored

template <class C> struct alignas(1024) Smem {
  typename C::Q q[C::q_stages];
  typename C::K k[C::stages];
  typename C::V v[C::stages];
  Pipeline<C::stages> k_ring, v_ring;
  Pipeline<C::q_stages> q_ring;
  Pipeline<tile_stages> tile_ring;
  Mbarrier tile_wanted, tail_full;
  ScheduledTile<C> tiles[tile_stages];
  float is_last_split;

  LAB_DEVICE const ScheduledTile<C>& tile(int i) const { return tiles[i % u32{tile_stages}]; }
};

// Waits for the i-th work tile, and returns it.
template <class C> LAB_DEVICE const ScheduledTile<C>& receive(Smem<C>& smem, int i) {
  consumer_wait(smem.tile_ring, i);
  return smem.tile(i);
}

}  // namespace prefill_wgmma
