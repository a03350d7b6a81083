// All warpgroups of mla_wgmma use these parameters, traits and shared memory.
#pragma once
#include "lab/hopper/pipeline.cuh"
#include "lab/hopper/tile.cuh"
#include "mla/pipeline.cuh"

namespace mla_wgmma {
using namespace lab;

// kernels/mla/wgmma/launch.py mirrors this struct.
struct alignas(64) Params {
  TensorMap ckv_map, kpe_map;
  MlaParams mla;
  int box_keys;   // keys of the maps' boxes, or 0 without maps
  int box_shift;  // box_keys is 2^box_shift
};

template <class T_, int Dqk, int Dv, int Rows, int Keys, int Warps, int Stages, int BlocksPerSm>
struct KernelTraits {
  using T = T_;  // type of Q, K, V and the rounded P
  static constexpr int rows = Rows, keys = Keys, stages = Stages, blocks_per_sm = BlocksPerSm;
  static constexpr int threads = 32 * Warps, group_threads = 128;
  static constexpr int consumer_threads = 2 * group_threads;
  static constexpr int d_v = Dv, half_v = Dv / 2;  // channels of O; those that a warpgroup has
  using Q = SwizzledTile<T, Rows, Dqk>;
  using Half = SwizzledTile<T, Keys, Dv / 2, NextAtom::beside>;
  using Pe = SwizzledTile<T, Keys, Dqk - Dv>;  // kpe, and then P: [64 rows, keys]
  static_assert(Rows == 64 && Keys == 64, "a warpgroup's wgmma has 64 rows; P takes kpe's place");
  static_assert(Stages == 2, "a warpgroup's key blocks are all in its own stage");
  static_assert(Warps == 12 && Dv == 512 && Dqk == Dv + 64, "of O a thread has 128 numbers");
};

template <class C> struct Stage {
  typename C::Half half[2];  // of V's channels
  typename C::Pe pe;         // kpe, and then P
};
template <class C> struct Smem {
  typename C::Q q;
  union {
    Stage<C> k[C::stages];
    // At the end the rows of O pass through these arrays to global memory, in 16 bits or in fp32.
    typename C::T out[8][16][C::half_v];
    float o[8][16][C::half_v + 2 * state_padding];  // [8 warps, 16 rows, half_v]
  };
  float m[2][C::rows], l[2][C::rows];  // of each warpgroup
  // Each half of V's channels has a ring. The warpgroup of the same number has this half of O, and
  // it alone releases the ring's stages. kpe comes with the half that the key block's own warpgroup
  // does not have.
  Pipeline<C::stages> half_ring[2];
};

using Work = WorkTile<64>;
template <class C> LAB_DEVICE int key_blocks(const Work& work) {
  return (work.end_key - work.first_key + C::keys - 1) / C::keys;
}

// With the TMA, one warp asks for all boxes. Without it, each of four warps copies a quarter.
template <class C> LAB_DEVICE int producer_warps(const Params& p) {
  return p.box_keys > 0 ? 1 : C::group_threads / 32;
}

// These are the named barriers; each warpgroup has its own of the first two kinds.
constexpr int p_ready = 1, group_done = 3, consumers_done = 5;

}  // namespace mla_wgmma
