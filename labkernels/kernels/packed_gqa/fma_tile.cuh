// This is an attention tile on CUDA cores, which compute in fp32 FMAs and never round P. A warp
// owns whole rows of the tile; a lane computes a block of scores and then a block of the output, so
// that each value that it loads from shared memory serves many FMAs. Even lanes have other rows
// than odd lanes. The 16 even lanes share the keys and channels of a row, as do the 16 odd lanes,
// so that lanes which shared memory serves at the same time need few different values. A kernel's
// KernelTraits is a Shape with the two unroll factors that its registers allow. Its Smem has q and
// k, whose rows are padded; p, where entry lane_keys * column + j of a row is key 16 j + column of
// the step; and value(key), which is the row of V.
#pragma once
#include "packed_gqa/rows.cuh"

namespace lab::fma_tile {

constexpr int columns = LAB_FMA_COLUMNS;  // lanes that share a row
constexpr int padding = LAB_FMA_PADDING;  // floats: 8 lanes read 8 rows from 32 banks

template <class T_, int Dqk, int Dvo, int Rows, int Keys, int Warps, int BlocksPerSm,
          class Variant_ = Plain>
struct Shape {
  using T = T_;  // type of Q, K and V
  using Variant = Variant_;
  static constexpr int dim_qk = Dqk, dim_vo = Dvo, rows = Rows, keys = Keys, warps = Warps;
  static constexpr int threads = 32 * Warps, blocks_per_sm = BlocksPerSm;
  static constexpr int lane_rows = Rows / Warps / 2, lane_keys = Keys / columns;
  static constexpr int quads = Dvo / columns / 4;  // four output channels of a lane each
  using Work = WorkTile<Rows>;
  static_assert(Rows % (2 * Warps) == 0 && 4 % lane_keys == 0 && Dvo % 64 == 0, "whole lanes");
};

// A lane has {m, l} and O of its rows; lanes of other columns share the rows.
template <class C>
using Softmax = OnlineSoftmaxOf<ArrayRows<C::lane_rows, 2 * (columns - 1)>>;
template <class C> using Output = float[C::lane_rows][C::quads][4];   // [lane_rows, channels]
template <class C> using Scores = float[C::lane_rows][C::lane_keys];  // [lane_rows, lane_keys]

LAB_DEVICE int column() { return (thread_x() & 31) / 2; }
template <class C> LAB_DEVICE int tile_row(int i) {
  return (thread_x() / 32 * C::lane_rows + i) * 2 + (thread_x() & 1);
}
LAB_DEVICE f32x4 read4(const float* p) { return *reinterpret_cast<const f32x4*>(p); }

template <class T> LAB_DEVICE void widen(float* to, const u32x4& pairs) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const f32x2 low = unpack2<T>(pairs.v[2 * half]), high = unpack2<T>(pairs.v[2 * half + 1]);
    const f32x4 quad = {{low.x, low.y, high.x, high.y}};
    *reinterpret_cast<f32x4*>(to + 4 * half) = quad;
  }
}

// [lab: scores]
// Computes S = Q K^T: s[i][j] is the score of the lane's row i and key 16 j + column.
template <class C, class Smem> LAB_DEVICE void scores(Scores<C>& s, const Smem& smem) {
#pragma unroll
  for (int i = 0; i < C::lane_rows; ++i)
#pragma unroll
    for (int j = 0; j < C::lane_keys; ++j) s[i][j] = 0.f;
#pragma unroll C::unroll_scores
  for (int d = 0; d < C::dim_qk; d += 4) {
    f32x4 q[C::lane_rows];  // [lane_rows, 4 channels]
#pragma unroll
    for (int i = 0; i < C::lane_rows; ++i) q[i] = read4(smem.q[tile_row<C>(i)] + d);
#pragma unroll
    for (int j = 0; j < C::lane_keys; ++j) {
      const f32x4 k = read4(smem.k[j * columns + column()] + d);
#pragma unroll
      for (int c = 0; c < 4; ++c)
#pragma unroll
        for (int i = 0; i < C::lane_rows; ++i) s[i][j] = fma_rn(q[i].v[c], k.v[c], s[i][j]);
    }
  }
}
// [/lab: scores]

template <class C, class Params>
LAB_DEVICE void mask(Scores<C>& s, const Params& p, const typename C::Work& b, int key) {
  using V = typename C::Variant;
#pragma unroll
  for (int i = 0; i < C::lane_rows; ++i) {
    const int begin = row_begin<V>(p, b, tile_row<C>(i));
    const int limit = least(row_limit<V>(p, b, tile_row<C>(i)), b.end_key);
    u32 bits[(C::lane_keys + 1) / 2];  // [keys], of which a lane has every 16th
    if constexpr (V::mask) load_bits(bits, p, b, tile_row<C>(i), key + column());
#pragma unroll
    for (int j = 0; j < C::lane_keys; ++j)
      if (const int at = key + j * columns + column();
          at >= limit || (V::window && at < begin) || (V::mask && !(bits[j / 2] >> j % 2 * 16 & 1)))
        s[i][j] = minus_infinity();
  }
}

// Stores P in shared memory, where all lanes of a row read it.
template <class C, class Smem> LAB_DEVICE void store_p(Smem& smem, const Scores<C>& s) {
#pragma unroll
  for (int i = 0; i < C::lane_rows; ++i) {
    float* row = smem.p[tile_row<C>(i)] + column() * C::lane_keys;
    if constexpr (C::lane_keys == 4) {
      const f32x4 quad = {{s[i][0], s[i][1], s[i][2], s[i][3]}};
      *reinterpret_cast<f32x4*>(row) = quad;
    } else {
#pragma unroll
      for (int j = 0; j < C::lane_keys; ++j) row[j] = s[i][j];
    }
  }
}

// [lab: accumulate]
// Computes O += P V, for four keys at a time, whose P are contiguous.
template <class C, class Smem> LAB_DEVICE void accumulate(Output<C>& o, const Smem& smem) {
#pragma unroll C::unroll_output
  for (int first = 0; first < C::keys; first += 4) {
    f32x4 p[C::lane_rows];  // [lane_rows, 4 keys]
#pragma unroll
    for (int i = 0; i < C::lane_rows; ++i) p[i] = read4(smem.p[tile_row<C>(i)] + first);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int key = e % C::lane_keys * columns + (first + e) / C::lane_keys;
#pragma unroll
      for (int n = 0; n < C::quads; ++n) {
        const f32x4 v = read4(smem.value(key) + (n * columns + column()) * 4);
#pragma unroll
        for (int i = 0; i < C::lane_rows; ++i)
#pragma unroll
          for (int c = 0; c < 4; ++c) o[i][n][c] = fma_rn(p[i].v[e], v.v[c], o[i][n][c]);
      }
    }
  }
}
// [/lab: accumulate]

// Divides O by l and writes it, or writes the split's partial State.
template <class C, class P, class Params>
LAB_DEVICE void store(const Output<C>& output, Softmax<C>& softmax, const Params& p,
                      const typename C::Work& b) {
  constexpr int channels = head_channels<C::dim_vo>;
  softmax.reduce();
#pragma unroll
  for (int i = 0; i < C::lane_rows; ++i) {
    const int row = tile_row<C>(i);
    if (row >= b.n_rows) continue;
    const i64 head = head_index(p, b, row), slot = head * p.splits + b.split;
#pragma unroll
    for (int n = 0; n < C::quads; ++n) {
      const f32x4 o = {{output[i][n][0], output[i][n][1], output[i][n][2], output[i][n][3]}};
      const int dim = (n * columns + column()) * 4;
      if (!in_head<C::dim_vo>(dim)) continue;
      if (b.live_splits <= 1) store_out<typename P::Out, channels>(p, head, dim, softmax.l[i], o);
      else store4(p.partial_o + slot * channels + dim, o);
    }
    if (column() != 0) continue;
    if (b.live_splits <= 1) store_lse2(p, head, softmax.m[i], softmax.l[i]);
    else store_partial(p, slot, softmax.m[i], softmax.l[i]);
  }
}

}  // namespace lab::fma_tile
