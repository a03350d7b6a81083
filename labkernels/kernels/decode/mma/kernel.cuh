// This paged decode uses the tensor cores: the query heads of one KV head are the rows of a 16-row
// mma tile. A warp takes `Keys` keys per step through its private shared-memory stages, so that no
// warp waits for another in the loop; the warps' States merge once, at the end. Of a fragment, lane
// 4 g + t holds rows g and g + 8, and columns 2t and 2t + 1 of each 8.
#pragma once
#include "lab/attention/split_kv.cuh"
#include "decode/codes.cuh"
#include "decode/pipeline.cuh"

namespace decode_mma {
using namespace lab;

template <class T_, int HeadDim, int Warps, int Keys, int Stages, int BlocksPerSm,
          class Variant_ = Plain, class Kv_ = T_, bool Blocks = false>
struct KernelTraits {
  using T = T_;    // type of Q, the rounded P, and K and V as the products use them
  using Kv = Kv_;  // type of K and V in the cache
  using Variant = Variant_;
  using Params = typename ParamsOfCache<T, Kv, Variant, Blocks>::type;
  static constexpr bool narrow = sizeof(Kv) < sizeof(T), blocks = Blocks;  // of keys have scales
  static constexpr int head_dim = HeadDim, warps = Warps, keys = Keys, stages = Stages;
  static constexpr int rows = 16, threads = 32 * Warps, blocks_per_sm = BlocksPerSm;
  static constexpr int dim_steps = HeadDim / 16;  // 16 channels: the depth of one mma
  static constexpr int key_steps = Keys / 16;
  // At 256 channels Q's fragments and the accumulator do not fit in the registers together.
  static constexpr bool q_in_registers = HeadDim <= LAB_HELD_DIM;
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

template <class C> using Output = float[C::head_dim / 8][4];  // [16 rows, head_dim] of a warp
template <class C> using Scores = float[C::keys / 8][4];      // [16 rows, keys of a step]
template <class C>  // [16 rows, head_dim], or 16 channels of it
using QueryFragments = u32[C::q_in_registers ? C::dim_steps : 1][4];

// Loads 16 channels of Q, the `step`-th. a: [16 rows, 16 channels].
template <class C> LAB_DEVICE void load_q_fragment(u32 (&a)[4], Smem<C>& smem, int step) {
  const int lane = thread_x() & 31;
  if constexpr (C::narrow) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // rows g and g + 8
      const u32x2 channels = four_channels(smem.q, lane / 4 + 8 * half, step);
      a[half] = channels.v[0];
      a[2 + half] = channels.v[1];
    }
  } else {
    ldmatrix_x4(a, chunk<C::head_dim>(smem.q, lane & 15, step * 2 + (lane >> 4)));
  }
}

// [lab: scores]
// Computes S = Q K^T for the keys of one stage; s[j] is the 16 x 8 accumulator of key octet j.
template <class C>
LAB_DEVICE void scores(Scores<C>& s, QueryFragments<C>& q, Smem<C>& smem, KvTile<C>& k_tile) {
  const int lane = thread_x() & 31;
#pragma unroll
  for (int j = 0; j < C::keys / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) s[j][i] = 0.f;
  u32 codes[C::key_steps][4];  // [keys, 32 channels], if K has 8 bits
#pragma unroll
  for (int d = 0; d < C::dim_steps; ++d) {
    const int held = C::q_in_registers ? d : 0;
    if constexpr (!C::q_in_registers) load_q_fragment<C>(q[held], smem, d);
#pragma unroll
    for (int b = 0; b < C::key_steps; ++b) {  // (keys 0-7, 8-15) x (channels 0-7, 8-15)
      u32 k[4];                               // [16 keys, 16 channels]
      const int row = b * 16 + (lane & 7) + (lane >> 4) * 8;
      if constexpr (C::narrow) load_narrow_k<typename C::T, 1>(k, codes[b], k_tile, b * 16, d);
      else ldmatrix_x4(k, chunk<C::head_dim>(k_tile, row, d * 2 + ((lane >> 3) & 1)));
      mma_m16n8k16<typename C::T>(s[2 * b], q[held], k[0], k[1]);
      mma_m16n8k16<typename C::T>(s[2 * b + 1], q[held], k[2], k[3]);
    }
  }
}
// [/lab: scores]

// [lab: accumulate]
// Computes O += P V. P's accumulator registers, packed to 16 bits, are already the A fragment.
template <class C, class P>
LAB_DEVICE void accumulate(Output<C>& output, const Scores<C>& s, KvTile<C>& v_tile) {
  using T = typename C::T;
  const int lane = thread_x() & 31;
#pragma unroll
  for (int b = 0; b < C::key_steps; ++b) {
    u32 p[P::p_parts][4];  // [p_parts, 16 rows, 16 keys]
#pragma unroll
    for (int part = 0; part < P::p_parts; ++part)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = &s[2 * b + i / 2][i % 2 * 2];
        p[part][i] = pack_part<T>(part, pair[0], pair[1]);
      }
    u32 codes[4];  // [16 keys, 32 channels], if V has 8 bits
#pragma unroll
    for (int n = 0; n < C::dim_steps; ++n) {
      u32 v[4];  // [16 keys, 16 channels]
      if constexpr (C::narrow) load_narrow_v<typename C::T, 2>(v, codes, v_tile, b * 16, n);
      else
        ldmatrix_x4_trans(v, chunk<C::head_dim>(v_tile, b * 16 + (lane & 15), n * 2 + (lane >> 4)));
#pragma unroll
      for (int h = 0; h < 2; ++h) {  // channels 0-7, 8-15; of 8-bit V the even, the odd ones
        float (&o)[4] = output[2 * n + h];
        float fresh[4] = {};  // [16 rows, 8 channels]
#pragma unroll
        for (int part = 0; part < P::p_parts; ++part)
          mma_m16n8k16<T>(P::promoted ? fresh : o, p[part], v[2 * h], v[2 * h + 1]);
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
    for (int d = 0; d < C::dim_steps; ++d) load_q_fragment<C>(q[d], smem, d);

  const auto& numbers = score_numbers<V>(p, work);
  OnlineSoftmax softmax;
  Slope slopes[2] = {};
  begin_rows<V>(softmax, slopes, p, work);
  Output<C> o = {};
  for (; pipeline.more(); pipeline.advance()) {
    pipeline.prefetch();
    Scores<C> s;
    pipeline.wait_k();
    scores<C>(s, q, smem, pipeline.k());
    if constexpr (C::blocks) scale_columns<AccumulatorRows>(s, pipeline.k_scale());
    shape_scores<V, AccumulatorRows>(s, numbers, slopes, pipeline.key);
    if (pipeline.ragged()) mask_columns<AccumulatorRows>(s, work.end_key - pipeline.key);
    const Rescale rescale = softmax.update<P, T>(s, scale_of<V>(numbers));
    rescale_rows(o, rescale);
    if constexpr (C::blocks) scale_columns<AccumulatorRows>(s, pipeline.v_scale());
    pipeline.wait_v();
    accumulate<C, P>(o, s, pipeline.v());
  }
  pipeline.finish();
  store_state<C::narrow>(smem.states, softmax, o);
  finish<P, C::threads>(smem.states, p, work);
}

}  // namespace decode_mma
