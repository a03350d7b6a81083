// The variant of attention that a kernel is compiled for: a window of keys, a soft cap, slopes,
// sinks, a mask of bits, and biases by distance. A kernel without them has the machine code of a
// kernel that knows no variants. variant.py says the same in Python, and numerics/truth/variant.py
// in float64.
#pragma once
#include "lab/attention/online_softmax.cuh"

namespace lab {

template <bool Window, bool SoftCap, bool Alibi, bool Sinks, bool Mask, bool Bias>
struct AttentionVariant {
  static constexpr bool window = Window, soft_cap = SoftCap, alibi = Alibi, sinks = Sinks;
  static constexpr bool mask = Mask, bias = Bias;
  static constexpr bool plain = !(Window || SoftCap || Alibi || Sinks || Mask || Bias);
  static constexpr bool by_distance = Alibi || Bias;
  static constexpr bool shapes_scores = SoftCap || by_distance;  // before the softmax
};
using Plain = AttentionVariant<false, false, false, false, false, false>;

// kernels/program.py mirrors this struct.
struct VariantParams {
  const float* alibi;             // [q_heads]: slopes
  const float* sinks;             // [q_heads]: logits that count in the denominator alone
  int window_left, window_right;  // keys that a query sees before and after its own place
  float soft_cap_log2;            // the cap times log2 e
  float exponent_of_cap;          // -2 log2 e times the softmax scale / cap
  const u32* mask;                // [mask_words]: bits in little order
  const i64* mask_begins;         // [batch]: the first bit of each request
  i64 mask_words;
  const float* bias;  // [q_heads, 2 reach + 1]: of a key `reach` before the row's place, and so on
  int reach;
};

// The parameter of a kernel with a variant is the plain kernel's, and these fields.
template <class Params> struct WithVariant : Params { VariantParams variant; };
template <class Params, class V> struct ParamsFor { using type = WithVariant<Params>; };
template <class Params> struct ParamsFor<Params, Plain> { using type = Params; };
template <class Params, class V> using ParamsOf = typename ParamsFor<Params, V>::type;

constexpr float log2_e = 1.44269504f;

LAB_DEVICE constexpr int least(int a, int b) { return a < b ? a : b; }
LAB_DEVICE constexpr int greatest(int a, int b) { return a > b ? a : b; }

// Returns 1 + tanh |scale / cap * score|, within 6e-7. With e = exp2(-2 log2 e |x|), this is 2 / (1
// + e). The quotient is a polynomial of e and one step of Newton's method, since a division
// would take longer. The instruction tanh.approx has relative errors of 2^-11; times a cap of 50
// these would change a weight by up to 2 %.
template <class Params> LAB_DEVICE float one_plus_tanh(float score, const Params& p) {
  const float e = ex2_approx(absolute(score) * p.variant.exponent_of_cap);
  float u = 0.30449003f;
  u = fma_rn(u, e, -1.06571519f);
  u = fma_rn(u, e, 1.73178709f);
  u = fma_rn(u, e, -1.96966994f);
  u = fma_rn(u, e, 1.99940526f);
  return fma_rn(u, fma_rn(fma_rn(e, -0.5f, -0.5f), u, 1.f), u);
}
// Returns cap tanh(scale / cap * score), in log2 units, within 6e-7 of the cap.
template <class Params> LAB_DEVICE float capped(float score, const Params& p) {
  const float u = one_plus_tanh(score, p), cap = p.variant.soft_cap_log2;
  return copy_sign(fma_rn(cap, u, -cap), score);
}

// A row has this slope, and this place: the number of the last key that it would see under a causal
// mask. Scores fall by the slope for each key before the place. bias: where that of a key at the
// place lies.
struct Slope {
  float log2;
  int place, bias;
};
template <class V, class Params> LAB_DEVICE Slope slope_of(const Params& p, int head, int place) {
  Slope found = {0.f, place, 0};
  if constexpr (V::alibi) found.log2 = load_constant(p.variant.alibi + head) * log2_e;
  if constexpr (V::bias) found.bias = head * (2 * p.variant.reach + 1) + p.variant.reach;
  return found;
}
// Adds the bias of a key to a score in log2 units.
template <class V, class Params>
LAB_DEVICE float biased(float score, const Params& p, const Slope& slope, int key) {
  if constexpr (!V::bias) return score;
  else {
    const int reach = p.variant.reach;
    const int nearest = greatest(least(key - slope.place, reach), -reach);
    return fma_rn(load_constant(p.variant.bias + (slope.bias + nearest)), log2_e, score);
  }
}

// Returns q k as a score in log2 units, after the cap and the slope. distance: key - place.
template <class V, class Params>
LAB_DEVICE float shaped(float score, const Params& p, const Slope& slope, float distance) {
  float s = score;
  if constexpr (V::soft_cap) s = capped(s, p);
  else s = s * p.scale_log2;
  if constexpr (V::alibi) s = fma_rn(slope.log2, distance, s);
  return s;
}
// Does this, and finds how steep the cap is there: 1 - tanh^2, a factor of the score's gradient.
template <class V, class Params>
LAB_DEVICE float shaped(float score, const Params& p, float slope_log2, float distance,
                        float& steepness) {
  float s = score * p.scale_log2;
  if constexpr (V::soft_cap) {
    const float u = one_plus_tanh(score, p), cap = p.variant.soft_cap_log2;
    s = copy_sign(fma_rn(cap, u, -cap), score);
    steepness = u * (2.f - u);
  }
  if constexpr (V::alibi) s = fma_rn(slope_log2, distance, s);
  return s;
}
// Shapes all scores of a lane; its column 0 is `key`. slopes: of the lane's rows.
template <class V, class Rows, class Scores, class Params>
LAB_DEVICE void shape_scores(Scores& scores, const Params& p, const Slope (&slopes)[Rows::rows],
                             int key) {
  constexpr int n = registers_of<Scores> / Rows::rows;
  if constexpr (V::shapes_scores) {
    auto& s = flat(scores);
#pragma unroll
    for (int r = 0; r < Rows::rows; ++r) {
      float first = 0.f;  // distance of column 0: further columns are constants apart
      if constexpr (V::alibi) first = static_cast<float>(key + Rows::column(0) - slopes[r].place);
#pragma unroll
      for (int k = 0; k < n; ++k) {
        float& score = s[Rows::at(r, k, n)];
        const auto apart = static_cast<float>(Rows::column(k) - Rows::column(0));
        score = shaped<V>(score, p, slopes[r], first + apart);
        score = biased<V>(score, p, slopes[r], key + Rows::column(k));
      }
    }
  }
}
// Returns the factor that turns the scores into log2 units: 1 if they were shaped.
template <class V, class Params> LAB_DEVICE float scale_of(const Params& p) {
  if constexpr (V::shapes_scores) return 1.f;
  else return p.scale_log2;
}

// Lets the softmax of row r begin with its head's sink, which counts as a key with a value of 0.
// One part of a row's keys begins so, the others without a key.
template <class Rows, class Params>
LAB_DEVICE void begin_with_sink(OnlineSoftmaxOf<Rows>& softmax, int r, const Params& p, int head) {
  const float sink = load_constant(p.variant.sinks + head) * log2_e;
  softmax.m[r] = maximum(sink, lowest_score());  // -inf, a head without a sink, would give NaN
  softmax.l[r] = thread_x() & Rows::sharers ? 0.f : ex2_approx(sink - softmax.m[r]);
}

}  // namespace lab
