// A consumer turns S into P, and dP into dS, for one half of a tile's rows at a time.
#pragma once
#include "backward/wgmma/tile.cuh"

namespace backward_wgmma {
using namespace lab;

// Loads the lse2 of the rows of a half that a lane needs.
template <class C> LAB_DEVICE void load_rows(typename C::RowPairs& pairs, const float* rows) {
#pragma unroll
  for (int j = 0; j < C::rows_at_once / 8; ++j)
    pairs[j] = *reinterpret_cast<const f32x2*>(rows + j * 8 + (thread_x() & 3) * 2);
}
// Turns one half of the scores into P, in place.
template <class C, class P, int Half>
LAB_DEVICE void probabilities(typename C::Scores& s, const typename C::RowPairs& lse2,
                              float scale_log2) {
#pragma unroll
  for (int j = 0; j < C::rows_at_once / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& x = s[Half * C::rows_at_once / 2 + 4 * j + i];
      x = exp2<P>(fma_rn(x, scale_log2, i % 2 ? -lse2[j].y : -lse2[j].x));
    }
}
// The same for scores that a variant shapes. distance: from the place of the half's first row to
// the warpgroup's first key. Where scores are capped, P goes to `left` in 16 bits, and P times the
// steepness of the cap, which dS needs, takes the place of the score.
template <class C, class P, int Half, class Problem>
LAB_DEVICE void shaped_probabilities(typename C::Scores& s, typename C::Fragments& left,
                                     const typename C::RowPairs& lse2, const Problem& p, int head,
                                     int distance) {
  using V = typename C::Variant;
  const Place place;
  const int of_lane = place.warp * 16 + place.lane / 4 - (place.lane & 3) * 2;
  float slope = 0.f;
  if constexpr (V::alibi) slope = slope_of<V>(p, head, 0).log2;
#pragma unroll
  for (int j = 0; j < C::rows_at_once / 8; ++j)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int n = 4 * j + 2 * r;
      const auto first = static_cast<float>(distance + of_lane + 8 * r);
      float e[2], steepness[2];  // [2 columns] each
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float x = s[Half * C::rows_at_once / 2 + n + i];
        const auto apart = static_cast<float>(8 * j + i);
        const float score = shaped<V>(x, p, slope, first - apart, steepness[i]);
        e[i] = exp2<P>(score - (i ? lse2[j].y : lse2[j].x));
      }
      if constexpr (V::soft_cap) left[n / 8][n % 8 / 2] = pack2<typename C::T>(e[0], e[1]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if constexpr (V::soft_cap) e[i] = e[i] * steepness[i];
        s[Half * C::rows_at_once / 2 + n + i] = e[i];
      }
    }
}
// Zeroes P of rows that do not see the lane's two keys. `first_row` is the first of the warpgroup's
// rows that sees the block's first key, and `line` the first of its keys. Only steps at the
// boundary need this.
template <class C, int Half>
LAB_DEVICE void mask(typename C::Scores& p, int first_row, int n_keys, int line) {
  const Place place;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int mine = line + place.warp * 16 + place.lane / 4 + 8 * r;
    const int first = (mine < n_keys ? first_row + mine : C::rows) - (place.lane & 3) * 2;
#pragma unroll
    for (int j = Half * C::rows_at_once / 8; j < (Half + 1) * C::rows_at_once / 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (j * 8 + i < first) p[4 * j + 2 * r + i] = 0.f;
  }
}
// The same for a window, where `width` more rows than the first see a key, and for capped scores.
template <class C, int Half>
LAB_DEVICE void mask(typename C::Scores& p, typename C::Fragments& left, int first_row, int width,
                     int n_keys, int line) {
  const Place place;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int mine = line + place.warp * 16 + place.lane / 4 + 8 * r;
    const int first = (mine < n_keys ? first_row + mine : C::rows) - (place.lane & 3) * 2;
#pragma unroll
    for (int j = 0; j < C::rows_at_once / 8; ++j) {
      const int n = 4 * j + 2 * r, row = Half * C::rows_at_once + j * 8 - first;
      u32 kept = 0xffffffffu;
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (static_cast<u32>(row + i) > static_cast<u32>(width)) {
          p[Half * C::rows_at_once / 2 + n + i] = 0.f;
          kept &= i ? 0xffffu : 0xffff0000u;
        }
      if constexpr (C::Variant::soft_cap) left[n / 8][n % 8 / 2] &= kept;
    }
  }
}
// Rounds one half of P to 16 bits.
template <class C, int Half>
LAB_DEVICE void round_p(typename C::Fragments& left, const typename C::Scores& p) {
  typename C::HalfScores half;
#pragma unroll
  for (int n = 0; n < C::rows_at_once / 2; ++n) half[n] = p[Half * C::rows_at_once / 2 + n];
  round_to_fragments<typename C::T>(left, half);
}
// Computes dS = P (dP - delta), in the place of dP.
template <class C, int Half>
LAB_DEVICE void score_gradients(typename C::HalfScores& dp, const typename C::Scores& p,
                                const float* delta) {
#pragma unroll
  for (int j = 0; j < C::rows_at_once / 8; ++j) {
    const int first = Half * C::rows_at_once + j * 8;  // row
    const f32x2 row = *reinterpret_cast<const f32x2*>(delta + first + (thread_x() & 3) * 2);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      dp[4 * j + i] = p[first / 2 + i] * (dp[4 * j + i] - (i % 2 ? row.y : row.x));
  }
}

}  // namespace backward_wgmma
