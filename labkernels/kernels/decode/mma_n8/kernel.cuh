// This paged decode uses the tensor cores with a query tile of 8 rows. mma.sync has no M = 8, but
// it has N = 8. The keys are therefore M and the queries N: S^T = K Q^T and O^T = V^T P^T. Up to 8
// query heads are padded to 8 rows and not to 16, and O^T takes half the accumulator registers of
// decode_mma; more query heads take two query tiles. The pipeline is the one of decode_mma. Of a
// fragment, lane 4 g + t holds keys (or channels) g and g + 8 of queries 2t and 2t + 1.
#pragma once
#include "lab/attention/split_kv.cuh"
#include "decode/codes.cuh"
#include "decode/pipeline.cuh"

namespace decode_mma_n8 {
using namespace lab;

template <class T_, int HeadDim, int QueryTiles, int Warps, int Keys, int Stages, int BlocksPerSm,
          class Variant_ = Plain, class Kv_ = T_, bool Blocks = false>
struct KernelTraits {
  using T = T_;    // type of Q, the rounded P, and K and V as the products use them
  using Kv = Kv_;  // type of K and V in the cache
  using Variant = Variant_;
  using Params = typename ParamsOfCache<T, Kv, Variant, Blocks>::type;
  static constexpr bool narrow = sizeof(Kv) < sizeof(T), blocks = Blocks;  // of keys have scales
  static constexpr int head_dim = HeadDim, warps = Warps, keys = Keys, stages = Stages;
  static constexpr int query_tiles = QueryTiles;  // of 8 queries
  static constexpr int rows = 8 * QueryTiles, threads = 32 * Warps, blocks_per_sm = BlocksPerSm;
  static constexpr int dim_steps = HeadDim / 16, key_steps = Keys / 16;
  // Q of 16 queries by 256 channels and the accumulator do not fit in the registers together.
  static constexpr bool q_in_registers = rows * HeadDim <= LAB_HELD_SIZE;
  using Pipeline = WarpPipeline<Kv, HeadDim, Keys, Warps, Stages, Blocks>;
  static_assert(HeadDim % 64 == 0 && Keys % 16 == 0, "ldmatrix moves 16 keys by 16 channels");
};

template <class C> struct Smem {
  alignas(16) typename C::T q[C::rows][C::head_dim];
  union {
    typename C::Pipeline::Buffers stages[C::warps];
    WarpStates<C::warps, C::rows, C::head_dim> states;
  };
};

template <class C> using KvTile = typename C::Kv[C::keys][C::head_dim];  // K or V of a step

// For query tile n, a lane has {m, l} of queries 8 n + 2t and 8 n + 2t + 1.
using Softmax = OnlineSoftmaxOf<AccumulatorColumns>;
template <class C> using Output = float[C::query_tiles][C::dim_steps][4];  // O^T: [D, rows]
template <class C> using Scores = float[C::query_tiles][C::key_steps][4];  // S^T: [keys, rows]
template <class C>  // Q^T: [head_dim, rows], or 32 channels of it
using QueryFragments = u32[C::query_tiles][C::q_in_registers ? C::dim_steps : 2][2];

// Loads Q^T as B fragments of steps d and d + 1: one ldmatrix brings 32 channels of 8 queries.
template <class C> LAB_DEVICE void load_q_fragments(QueryFragments<C>& q, Smem<C>& smem, int d) {
  const int lane = thread_x() & 31, held = C::q_in_registers ? d : 0;
#pragma unroll
  for (int n = 0; n < C::query_tiles; ++n) {
    u32 r[4];  // [32 channels, 8 queries]
    if constexpr (C::narrow) {
      const int row = n * 8 + lane / 4;
      const u32x2 low = four_channels(smem.q, row, d), high = four_channels(smem.q, row, d + 1);
      r[0] = low.v[0];
      r[1] = low.v[1];
      r[2] = high.v[0];
      r[3] = high.v[1];
    } else {
      ldmatrix_x4(r, chunk<C::head_dim>(smem.q, n * 8 + (lane & 7), d * 2 + (lane >> 3)));
    }
    q[n][held][0] = r[0];
    q[n][held][1] = r[1];
    q[n][held + 1][0] = r[2];
    q[n][held + 1][1] = r[3];
  }
}

// [lab: scores]
// Computes S^T = K Q^T: the 16 keys of step b are the rows of the tile, and 8 queries its columns.
template <class C>
LAB_DEVICE void scores(Scores<C>& s, QueryFragments<C>& q, Smem<C>& smem, KvTile<C>& k_tile) {
  const int lane = thread_x() & 31;
#pragma unroll
  for (int n = 0; n < C::query_tiles; ++n)
#pragma unroll
    for (int b = 0; b < C::key_steps; ++b)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][b][i] = 0.f;
  u32 codes[C::key_steps][4];  // [keys, 32 channels], if K has 8 bits
#pragma unroll
  for (int d = 0; d < C::dim_steps; ++d) {
    const int held = C::q_in_registers ? d : d % 2;
    if (!C::q_in_registers && held == 0) load_q_fragments<C>(q, smem, d);
#pragma unroll
    for (int b = 0; b < C::key_steps; ++b) {
      u32 k[4];  // [16 keys, 16 channels]
      if constexpr (C::narrow) load_narrow_k<typename C::T, 2>(k, codes[b], k_tile, b * 16, d);
      else ldmatrix_x4(k, chunk<C::head_dim>(k_tile, b * 16 + (lane & 15), d * 2 + (lane >> 4)));
#pragma unroll
      for (int n = 0; n < C::query_tiles; ++n)
        mma_m16n8k16<typename C::T>(s[n][b], k, q[n][held][0], q[n][held][1]);
    }
  }
}
// [/lab: scores]

// [lab: accumulate]
// Computes O^T += V^T P^T. In the accumulator of S^T, g counts the keys; in the B fragment of P^T,
// t counts them. movmatrix therefore transposes each 8x8 matrix of packed P.
template <class C, class P>
LAB_DEVICE void accumulate(Output<C>& output, const Scores<C>& s, KvTile<C>& v_tile) {
  using T = typename C::T;
  const int lane = thread_x() & 31;
#pragma unroll
  for (int b = 0; b < C::key_steps; ++b) {
    u32 p[C::query_tiles][P::p_parts][2];  // P^T: [16 keys, rows]
#pragma unroll
    for (int n = 0; n < C::query_tiles; ++n)
#pragma unroll
      for (int part = 0; part < P::p_parts; ++part)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float* pair = &s[n][b][2 * h];
          p[n][part][h] = movmatrix_trans(pack_part<T>(part, pair[0], pair[1]));
        }
    u32 codes[4];  // [16 keys, 32 channels], if V has 8 bits
#pragma unroll
    for (int d = 0; d < C::dim_steps; ++d) {  // (channels 0-7, 8-15) x (keys 0-7, 8-15)
      u32 v[4];                               // V^T: [16 channels, 16 keys]
      const int row = b * 16 + (lane & 7) + (lane >> 4) * 8;
      if constexpr (C::narrow) load_narrow_v<typename C::T, 1>(v, codes, v_tile, b * 16, d);
      else ldmatrix_x4_trans(v, chunk<C::head_dim>(v_tile, row, d * 2 + ((lane >> 3) & 1)));
#pragma unroll
      for (int n = 0; n < C::query_tiles; ++n) {
        float (&o)[4] = output[n][d];
        float fresh[4] = {};  // [16 channels, 8 queries]
#pragma unroll
        for (int part = 0; part < P::p_parts; ++part)
          mma_m16n8k16<T>(P::promoted ? fresh : o, v, p[n][part][0], p[n][part][1]);
        promote<P>(o, fresh);
      }
    }
  }
}
// [/lab: accumulate]

template <class C, class P>
LAB_KERNEL(C::threads, C::blocks_per_sm) decode(LAB_GRID_CONSTANT typename C::Params p) {
  static_assert(sizeof(Smem<C>) == LAB_SMEM_BYTES, "the ledger's bytes are the compiler's");
  using T = typename C::T;
  auto& smem = shared_memory<Smem<C>>();
  using V = typename C::Variant;
  const DecodeWork work = decode_work<C::rows, V>(p);
  if (work.split > 0 && work.first_key >= work.end_key) return;  // a split without keys

  typename C::Pipeline pipeline(smem.stages[thread_x() / 32], p, work);
  load_query<T, C::head_dim, C::rows, C::threads>(smem.q, p, work);
  pipeline.start();
  pipeline.wait_earlier_copies();
  sync_block();  // Q is loaded by all threads, for all warps
  QueryFragments<C> q;
  if constexpr (C::q_in_registers)
#pragma unroll
    for (int d = 0; d < C::dim_steps; d += 2) load_q_fragments<C>(q, smem, d);

  const auto& numbers = score_numbers<V>(p, work);
  Softmax softmax[C::query_tiles];
  Slope slopes[C::query_tiles][2] = {};
#pragma unroll
  for (int n = 0; n < C::query_tiles; ++n) begin_rows<V>(softmax[n], slopes[n], p, work, 8 * n);
  Output<C> o = {};
  for (; pipeline.more(); pipeline.advance()) {
    pipeline.prefetch();
    Scores<C> s;
    pipeline.wait_k();
    scores<C>(s, q, smem, pipeline.k());
#pragma unroll
    for (int n = 0; n < C::query_tiles; ++n) {
      if constexpr (C::blocks) scale_columns<AccumulatorColumns>(s[n], pipeline.k_scale());
      shape_scores<V, AccumulatorColumns>(s[n], numbers, slopes[n], pipeline.key);
      if (pipeline.ragged()) mask_columns<AccumulatorColumns>(s[n], work.end_key - pipeline.key);
      const auto rescale = softmax[n].template update<P, T>(s[n], scale_of<V>(numbers));
      rescale_rows(o[n], rescale);
      if constexpr (C::blocks) scale_columns<AccumulatorColumns>(s[n], pipeline.v_scale());
    }
    pipeline.wait_v();
    accumulate<C, P>(o, s, pipeline.v());
  }
  pipeline.finish();
#pragma unroll
  for (int n = 0; n < C::query_tiles; ++n)
    store_state<C::narrow>(smem.states, softmax[n], o[n], 8 * n);
  finish<P, C::threads>(smem.states, p, work);
}

}  // namespace decode_mma_n8
