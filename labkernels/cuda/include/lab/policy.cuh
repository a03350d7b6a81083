// NumericPolicy: where a kernel rounds, chosen at compile time.
#pragma once
#include "lab/special.cuh"

namespace lab {

enum class Exp2 { mufu, poly3, poly5 };
enum class Denominator { unrounded, rounded };  // l sums P before or after its rounding to 16 bits

template <class Out_, Exp2 Exp2_, Denominator Denominator_> struct Policy {
  using Out = Out_;
  static constexpr Exp2 exp2 = Exp2_;
  static constexpr Denominator denominator = Denominator_;
};

template <class P> LAB_DEVICE float exp2(float x) {
  if constexpr (P::exp2 == Exp2::mufu) return ex2_approx(x);
  else if constexpr (P::exp2 == Exp2::poly3) return exp2_poly3(x);
  else return exp2_poly5(x);
}

// P as the second product sees it: rounded to T.
template <class T> LAB_DEVICE float rounded(float p) { return unpack2<T>(pack2<T>(p, 0.f)).x; }

}  // namespace lab
