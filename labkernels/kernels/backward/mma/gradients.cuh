// The kernels on mma.sync and the rungs above them share the copies of a tile of rows, P and dS,
// and the stores of the gradients. Of a fragment, lane 4 g + t holds rows g and g + 8 of each 16,
// and columns 2t and 2t + 1 of each 8; C::Scores, C::KeyRows and C::QueryRows say which of them a
// warp has.
#pragma once
#include "backward/problem.cuh"
#include "lab/ampere/warp_mma.cuh"
#include "lab/core/policy.cuh"

namespace lab {

// ---- copies

// Copies lse2 and delta of each row, [rows]; the workspace holds whole tiles.
template <int Rows>
LAB_DEVICE void copy_row_facts(float (&lse2)[Rows], float (&delta)[Rows], const BackwardParams& p,
                               i64 first) {
  const int i = thread_x() * 4;
  if (i < Rows) {
    cp_async_16(&lse2[i], p.row_lse2 + first + i, true);
    cp_async_16(&delta[i], p.row_delta + first + i, true);
  }
}

template <class C, class S>
LAB_DEVICE void copy_queries(S& smem, const BackwardParams& p, const BackwardRequest& r, int head,
                             int row, int stage) {
  const i64 token = r.first_token + row;
  copy_rows<C::threads>(smem.q[stage], p.q, token * p.q_stride_token + head * p.q_stride_head,
                        p.q_stride_token, r.q_len - row);
  copy_rows<C::threads>(smem.dout[stage], p.dout,
                        token * p.dout_stride_token + head * p.dout_stride_head,
                        p.dout_stride_token, r.q_len - row);
  copy_row_facts(smem.lse2[stage], smem.delta[stage], p,
                 head * p.padded_rows + r.first_padded + row);
}

// ---- P and dS

// A mask says which keys the rows of a tile see: `row` and `key` are the tile's first in the
// request, and `whole` says that all rows see all keys.
struct Mask {
  int row, key;
  bool whole;
};
template <class C, class Params>
LAB_DEVICE Mask mask_of(const Params& p, const BackwardRequest& r, int row, int key) {
  using V = typename C::Variant;
  bool whole = key + C::keys <= row_limit<V>(p, r, row);
  if constexpr (V::window) whole = whole && key >= row_begin<V>(p, r, row + C::rows - 1);
  return {row, key, whole};
}

// [lab: gradients of the scores]
// Computes P = exp2(S - lse2) and dS = P (dP - delta); both are 0 where a row does not see a key.
// Rounded P and dS go to shared memory for the products of other warps. A row past the end has lse2
// = inf: its P is 0. All rows are of one query head.
template <class C, class P, bool StoreP, class Params>
LAB_DEVICE void score_gradients(typename C::Scores::Sum& s, const typename C::Scores::Sum& dp,
                                typename C::ScoreTile& p_tile, typename C::ScoreTile& ds_tile,
                                const float* lse2, const float* delta, const Params& p,
                                const BackwardRequest& request, const Mask& seen, int head) {
  using T = typename C::T;
  using V = typename C::Variant;
  float slope = 0.f;
  if constexpr (V::alibi) slope = slope_of<V>(p, head, 0).log2;
  const int lane = thread_x() & 31;
#pragma unroll
  for (int m = 0; m < C::Scores::rows / 16; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = C::Scores::row() + m * 16 + lane / 4 + r * 8;
      const float row_lse2 = lse2[row], row_delta = delta[row];
      const int limit = row_limit<V>(p, request, seen.row + row) - seen.key;
      const int begin = row_begin<V>(p, request, seen.row + row) - seen.key;
      const int first = seen.key + C::Scores::column() + (lane & 3) * 2;
      const auto distance = static_cast<float>(first - request.past - seen.row - row);
#pragma unroll
      for (int n = 0; n < C::Scores::columns / 8; ++n) {
        const int column = C::Scores::column() + n * 8 + (lane & 3) * 2;
        float probability[2], gradient[2];  // [2 keys]
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float e, steepness = 1.f;
          if constexpr (V::shapes_scores) {
            const auto apart = static_cast<float>(n * 8 + i);
            e = exp2<P>(shaped<V>(s[m][n][2 * r + i], p, slope, distance + apart, steepness) -
                        row_lse2);
          } else {
            e = exp2<P>(fma_rn(s[m][n][2 * r + i], p.scale_log2, -row_lse2));
          }
          bool hidden = column + i >= limit;
          if constexpr (V::window) hidden = hidden || column + i < begin;
          if (!seen.whole && hidden) e = 0.f;
          probability[i] = e;
          gradient[i] = e * (dp[m][n][2 * r + i] - row_delta);
          if constexpr (V::soft_cap) gradient[i] = gradient[i] * steepness;
        }
        const int within = (lane & 3) * 2;
        if constexpr (StoreP)
          *reinterpret_cast<u32*>(chunk_of(p_tile, row, column) + within) =
              pack2<T>(probability[0], probability[1]);
        *reinterpret_cast<u32*>(chunk_of(ds_tile, row, column) + within) =
            pack2<T>(gradient[0], gradient[1]);
      }
    }
}
// [/lab: gradients of the scores]

// ---- stores

// Adds sum to dq_accum, for the warp's rows and channels of the tile that begins at row `first`.
template <class C>
LAB_DEVICE void add_dq(const typename C::QueryRows::Sum& sum, const BackwardParams& p, i64 first) {
  const int lane = thread_x() & 31;
  float* place = p.dq_accum + first * C::dim +
                 dq_index<C::dim>(C::QueryRows::row(), C::QueryRows::column()) + lane * 4;
#pragma unroll
  for (int m = 0; m < C::QueryRows::rows / 16; ++m)
#pragma unroll
    for (int n = 0; n < C::QueryRows::columns / 8; ++n)
      add_global(place + (m * (C::dim / 8) + eighth<typename C::QueryRows>(n) / 8) * 128,
                 sum[m][n]);
}

// Stores factor * sum in rows of a tensor [total, heads, D], from its row `first` on; `n` rows are
// left.
template <class C, class Part>
LAB_DEVICE void store_sum(void* tensor, const typename Part::Sum& sum, float factor, i64 first,
                          int heads, int head, int n) {
  using T = typename C::T;
  constexpr int width = Part::across * Part::columns;
  const int lane = thread_x() & 31;
#pragma unroll
  for (int m = 0; m < Part::rows / 16; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = Part::row() + m * 16 + lane / 4 + r * 8;
      if (row >= n) continue;
      T* place = static_cast<T*>(tensor) + ((first + row) * heads + head) * head_channels<width> +
                 Part::column() + (lane & 3) * 2;
#pragma unroll
      for (int c = 0; c < Part::columns / 8; ++c)
        if (const int further = eighth<Part>(c); in_head<width>(Part::column() + further))
          store2(place + further, sum[m][c][2 * r] * factor, sum[m][c][2 * r + 1] * factor);
    }
}

// RowTiles goes through the tiles of rows that see a block's keys, head by head of the group.
template <class C> struct RowTiles {
  using V = typename C::Variant;
  int first, end, last_head;  // of tiles; of heads
  int tile, head;
  template <class Params>
  LAB_DEVICE RowTiles(const Params& p, const BackwardRequest& r, int kv_head, int key)
      : first(least(first_seeing<V>(p, r, key), r.q_len) / C::rows),
        end((end_seeing<V>(p, r, key, C::keys) + C::rows - 1) / C::rows),
        last_head(kv_head * p.group + p.group - 1), tile(first), head(kv_head * p.group) {}
  LAB_DEVICE bool more() const { return head <= last_head && first < end; }
  LAB_DEVICE void next() {
    if (++tile == end) {
      tile = first;
      ++head;
    }
  }
  template <class S>
  LAB_DEVICE void copy(S& smem, const BackwardParams& p, const BackwardRequest& r,
                       int stage) const {
    if (more()) copy_queries<C>(smem, p, r, head, tile * C::rows, stage);
    cp_async_commit();
  }
  LAB_DEVICE RowTiles ahead() const {
    RowTiles w = *this;
    w.next();
    return w;
  }
};

}  // namespace lab
