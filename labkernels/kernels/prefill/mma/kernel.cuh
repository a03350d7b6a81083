// This prefill uses the tensor cores by mma.sync, in FlashAttention-2's order of work. The warps
// share stages of K and V, and each warp owns rows of the tile, so that no warp needs scores of
// another warp. In a tile of 16 rows each warp takes some keys of a step instead, and the warps'
// States merge at the end. Of a fragment, lane 4 g + t holds rows g and g + 8 of each 16, and
// columns 2t and 2t + 1 of each 8.
#pragma once
#include "prefill/pipeline.cuh"

namespace prefill_mma {
using namespace lab;

template <class T_, int Dqk, int Dvo, int Rows, int Keys, int Warps, int Stages, int BlocksPerSm,
          KeyOrder Order, bool Paged, class Variant_ = Plain>
struct KernelTraits {
  using T = T_;  // type of Q, K, V and the rounded P
  using Variant = Variant_;
  using Params = ParamsOf<PrefillParams, Variant>;
  static constexpr int dim_qk = Dqk, dim_vo = Dvo, rows = Rows, keys = Keys, stages = Stages;
  static constexpr int channels = head_channels<Dvo>;  // of the output
  static constexpr int warps = Warps, threads = 32 * Warps, blocks_per_sm = BlocksPerSm;
  static constexpr bool split_keys = Rows == 16;
  static constexpr int warp_rows = split_keys ? 16 : Rows / Warps;
  static constexpr int warp_keys = split_keys ? Keys / Warps : Keys;  // keys of a warp per step
  static constexpr int row_tiles = warp_rows / 16, key_steps = warp_keys / 16;
  // In a larger warp tile, the fragments of Q do not fit in the registers beside the scores.
  static constexpr bool q_in_registers = warp_rows * (Dqk + warp_keys) <= LAB_HELD_SIZE;
  // An O of 32 rows by 128 channels and scores of 32 rows by 64 keys leave too few registers to
  // rescale O among the products.
  static constexpr bool rescale_apart = warp_rows * Dvo >= 4096 && warp_rows * warp_keys >= 2048;
  static constexpr bool paged = Paged;
  using Work = WorkTile<Rows>;
  using Pipeline = BlockPipeline<T, Dqk, Dvo, Keys, threads, Stages, Order, Paged, Variant::window>;
  static_assert(warp_rows % 16 == 0 && warp_keys % 16 == 0, "an mma takes 16 rows; P V 16 keys");
};

template <class C, bool SplitKeys> struct StagesOrStates { typename C::Pipeline::Buffers stages; };
template <class C> struct StagesOrStates<C, true> {
  union {
    typename C::Pipeline::Buffers stages;
    WarpStates<C::warps, C::rows, C::dim_vo> states;
  };
};
template <class C> struct Smem : StagesOrStates<C, C::split_keys> {
  union {
    alignas(128) typename C::T q[C::rows][C::dim_qk];
    float is_last_split;
  };
};

// A lane has {m, l} of the warp's rows 16 m + g + 8 r, for each tile m of 16 rows and r = 0 and 1.
template <class C> using Softmax = OnlineSoftmax[C::row_tiles];
template <class C> using Factors = Rescale[C::row_tiles];
template <class C> using Output = float[C::row_tiles][C::dim_vo / 8][4];  // [warp_rows, dim_vo]
template <class C>                                                        // [warp_rows, warp_keys]
using Scores = float[C::row_tiles][C::warp_keys / 8][4];
template <class C>  // [warp_rows, dim_qk], or 16 channels of it
using QueryFragments = u32[C::q_in_registers ? C::dim_qk / 16 : 1][C::row_tiles][4];

// These return the warp's first row in the tile, and its first key in a step.
template <class C> LAB_DEVICE int warp_row() {
  return C::split_keys ? 0 : thread_x() / 32 * C::warp_rows;
}
template <class C> LAB_DEVICE int warp_key() {
  return C::split_keys ? thread_x() / 32 * C::warp_keys : 0;
}

// A lane's rows of the fragments begin at these addresses, in Q and in the first stages of K and V.
struct Addresses { u32 q, k, v; };
template <class C> LAB_DEVICE Addresses addresses(const Smem<C>& smem) {
  const int lane = thread_x() & 31, key = warp_key<C>();
  const int k_row = key + (lane & 7) + (lane >> 4) * 8;  // (keys 0-7, 8-15) x (channels 0-7, 8-15)
  return {chunk_address<C::dim_qk>(smem.q, warp_row<C>() + (lane & 15), lane >> 4),
          chunk_address<C::dim_qk>(smem.stages.k[0], k_row, (lane >> 3) & 1),
          chunk_address<C::dim_vo>(smem.stages.v[0], key + (lane & 15), lane >> 4)};
}

// Returns the address of the fragment of the `tile`-th 16 rows or keys and the `step`-th 16
// channels.
template <int D> LAB_DEVICE u32 fragment(u32 address, int tile, int step) {
  return other_chunk(address, step * 2) + tile * 16 * D * sizeof(u16);
}
// Loads the d-th 16 channels of Q. q: [warp_rows, 16 channels].
template <class C> LAB_DEVICE void load_q(u32 (&q)[C::row_tiles][4], u32 address, int d) {
#pragma unroll
  for (int m = 0; m < C::row_tiles; ++m) ldmatrix_x4(q[m], fragment<C::dim_qk>(address, m, d));
}

// [lab: scores]
// Computes S = Q K^T for the keys that the warp takes in a step.
template <class C>
LAB_DEVICE void scores(Scores<C>& s, QueryFragments<C>& fragments, u32 q_address, u32 k_address) {
#pragma unroll
  for (int m = 0; m < C::row_tiles; ++m)
#pragma unroll
    for (int j = 0; j < C::warp_keys / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[m][j][i] = 0.f;
#pragma unroll
  for (int d = 0; d < C::dim_qk / 16; ++d) {
    auto& q = fragments[C::q_in_registers ? d : 0];
    if constexpr (!C::q_in_registers) load_q<C>(q, q_address, d);
#pragma unroll
    for (int b = 0; b < C::key_steps; ++b) {
      u32 k[4];  // [16 keys, 16 channels]
      ldmatrix_x4(k, fragment<C::dim_qk>(k_address, b, d));
#pragma unroll
      for (int m = 0; m < C::row_tiles; ++m) {
        mma_m16n8k16<typename C::T>(s[m][2 * b], q[m], k[0], k[1]);
        mma_m16n8k16<typename C::T>(s[m][2 * b + 1], q[m], k[2], k[3]);
      }
    }
  }
}
// [/lab: scores]

// Sets the scores of the keys that a row does not see to -inf. Without a mask of bits, only steps
// at the boundary need this.
template <class C>
LAB_DEVICE void mask(Scores<C>& s, const typename C::Params& p, const typename C::Work& b,
                     int key) {
  const int lane = thread_x() & 31, column = key + warp_key<C>() + (lane & 3) * 2;
#pragma unroll
  for (int m = 0; m < C::row_tiles; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = warp_row<C>() + m * 16 + lane / 4 + r * 8;
      const int seen = least(row_limit<typename C::Variant>(p, b, row), b.end_key) - column;
      const int hidden = row_begin<typename C::Variant>(p, b, row) - column;
      u32 bits[(C::warp_keys + 31) / 32];  // [warp_keys]
      if constexpr (C::Variant::mask) load_bits(bits, p, b, row, column);
#pragma unroll
      for (int j = 0; j < C::warp_keys / 8; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (j * 8 + i >= seen || (C::Variant::window && j * 8 + i < hidden) ||
              (C::Variant::mask && !(bits[j / 4] >> (j % 4 * 8 + i) & 1)))
            s[m][j][2 * r + i] = minus_infinity();
    }
}

// [lab: update]
// Raises each row's maximum to the maximum of its scores, and rescales l. Where registers are few,
// rescales o too; otherwise `accumulate` rescales o between its products.
template <class C, class P>
LAB_DEVICE void update(Softmax<C>& softmax, Output<C>& o, Factors<C>& rescale, Scores<C>& s,
                       float scale_log2) {
#pragma unroll
  for (int m = 0; m < C::row_tiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      rescale[m].by[r] = softmax[m].template raise<P>(r, softmax[m].top(s[m], r) * scale_log2);
    if constexpr (C::rescale_apart) rescale_rows(o[m], rescale[m]);
  }
}
// [/lab: update]

// Computes P of 16 keys, rounded: its accumulator registers are already the A fragment of the mma.
// p: [warp_rows, 16 keys].
template <class C, class P>
LAB_DEVICE void exponentiate(u32 (&p)[C::row_tiles][4], Softmax<C>& softmax, const Scores<C>& s,
                             float scale_log2, int b) {
  using T = typename C::T;
#pragma unroll
  for (int m = 0; m < C::row_tiles; ++m)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* pair = &s[m][2 * b + i / 2][2 * (i & 1)];
      const float low = softmax[m].template add<P, T>(i & 1, pair[0], scale_log2);
      const float high = softmax[m].template add<P, T>(i & 1, pair[1], scale_log2);
      p[m][i] = pack2<T>(low, high);
    }
}

// [lab: accumulate]
// Adds P V to O, 16 keys at a time. The exponentials of the next 16 keys overlap these products.
template <class C, class P>
LAB_DEVICE void accumulate(Output<C>& output, Softmax<C>& softmax, const Factors<C>& rescale,
                           const Scores<C>& s, float scale_log2, u32 v_address) {
#pragma unroll
  for (int b = 0; b < C::key_steps; ++b) {
    u32 p[C::row_tiles][4];  // [warp_rows, 16 keys]
    exponentiate<C, P>(p, softmax, s, scale_log2, b);
#pragma unroll
    for (int n = 0; n < C::dim_vo / 16; ++n) {
      u32 v[4];  // [16 keys, 16 channels]
      ldmatrix_x4_trans(v, fragment<C::dim_vo>(v_address, b, n));
#pragma unroll
      for (int m = 0; m < C::row_tiles; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) {  // channels 0-7, 8-15
          float (&o)[4] = output[m][2 * n + h];
          if (!C::rescale_apart && b == 0) multiply_rows(o, rescale[m]);
          mma_m16n8k16<typename C::T>(o, p[m], v[2 * h], v[2 * h + 1]);
        }
    }
  }
}
// [/lab: accumulate]

// Stores the warp's rows of a 16-bit output through Q's place in shared memory: a lane holds two
// channels of a row, and stores eight. heads: lane i has the head of row i.
template <class C, class Out>
LAB_DEVICE void store_rows(Smem<C>& smem, const Output<C>& o, Out* out, i64 heads, int n_rows) {
  constexpr int chunks = C::channels / chunk_elements;
  const int lane = thread_x() & 31, first_row = warp_row<C>();
  sync_warp();  // no lane reads Q any more
#pragma unroll
  for (int m = 0; m < C::row_tiles; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int n = 0; n < chunks; ++n) {
        const int row = first_row + m * 16 + lane / 4 + r * 8;
        auto* pair = chunk<C::dim_qk>(smem.q, row, n) + (lane & 3) * 2;
        *reinterpret_cast<u32*>(pair) = pack2<Out>(o[m][n][2 * r], o[m][n][2 * r + 1]);
      }
  sync_warp();  // all channels are in shared memory
#pragma unroll
  for (int i = 0; i < C::warp_rows * chunks; i += 32) {
    const int row = (i + lane) / chunks, c = (i + lane) % chunks;
    Out* place = out + shfl(heads, row) * C::channels + c * chunk_elements;
    if (first_row + row < n_rows)
      store_global(reinterpret_cast<u32x4*>(place), load_chunk(smem.q, first_row + row, c));
  }
}

// Stores a lane's channels of a row from its registers. o: [16 rows, dim_vo] of a row tile.
template <class C, class Out>
LAB_DEVICE void store_row(Out* out, const float (&o)[C::dim_vo / 8][4], int r) {
#pragma unroll
  for (int n = 0; n < C::channels / 8; ++n)
    store2(out + n * 8 + (thread_x() & 3) * 2, o[n][2 * r], o[n][2 * r + 1]);
}

// Divides the warp's rows by l and writes them, or writes the split's partial States of them.
template <class C, class P>
LAB_DEVICE void store(Smem<C>& smem, Softmax<C>& softmax, Output<C>& o, const PrefillParams& p,
                      const typename C::Work& b) {
  using Out = typename P::Out;
  constexpr bool through_smem = sizeof(Out) == 2 && !C::rescale_apart;
  const int lane = thread_x() & 31;
  const bool whole = b.live_splits <= 1;
  auto* out = static_cast<Out*>(p.out);
  const i64 heads = head_index(p, b, warp_row<C>() + lane % C::warp_rows);
#pragma unroll
  for (int m = 0; m < C::row_tiles; ++m) {
    softmax[m].reduce();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const auto [inverse_l, lse2] = softmax[m].finalize(r);
      const float factor = whole ? inverse_l : 1.f;
#pragma unroll
      for (int n = 0; n < C::dim_vo / 8; ++n)
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) o[m][n][i] = o[m][n][i] * factor;
      const int row = m * 16 + lane / 4 + r * 8;
      const i64 head = shfl(heads, row), slot = head * p.splits + b.split;
      if (warp_row<C>() + row >= b.n_rows) continue;
      if (whole) {
        if ((lane & 3) == 0) store_global(p.lse2 + head, lse2);
        if (!through_smem) store_row<C>(out + head * C::channels, o[m], r);
      } else {
        if ((lane & 3) == 0) store_partial(p, slot, softmax[m].m[r], softmax[m].l[r]);
        store_row<C>(p.partial_o + slot * C::channels, o[m], r);
      }
    }
  }
  if constexpr (through_smem)
    if (whole) store_rows(smem, o, out, heads, b.n_rows);
}

template <class C, class P>
LAB_KERNEL(C::threads, C::blocks_per_sm) prefill(LAB_GRID_CONSTANT typename C::Params p) {
  static_assert(sizeof(Smem<C>) == LAB_SMEM_BYTES, "the ledger's bytes are the compiler's");
  auto& smem = shared_memory<Smem<C>>();
  using V = typename C::Variant;
  const typename C::Work block = work_tile<C::rows, C::paged, V, C::keys>(p);
  if (is_idle(block)) return;

  load_query<typename C::T, C::dim_qk, C::rows, C::threads>(smem.q, p, block);
  typename C::Pipeline pipeline(smem.stages, p, block, row_begin<V>(p, block, 0));
  pipeline.start();
  const int seen_by_all = least(row_limit<V>(p, block, 0), block.end_key);
  const int seen_from = row_begin<V>(p, block, block.n_rows - 1);  // by all
  const Addresses at = addresses<C>(smem);
  QueryFragments<C> q;
  cp_async_wait<1>();
  sync_block();  // Q is loaded by all threads, for all warps
  if constexpr (C::q_in_registers)
#pragma unroll
    for (int d = 0; d < C::dim_qk / 16; ++d) load_q<C>(q[d], at.q, d);

  Softmax<C> softmax;
  Slope slopes[C::row_tiles][2];
#pragma unroll
  for (int m = 0; m < C::row_tiles; ++m) {
    const int row = warp_row<C>() + m * 16;
    const bool first = !C::split_keys || thread_x() < 32;
    begin_rows<V>(softmax[m], slopes[m], p, block, row, first);
  }
  Output<C> o = {};

  for (; pipeline.more(); pipeline.advance()) {
    Scores<C> s;
    pipeline.wait_k();
    scores<C>(s, q, at.q, at.k + pipeline.stage * pipeline.k_stage_bytes);
#pragma unroll
    for (int m = 0; m < C::row_tiles; ++m)
      shape_scores<V, AccumulatorRows>(s[m], p, slopes[m], pipeline.key() + warp_key<C>());
    if (V::mask || pipeline.key() + C::keys > seen_by_all ||
        (V::window && pipeline.key() < seen_from))
      mask<C>(s, p, block, pipeline.key());
    pipeline.wait_v();
    Factors<C> rescale;
    update<C, P>(softmax, o, rescale, s, scale_of<V>(p));
    accumulate<C, P>(o, softmax, rescale, s, scale_of<V>(p),
                     at.v + pipeline.stage * pipeline.v_stage_bytes);
  }

  cp_async_wait<0>();  // Q has arrived, even if there was no step
  if constexpr (C::split_keys) {
    sync_block();  // no warp reads the stages any more
    store_state(smem.states, softmax[0], o[0]);
    finish<P, C::threads>(smem.states, p, block);
  } else {
    store<C, P>(smem, softmax, o, p, block);
    if (block.live_splits > 1 && arrives_last(smem.is_last_split, p, block))
      merge_splits<P, C::warps, C::channels>(p, block);
  }
}

}  // namespace prefill_mma
