// What prefill_wgmma's producer and consumers share: parameters, tile, shared memory, items.
#pragma once
#include "lab/prefill.cuh"
#include "lab/tma.cuh"
#include "lab/wgmma.cuh"

namespace prefill_wgmma {
using namespace lab;

// How far the boxes of a page, and of a KV head, lie from the next one's: a box's last coordinate.
struct PageSteps { int page, head; };

struct alignas(64) Params {
  TensorMap q, k, v;          // kernels/cuda_prefill_wgmma.py makes them
  PrefillParams problem;
  int* next_item;             // how many items were taken beside each block's first, zero at rest
  int items, blocks;          // of the work list; of the launch
  int tile_rows;              // those of a tile's rows that whole tokens fill
  int box_keys;               // of a box of a page; 0: its keys are copied
  PageSteps k_steps, v_steps;
};

// What runs beside a warpgroup's products: nothing; its own softmax; and, as the warpgroups take
// turns on the tensor cores, the softmax of another too.
enum class Overlap { none, within, between };

template <class T_, int Dqk, int Dvo, int Rows, int Keys, int Warps, int Stages, int BlocksPerSm,
          Overlap Overlap_, bool Paged>
struct Tile {
  using T = T_;                                  // of Q, K, V and the rounded P
  static constexpr int dim_qk = Dqk, dim_vo = Dvo, rows = Rows, keys = Keys, stages = Stages;
  static constexpr int threads = 32 * Warps, blocks_per_sm = BlocksPerSm;
  static constexpr int consumers = Warps / 4 - 1;           // warpgroups; one more produces
  static constexpr Overlap overlap = Overlap_;
  static constexpr bool paged = Paged;
  // Where it fits, the next item's Q comes while this one's is still read.
  static constexpr int q_bytes = Rows * Dqk * 2, kv_bytes = Stages * Keys * (Dqk + Dvo) * 2;
  static constexpr int q_stages = 2 * q_bytes + kv_bytes <= 226 * 1024 ? 2 : 1;
  // 64 Ki registers for all: what the producer gives up, the consumers get.
  static constexpr int producer_registers = consumers == 3 ? 32 : 40;
  static constexpr int consumer_registers = consumers == 3 ? 160 : 232;
  // Of O, the scores and two steps' P: where they fit, P is rounded beside the exponentials, and an
  // item's rows end beside its last products.
  static constexpr int fragments = Dvo / 2 + Keys / 2 + 2 * (Keys / 4), others = 32 + Dqk / 16;
  static constexpr bool is_roomy =
      overlap != Overlap::none && fragments + others <= consumer_registers;
  using Block = PrefillBlock<Rows>;
  static_assert(Rows == 64 * consumers, "a warpgroup takes 64 rows");
};

constexpr int channels = 64;                     // of a line: 128 bytes, what the swizzle spans
constexpr int octet = 8;                         // lines, over which the swizzle repeats

// How a tile of K or V lies in shared memory: lines of 64 channels of a key, an octet of keys, and
// then, ragged, the next keys' (a box is 64 channels of a tile), or, paged, the same keys' next
// channels (a box is all channels of a page's keys).
template <class C, int D> struct KeyTile {
  static constexpr int octet_elements = octet * channels;
  static constexpr int next_octet = C::paged ? D / channels * octet_elements : octet_elements;
  static constexpr int next_line = C::paged ? octet_elements : C::keys * channels;
  typename C::T at[C::keys * D];

  // The first lines of a key's octet; those of further channels are next_line elements on.
  LAB_DEVICE typename C::T (*octet_of(int key))[channels] {
    return reinterpret_cast<typename C::T(*)[channels]>(at + key / octet * next_octet);
  }
};

// What of an item a warpgroup has before it.
struct alignas(16) Ahead {
  int skipped;                // first steps, whose keys none of its rows sees
  int steps;                  // after them; none: no item is left
  int masked;                 // the first of these, whose keys not every row sees
  int cut;                    // 1: the last holds keys of the split before
};

// A tile of rows and its steps through the keys, from the last to the first. Steps begin at
// multiples of their keys, and so the boxes of a page: the first of a split may hold keys of the
// split before.
template <class C> struct Item {
  typename C::Block block;
  int last_key, steps;        // the first key of the last step
  Ahead ahead[C::consumers];
};

constexpr int item_stages = 4;                   // an item's slot is free when its rows are stored

template <class C> struct alignas(1024) Smem {
  typename C::T q[C::q_stages][C::dim_qk / channels][C::rows][channels];
  KeyTile<C, C::dim_qk> k[C::stages];
  KeyTile<C, C::dim_vo> v[C::stages];
  Barrier k_full[C::stages], k_empty[C::stages], v_full[C::stages], v_empty[C::stages];
  Barrier q_full[C::q_stages], q_empty[C::q_stages];
  Barrier item_full[item_stages], item_empty[item_stages], item_wanted, tail_full;
  Item<C> items[item_stages];
  float is_last;
};

// The n-th of what goes through a ring of `Stages`: its stage, and the parity of that stage's
// barriers' phase.
template <int Stages> LAB_DEVICE int stage_of(u32 n) { return n % Stages; }
template <int Stages> LAB_DEVICE int parity_of(u32 n) { return n / Stages & 1; }

// The i-th item.
template <class C> LAB_DEVICE const Item<C>& receive(Smem<C>& smem, int i) {
  const int at = stage_of<item_stages>(i);
  barrier_wait(smem.item_full[at], parity_of<item_stages>(i));
  return smem.items[at];
}

// A warp is done with what the barrier guards.
LAB_DEVICE void release(Barrier& b) {
  sync_warp();
  if ((thread_x() & 31) == 0) barrier_arrive(b);
}

}  // namespace prefill_wgmma
