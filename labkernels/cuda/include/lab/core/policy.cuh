// A Policy, which is chosen at compile time, says where a kernel rounds. NumericPolicy of
// labkernels/policy.py is the same in Python.
#pragma once
#include "lab/core/exp2.cuh"

namespace lab {

enum class Exp2 { mufu, poly3, poly5 };
enum class Denominator { unrounded, rounded };     // l sums P before or after P's rounding
enum class Probability { input, input_x2, fp32 };  // P of P V: T, hi + lo of T, or fp32
// The products are summed in one long chain of tensor-core steps, in short chains that are joined
// in fp32, or by FMAs.
enum class Accumulate { tensor_core, promoted, fma };

template <class Out_, Exp2 Exp2_, Denominator Denominator_,
          Probability Probability_ = Probability::input,
          Accumulate Accumulate_ = Accumulate::tensor_core>
struct Policy {
  using Out = Out_;
  static constexpr Exp2 exp2 = Exp2_;
  static constexpr Denominator denominator = Denominator_;
  static constexpr int p_parts = Probability_ == Probability::input_x2 ? 2 : 1;
  static constexpr bool promoted = Accumulate_ == Accumulate::promoted;
};

template <class P> LAB_DEVICE float exp2(float x) {
  if constexpr (P::exp2 == Exp2::mufu) return ex2_approx(x);
  else if constexpr (P::exp2 == Exp2::poly3) return exp2_poly3(x);
  else return exp2_poly5(x);
}

// Part 0 is two neighbouring P rounded to T; part 1 is the rest, also rounded to T.
template <class T> LAB_DEVICE u32 pack_part(int part, float x, float y) {
  const u32 high = pack2<T>(x, y);
  if (part == 0) return high;
  const f32x2 taken = unpack2<T>(high);
  return pack2<T>(x - taken.x, y - taken.y);
}

template <class T> LAB_DEVICE float rounded(float x) { return unpack2<T>(pack2<T>(x, 0.f)).x; }

// Returns P as the second product uses it: the sum of its parts, which is exact in fp32.
template <class P, class T> LAB_DEVICE float rounded(float p) {
  const float high = rounded<T>(p);
  if constexpr (P::p_parts == 1) return high;
  else return high + rounded<T>(p - high);
}

// Adds the tensor cores' sum over 16 keys to o, rounded to nearest. Without promotion the tensor
// cores add to o themselves and truncate: each addition shrinks |o| a little.
template <class P> LAB_DEVICE void promote(float (&o)[4], const float (&sum)[4]) {
  if constexpr (P::promoted)
#pragma unroll
    for (int i = 0; i < 4; ++i) o[i] = o[i] + sum[i];
}

}  // namespace lab
