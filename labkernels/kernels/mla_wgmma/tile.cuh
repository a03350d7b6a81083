// The parameter, the tile and the shared memory of mla_wgmma, which all its warpgroups know.
#pragma once
#include "lab/mla.cuh"
#include "lab/tma.cuh"
#include "lab/wgmma.cuh"

namespace mla_wgmma {
using namespace lab;

// kernels/mla_wgmma/run.py mirrors it.
struct alignas(64) Params {
  TensorMap ckv_map, kpe_map;
  MlaParams mla;
  int box_keys;                        // of the maps' boxes; 0: there are no maps
  int box_shift;                       // box_keys is 2^box_shift
};

template <class T_, int Dqk, int Dv, int Rows, int Keys, int Warps, int Stages, int BlocksPerSm>
struct Tile {
  using T = T_;                        // of Q, K, V and the rounded P
  static constexpr int rows = Rows, keys = Keys, stages = Stages, blocks_per_sm = BlocksPerSm;
  static constexpr int threads = 32 * Warps, group_threads = 128, consumers = 2 * group_threads;
  static constexpr int width = 64;     // channels of a line: 128 bytes, which the swizzle is of
  static constexpr int d_v = Dv, lines = Dqk / width, half_lines = Dv / 2 / width;
  static constexpr int steps = Keys / 16;  // of wgmma through the keys of P V
  static_assert(Rows == 64 && Keys == 64, "a warpgroup's wgmma has 64 rows; P takes kpe's place");
  static_assert(Stages == 2, "a warpgroup's key blocks are all in its own stage");
  static_assert(Warps == 12 && Dv == 512 && Dqk == Dv + width, "of O a thread has 128 numbers");
};

// Eight keys' (or queries') lines of 64 channels: what the swizzle repeats after.
template <class C> using Atom = typename C::T[8][C::width];
template <class C> struct Stage {
  Atom<C> half[2][C::keys / 8][C::half_lines];  // of V's channels
  Atom<C> pe[C::keys / 8];                      // and then P
};
template <class C> struct Smem {
  alignas(1024) Atom<C> q[C::lines][C::rows / 8];
  union {
    Stage<C> k[C::stages];
    typename C::T out[8][16][C::d_v / 2];                   // in the end, by warps: out,
    float o[8][16][C::d_v / 2 + 2 * state_padding];         // or the partial State's o
  };
  float m[2][C::rows], l[2][C::rows];           // of each warpgroup
  // Of a stage: part 0, the half that its own warpgroup has of O, is there; the rest is there.
  Barrier full[C::stages][2];
  Barrier empty[C::stages][2];                  // the warpgroup that has this half of O has read it
};

template <class C> using Block = PrefillBlock<C::rows>;
template <class C> LAB_DEVICE int key_blocks(const Block<C>& b) {
  return (b.end_key - b.first_key + C::keys - 1) / C::keys;
}

// The TMA is asked by one warp; of copies, each of four brings a quarter.
template <class C> LAB_DEVICE int producer_warps(const Params& p) {
  return p.box_keys > 0 ? 1 : C::group_threads / 32;
}

// The named barriers; each warpgroup has its own of the first two kinds.
constexpr int p_ready = 1, group_done = 3, consumers_done = 5;
template <class C> struct ConsumersSync {
  LAB_DEVICE void operator()() const { named_sync(consumers_done, C::consumers); }
};

}  // namespace mla_wgmma
