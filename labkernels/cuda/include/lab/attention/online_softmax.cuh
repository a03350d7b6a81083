// The online softmax {m, l, o} of a row of scores: m is the maximum in log2 units, l is the sum of
// exp2(s - m), and o is the sum of exp2(s - m) v, not yet divided by l. Before the first key, m is
// lowest_score(), l is 0 and o is 0. `update` adds scores, `merge` adds a part that was computed
// separately, `finalize` gives the factor for o and the log-sum-exp.
// numerics/truth/online_softmax.py has the same names.
#pragma once
#include "lab/core/formats.cuh"
#include "lab/core/policy.cuh"

namespace lab {

// The maximum before the first key is the lowest finite number. No finite score lies below it, and
// masked scores of -inf give exp2(-inf - lowest) = 0, whereas exp2(-inf + inf) would be NaN.
LAB_DEVICE float lowest_score() { return bits_to_float(0xff7fffffu); }

// Raises a row's maximum to `top`, the greatest of its new scores, if that is larger; rescales l,
// and returns the factor for o, which is exactly 1 if the maximum has not moved.
template <class P> LAB_DEVICE float raise_maximum(float& m, float& l, float top) {
  const float moved = maximum(m, top), rescale = exp2<P>(m - moved);
  m = moved;
  l = l * rescale;
  return rescale;
}

// The greatest P of a row has this exponent in the second product, where l is as much greater. In
// e4m3, whose least number is 2^-9, P below 2^-17 of the greatest becomes 0.
template <class T> constexpr float p_exponent = 0.f;
template <> inline constexpr float p_exponent<e4m3x2> = 8.f;

// Returns P of a score, in the form that is added to l. T is the format of P in the second product.
template <class P, class T> LAB_DEVICE float probability(float s, float scale_log2, float m) {
  const float p = exp2<P>(fma_rn(s, scale_log2, -m));
  if constexpr (P::denominator == Denominator::rounded) return rounded<P, T>(p);
  else return p;
}

// Returns 1 / l, and 0 for a row without keys.
LAB_DEVICE float inverse_of(float l) { return l == 0.f ? 0.f : div_rn(1.f, l); }
// Returns the log-sum-exp of a row in base 2, and -inf for a row without keys.
LAB_DEVICE float lse2_of(float m, float l) {
  return l == 0.f ? minus_infinity() : m + log2_poly(l);
}

// Adds a part of the keys that was computed separately: {part_m, part_l, part_o} with part_m <= m
// and weight = exp2(part_m - m).
template <int N>
LAB_DEVICE void merge(float& l, f32x4 (&o)[N], float weight, float part_l,
                      const f32x4 (&part_o)[N]) {
  l = fma_rn(weight, part_l, l);
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int c = 0; c < 4; ++c) o[n].v[c] = fma_rn(weight, part_o[n].v[c], o[n].v[c]);
}

// ---- how the lanes of a warp hold rows of scores and of O

// A lane holds a part of each of `rows` rows, and shares the rows with the lanes whose numbers
// differ from its own only in the bits `sharers`. The lane has n registers of each row; register k
// of row r is at(r, k, n), and register i belongs to row row_of(i, n). The sharers' sums of l are
// added in pairs, from the lowest of these bits or from the highest.
enum class From { lowest_bit, highest_bit };

// The accumulators of mma and wgmma have query rows as rows: a lane holds rows g and g + 8 of a
// warp's 16 and columns 2t and 2t + 1 of each 8, where g = lane / 4 and t = lane % 4.
struct AccumulatorRows {
  static constexpr int rows = 2, sharers = 3;
  static constexpr From from = From::lowest_bit;
  LAB_DEVICE static constexpr int at(int r, int k, int) { return k / 2 * 4 + r * 2 + k % 2; }
  LAB_DEVICE static constexpr int row_of(int i, int) { return i / 2 % 2; }
  LAB_DEVICE static int row(int r) { return (thread_x() & 31) / 4 + 8 * r; }
  LAB_DEVICE static int column(int k) { return k / 2 * 8 + (thread_x() & 3) * 2 + k % 2; }
};
// Here query rows are the columns of an accumulator: a lane holds columns 2t and 2t + 1 of 8, and
// the sums of a row run over g.
struct AccumulatorColumns {
  static constexpr int rows = 2, sharers = 28;
  static constexpr From from = From::lowest_bit;
  LAB_DEVICE static constexpr int at(int r, int k, int) { return k * 2 + r; }
  LAB_DEVICE static constexpr int row_of(int i, int) { return i % 2; }
  LAB_DEVICE static int row(int r) { return (thread_x() & 3) * 2 + r; }
  LAB_DEVICE static int column(int k) { return k * 8 + (thread_x() & 31) / 4; }
};
// Kernels on CUDA cores hold their rows in arrays [Rows][n].
template <int Rows, int Sharers> struct ArrayRows {
  static constexpr int rows = Rows, sharers = Sharers;
  static constexpr From from = From::highest_bit;
  LAB_DEVICE static constexpr int at(int r, int k, int n) { return r * n + k; }
  LAB_DEVICE static constexpr int row_of(int i, int n) { return i / n; }
};

// `flat` views an array of any shape as its registers, one after the other.
template <class Array> constexpr int registers_of = static_cast<int>(sizeof(Array) / sizeof(float));
template <class Array> LAB_DEVICE auto& flat(Array& x) {
  return reinterpret_cast<float (&)[registers_of<Array>]>(x);
}

// Combines x of a lane and its sharers in pairs.
template <class Rows, class Combine> LAB_DEVICE float over_sharers(float x, Combine combine) {
#pragma unroll
  for (int i = 0; i < 5; ++i) {
    const int bit = Rows::from == From::lowest_bit ? 1 << i : 16 >> i;
    if (Rows::sharers & bit) x = combine(x, shfl_xor(x, bit));
  }
  return x;
}

// ---- the softmax of a lane's rows

// These are the factors for the lane's rows of O.
template <class Rows> struct RescaleOf {
  float by[Rows::rows];
  LAB_DEVICE bool moved() const {
    bool any = false;
#pragma unroll
    for (int r = 0; r < Rows::rows; ++r) any = any || !(by[r] == 1.f);
    return any;
  }
};

// This is {m, l} of a lane's rows. O is an array of the kernel, which `rescale_rows` rescales.
template <class Rows> struct OnlineSoftmaxOf {
  float m[Rows::rows];
  float l[Rows::rows] = {};  // [rows], of this lane's columns alone until `reduce`

  LAB_DEVICE OnlineSoftmaxOf() {
#pragma unroll
    for (int r = 0; r < Rows::rows; ++r) m[r] = lowest_score();
  }

  // Returns the greatest score of the lane's row r, over all its sharers.
  template <class Scores> LAB_DEVICE static float top(Scores& scores, int r) {
    constexpr int n = registers_of<Scores> / Rows::rows;
    auto& s = flat(scores);
    float top = s[Rows::at(r, 0, n)];
    if constexpr (n > 1) top = maximum(top, s[Rows::at(r, 1, n)]);
#pragma unroll
    for (int k = 2; k + 1 < n; k += 2)
      top = maximum(top, maximum(s[Rows::at(r, k, n)], s[Rows::at(r, k + 1, n)]));
    if constexpr (n > 1 && n % 2 == 1) top = maximum(top, s[Rows::at(r, n - 1, n)]);
    return over_sharers<Rows>(top, [](float a, float b) { return maximum(a, b); });
  }
  // Raises the maximum of row r to `top_log2`, if that is greater.
  template <class P> LAB_DEVICE float raise(int r, float top_log2) {
    return raise_maximum<P>(m[r], l[r], top_log2);
  }
  // Returns P of a score of row r, and adds it to l.
  template <class P, class T> LAB_DEVICE float add(int r, float s, float scale_log2) {
    const float p = probability<P, T>(s, scale_log2, m[r]);
    l[r] = l[r] + p;
    return p;
  }

  // Adds the scores, which become P. The loop takes one row after the other, because ptxas orders
  // this better than three passes over all rows. T is the format of P in the second product.
  template <class P, class T, class Scores>
  LAB_DEVICE RescaleOf<Rows> update(Scores& scores, float scale_log2) {
    constexpr int n = registers_of<Scores> / Rows::rows;
    auto& s = flat(scores);
    RescaleOf<Rows> rescale;
#pragma unroll
    for (int r = 0; r < Rows::rows; ++r) {
      float greatest = top(scores, r) * scale_log2;
      if constexpr (p_exponent<T> != 0.f) greatest = greatest - p_exponent<T>;
      rescale.by[r] = raise<P>(r, greatest);
#pragma unroll
      for (int k = 0; k < n; ++k) {
        float& score = s[Rows::at(r, k, n)];
        score = add<P, T>(r, score, scale_log2);
      }
    }
    return rescale;
  }

  // Adds the sharers' parts of l; every sharer then has the sum.
  LAB_DEVICE void reduce() {
#pragma unroll
    for (int r = 0; r < Rows::rows; ++r)
      l[r] = over_sharers<Rows>(l[r], [](float a, float b) { return a + b; });
  }

  struct Final { float inverse_l, lse2; };
  LAB_DEVICE Final finalize(int r) const { return {inverse_of(l[r]), lse2_of(m[r], l[r])}; }
};
using OnlineSoftmax = OnlineSoftmaxOf<AccumulatorRows>;
using Rescale = RescaleOf<AccumulatorRows>;

// Sets the scores of the columns from `end` on, keys that no row sees, to -inf.
template <class Rows, class Scores> LAB_DEVICE void mask_columns(Scores& scores, int end) {
  constexpr int n = registers_of<Scores> / Rows::rows;
  auto& s = flat(scores);
#pragma unroll
  for (int k = 0; k < n; ++k)
#pragma unroll
    for (int r = 0; r < Rows::rows; ++r)
      if (Rows::column(k) >= end) s[Rows::at(r, k, n)] = minus_infinity();
}

// Rescales O of the lane's rows after the maxima have moved.
template <class Rows, class Output>
LAB_DEVICE void multiply_rows(Output& output, const RescaleOf<Rows>& rescale) {
  constexpr int n = registers_of<Output> / Rows::rows;
  auto& o = flat(output);
#pragma unroll
  for (int i = 0; i < n * Rows::rows; ++i) o[i] = o[i] * rescale.by[Rows::row_of(i, n)];
}
// Does the same, but only if a maximum of the warp has moved: a factor of 1 changes no bit.
template <class Rows, class Output>
LAB_DEVICE void rescale_rows(Output& output, const RescaleOf<Rows>& rescale) {
  if (warp_any(rescale.moved())) multiply_rows(output, rescale);
}

// Rounds P to 16 bits: the accumulator's registers already lie as the A fragments of the next
// product. s: [rows of the warp, 2 N]; p: the same, 16 columns per fragment.
template <class T, int N>
LAB_DEVICE void round_to_fragments(u32 (&p)[N / 8][4], const float (&s)[N]) {
#pragma unroll
  for (int b = 0; b < N / 8; ++b)
#pragma unroll
    for (int i = 0; i < 4; ++i) p[b][i] = pack2<T>(s[8 * b + 2 * i], s[8 * b + 2 * i + 1]);
}
// Rounds P to e4m3, 32 columns per fragment. Of 16 columns a lane has 2t, 2t + 1, 8 + 2t and 9 +
// 2t, and these become columns 4t to 4t + 3 of the fragment: the rows of V must have this order.
template <class T, int N>
LAB_DEVICE void round_to_fragments(u32 (&p)[N / 16][4], const float (&s)[N]) {
  static_assert(sizeof(T) == 2);
#pragma unroll
  for (int b = 0; b < N / 16; ++b)
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // rows g and g + 8 of the first 16 columns, then of the others
      const int at = 16 * b + i / 2 * 8 + i % 2 * 2;
      p[b][i] = pack4_e4m3(s[at], s[at + 1], s[at + 4], s[at + 5]);
    }
}

}  // namespace lab
