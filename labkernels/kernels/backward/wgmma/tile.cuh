// The warps of backward_wgmma share these parameters, traits, shared memory and places.
#pragma once
#include "backward/key_block.cuh"
#include "backward/overlap.cuh"
#include "lab/attention/online_softmax.cuh"
#include "lab/hopper/pipeline.cuh"
#include "lab/hopper/tile.cuh"

namespace backward_wgmma {
using namespace lab;

template <class V> struct alignas(64) ParamsWith {
  TensorMap q, dout, k, v;  // boxes of tile rows by one head by 64 channels
  ParamsOf<BackwardParams, V> problem;
  int* dq_semaphores;  // [q_heads, padded_rows / LAB_TURN_ROWS, LAB_TURN_PARTS], if ordered
  const BackwardWork* cleared;  // tiles of rows for which blocks clear dq_accum
  const int* first_cleared;     // [blocks + 1]: a block clears the tiles from its own to the next
};
using Params = ParamsWith<Plain>;

template <class T_, int D, int Dv, int Rows, int Keys, int Warps, int Stages, int BlocksPerSm,
          bool Ordered, class Variant_ = Plain>
struct KernelTraits {
  using T = T_;
  using Variant = Variant_;
  using Params = ParamsWith<Variant>;
  static constexpr int dim = D, dim_v = Dv, rows = Rows, keys = Keys, stages = Stages;
  static constexpr int threads = 32 * Warps, blocks_per_sm = BlocksPerSm;
  static constexpr bool ordered = Ordered;
  // The two warpgroups share the block's work in this way.
  static constexpr bool split_keys = Keys == 128, split_rows_of_dq = Rows == 128;
  static constexpr int own_rows = split_keys ? Rows : Rows / 2;  // of S and dP
  static constexpr int own_dim = split_keys ? D : D / 2;         // of dK
  static constexpr int own_dim_v = split_keys ? Dv : Dv / 2;     // of dV
  static constexpr int own_dim_of_dq = split_rows_of_dq ? D : D / 2;
  static constexpr int handed = split_keys ? 1 : 2;  // dS^T, and P^T
  // Beside dK and dV of so many channels, registers have no room for S of all rows.
  static constexpr bool wide = split_keys && D + Dv > LAB_MOST_CHANNELS;
  // dP is computed for this many rows at a time, since registers have no room for more.
  static constexpr int most_at_once = wide ? LAB_WIDE_ROWS : 64;
  static constexpr int rows_at_once = own_rows < most_at_once ? own_rows : most_at_once;
  static constexpr int halves = own_rows / rows_at_once;
  // A warpgroup's V stays in registers, if they have room for it: dP then reads one tile of shared
  // memory, not two.
  static constexpr bool v_in_registers = split_keys && D == 64 && !Variant::soft_cap;
  // dQ of the step before is computed beside the second half of the scores, or after them.
  static constexpr bool dq_beside_scores = halves == 2 && !wide;
  // dQ passes through shared memory, 64 channels at a time, if there is room for it. Of three times
  // 64 channels, each warpgroup has 64 and half of the last, which is the rest.
  static constexpr bool stages_dq = split_keys || Ordered;
  static constexpr int dq_parts = own_dim_of_dq / 64, dq_rest = own_dim_of_dq % 64;
  static constexpr int dout_stages =  // as memory allows
      wide || (!split_keys && stages_dq) ? 1 : Stages;
  static_assert(Warps == 12 && BlocksPerSm == 1, "a warpgroup that loads, two that compute");
  static_assert((Keys == 64 || Keys == 128) && (Rows == 64 || Rows == 128));
  static_assert(split_keys || !split_rows_of_dq);
  static_assert(dq_parts == 1 || dq_parts == 2, "two threads add the parts in turn");
  static_assert(dq_rest == 0 || (wide && dq_rest == 32 && dq_parts == 1));
  static constexpr int rows_of_s = wide ? rows_at_once : own_rows;
  using Scores = float[rows_of_s / 2];          // S^T: [64 keys, rows_of_s]
  using HalfScores = float[rows_at_once / 2];   // dP^T: [64 keys, rows_at_once]
  using Fragments = u32[rows_at_once / 16][4];  // P^T: [64 keys, rows_at_once]
  using RowPairs = f32x2[rows_at_once / 8];     // what a lane needs of the rows' lse2
  using ValueFragments = u32[Dv / 16][4];       // V: [64 keys, Dv]
  using DkSum = float[own_dim / 2];             // dK: [64 keys, own_dim]
  using DvSum = float[own_dim_v / 2];           // dV: [64 keys, own_dim_v]
  using DqSum = float[32 * dq_parts];           // dQ: [64 rows, 64 dq_parts]
  using RestSum = float[dq_rest > 0 ? 16 : 1];  // dQ: [64 rows, dq_rest]
  using Keyed = SwizzledTile<T_, Keys, D>;      // K
  using KeyedV = SwizzledTile<T_, Keys, Dv>;    // V
  using Rowed = SwizzledTile<T_, Rows, D>;      // Q
  using RowedV = SwizzledTile<T_, Rows, Dv>;    // dO
  using Handed = SwizzledTile<T_, Keys, Rows>;  // dS^T, P^T
};

constexpr int consumer_warps = LAB_CONSUMER_WARPS, consumer_threads = 32 * consumer_warps;
constexpr int all_consumers = 1, dq_is_sent = 2;  // named barriers

// The consumers pass dQ on through here, by warpgroup and warp.
template <int Channels> struct DqStages { alignas(1024) float dq[2][4][16 * Channels]; };
template <> struct DqStages<0> {};

template <class C> struct Smem : DqStages<C::stages_dq ? 64 + C::dq_rest : 0> {
  typename C::Keyed k;
  typename C::KeyedV v;
  typename C::Rowed q[C::stages];
  typename C::RowedV dout[C::dout_stages];
  typename C::Handed handed[2][C::handed];  // dS^T, then P^T; by the parity of the step
  alignas(16) float lse2[C::stages][C::rows], delta[C::dout_stages][C::rows];
  Mbarrier kv_full, ds_full;           // dS of a step, if dQ is computed a step later
  Pipeline<C::stages> q_ring;          // with the rows' lse2
  Pipeline<C::dout_stages> dout_ring;  // with the rows' delta
  Pipeline<2> dq_ring;                 // uses of the one stage of dQ, by two threads in turn
};

// These numbers say where a consumer thread is.
struct Place {
  int thread, lane, warp, group;  // thread: among all consumers; warp: of the warpgroup
  LAB_DEVICE Place()
      : thread(thread_x() - 128), lane(thread & 31), warp(thread / 32 & 3),
        group(warp_uniform(thread / 128)) {}
};

}  // namespace backward_wgmma
