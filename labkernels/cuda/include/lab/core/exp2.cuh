// This file has the exponential and the logarithm in base 2. The functions that consist of FMAs
// give the same bits on any IEEE machine; numerics/emulation/exp2.py has them in NumPy.
#pragma once
#include "lab/core/ptx.cuh"

namespace lab {

LAB_DEVICE float minus_infinity() { return bits_to_float(0xff800000u); }

// Splits x = n + f exactly, with integer n and f in [-1/2, 1/2]: adding 1.5 * 2^23 rounds x to an
// integer and moves its low bits to the bottom of the float.
struct Split {
  float f;
  u32 n;
};
LAB_DEVICE Split split_integer(float x) {
  const float shifter = 12582912.f;
  const float t = x + shifter;
  return {x - (t - shifter), float_to_bits(t)};
}

// Multiplies p in (1/2, 2) by 2^n by adding n to its exponent field.
LAB_DEVICE float scale_exponent(float p, u32 n) {
  return bits_to_float(float_to_bits(p) + (n << 23));
}

// Gives zero below 2^-126, as ex2.approx.ftz does. NaN stays NaN; the integer addition alone would
// turn it into something else.
LAB_DEVICE float finish_exp2(float x, float p, u32 n) {
  return x < -126.f ? 0.f : (x == x ? scale_exponent(p, n) : x);
}

// Returns 2^x. The relative error is at most 1.02e-4 = 2^-13.3, and 0 at integers.
LAB_DEVICE float exp2_poly3(float x) {
  const Split s = split_integer(maximum(x, -126.f));
  float p = 5.500892922e-02f;
  p = fma_rn(p, s.f, 2.422109544e-01f);
  p = fma_rn(p, s.f, 6.932829022e-01f);
  p = fma_rn(p, s.f, 1.f);
  return finish_exp2(x, p, s.n);
}

// Returns 2^x. The relative error is at most 1.7e-7 (under 3 ulp), and 0 at integers.
LAB_DEVICE float exp2_poly5(float x) {
  const Split s = split_integer(maximum(x, -126.f));
  float p = 1.326472731e-03f;
  p = fma_rn(p, s.f, 9.671512991e-03f);
  p = fma_rn(p, s.f, 5.550733581e-02f);
  p = fma_rn(p, s.f, 2.402224243e-01f);
  p = fma_rn(p, s.f, 6.931470037e-01f);
  p = fma_rn(p, s.f, 1.f);
  return finish_exp2(x, p, s.n);
}

// Returns log2 of a normal positive number, within 2 ulp of max(1, |log2 x|): x = 2^e f with f in
// [sqrt(1/2), sqrt 2), log2 f = 2/ln 2 * atanh((f - 1) / (f + 1)).
LAB_DEVICE float log2_poly(float x) {
  const u32 offset = float_to_bits(x) - 0x3f3504f3u;  // bits of sqrt(1/2)
  const int e = static_cast<int>(offset) >> 23;
  const float f = bits_to_float((offset & 0x007fffffu) + 0x3f3504f3u);
  const float r = div_rn(f - 1.f, f + 1.f);
  const float r2 = r * r;
  float p = 0.32059889f;           // 2 / (9 ln 2)
  p = fma_rn(p, r2, 0.41219857f);  // 2 / (7 ln 2)
  p = fma_rn(p, r2, 0.57707804f);  // 2 / (5 ln 2)
  p = fma_rn(p, r2, 0.96179670f);  // 2 / (3 ln 2)
  p = fma_rn(p, r2, 2.88539004f);  // 2 / ln 2
  return fma_rn(p, r, static_cast<float>(e));
}

}  // namespace lab
