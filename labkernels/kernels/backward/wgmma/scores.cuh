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
// The same for scores that a variant shapes. distance: from the place of the half's first row to the
// warpgroup's first key. steepness: of the cap, at each score.
template <class C, class P, int Half, class Problem>
LAB_DEVICE void shaped_probabilities(typename C::Scores& s, typename C::HalfScores& steepness,
                                     const typename C::RowPairs& lse2, const Problem& p, int head,
                                     int distance) {
  using V = typename C::Variant;
  const Place place;
  const int of_lane = place.warp * 16 + place.lane / 4 - (place.lane & 3) * 2;
  float slope = 0.f;
  if constexpr (V::alibi) slope = slope_of(p, head, 0).log2;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const auto first = static_cast<float>(distance + of_lane + 8 * r);
#pragma unroll
    for (int j = 0; j < C::rows_at_once / 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int n = 4 * j + 2 * r + i;
        float& x = s[Half * C::rows_at_once / 2 + n];
        const auto apart = static_cast<float>(8 * j + i);
        x = shaped<V>(x, p, slope, first - apart, steepness[n]);
        x = exp2<P>(x - (i ? lse2[j].y : lse2[j].x));
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
// The same for a window: `width` more rows than the first see a key.
template <class C, int Half>
LAB_DEVICE void mask(typename C::Scores& p, int first_row, int width, int n_keys, int line) {
  const Place place;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int mine = line + place.warp * 16 + place.lane / 4 + 8 * r;
    const int first = (mine < n_keys ? first_row + mine : C::rows) - (place.lane & 3) * 2;
#pragma unroll
    for (int j = Half * C::rows_at_once / 8; j < (Half + 1) * C::rows_at_once / 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (static_cast<u32>(j * 8 + i - first) > static_cast<u32>(width))
          p[4 * j + 2 * r + i] = 0.f;
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
