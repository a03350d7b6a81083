// Formats of 8 bits, and what converts to them and from them.
#pragma once
#include "lab/core/ptx.cuh"
#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include "lab/host/instructions/format_words.hpp"
#else

namespace lab {

struct e4m3 { unsigned char bits; };
struct e5m2 { unsigned char bits; };
struct e4m3x2 : e4m3 { e4m3 high; };  // a tile of codes is a tile of pairs of 16 bits

// Gives the four e4m3 codes of a word as two pairs of f16, which hold all their values.
LAB_DEVICE void widen_e4m3(u32& low, u32& high, u32 codes) {
#if __CUDA_ARCH__ >= 890
  asm("{.reg .b16 lo, hi; mov.b32 {lo, hi}, %2;"
      " cvt.rn.f16x2.e4m3x2 %0, lo; cvt.rn.f16x2.e4m3x2 %1, hi;}"
      : "=r"(low), "=r"(high)
      : "r"(codes));
#else
  const u32 pairs[2] = {select_bytes(codes, 0, 0x1404), select_bytes(codes, 0, 0x3424)};
  u32 wide[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {  // shifted by a bit, a code is an f16 of 2^-8 times its value
    const u32 shifted = (pairs[i] & 0x7f007f00u) >> 1;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(wide[i]) : "r"(shifted), "r"(0x5c005c00u));
    const u32 is_nan = (shifted + 0x00800080u) & 0x40004000u;
    wide[i] |= (pairs[i] & 0x80008000u) | is_nan >> 1;  // the exponent of NaN is all ones
  }
  low = wide[0];
  high = wide[1];
#endif
}

}  // namespace lab
#endif

namespace lab {

// Gives the four codes of a word, in the 8-bit format Code, as two pairs of f16.
template <class Code> LAB_DEVICE void widen_to_f16(u32& low, u32& high, u32 codes);
template <> LAB_DEVICE void widen_to_f16<e4m3>(u32& low, u32& high, u32 codes) {
  widen_e4m3(low, high, codes);
}
template <> LAB_DEVICE void widen_to_f16<e5m2>(u32& low, u32& high, u32 codes) {
  low = select_bytes(codes, 0, 0x1404);  // a code is the high byte of its f16
  high = select_bytes(codes, 0, 0x3424);
}
// Returns a pair of f16 as a pair of T, which has all values of the 8-bit formats.
template <class T> LAB_DEVICE u32 pair_as(u32 pair);
template <> LAB_DEVICE u32 pair_as<f16>(u32 pair) { return pair; }
template <> LAB_DEVICE u32 pair_as<bf16>(u32 pair) {
  const f32x2 x = unpack2<f16>(pair);
  return select_bytes(float_to_bits(x.x), float_to_bits(x.y), 0x7632);
}
// Gives the four codes of a word as two pairs of the 16-bit format T.
template <class T, class Code> LAB_DEVICE void widen(u32& low, u32& high, u32 codes) {
  widen_to_f16<Code>(low, high, codes);
  low = pair_as<T>(low);
  high = pair_as<T>(high);
}

// Rounds a number to a code: to nearest even, and to the largest finite code beyond it; NaN stays.
template <class Code> struct CodeOf;
template <> struct CodeOf<e4m3> {
  static constexpr int fraction_bits = 3, bias = 7;
  static constexpr u32 largest = 0x7e, nan = 0x7f, largest_bits = 0x43e00000u;  // 448
};
template <> struct CodeOf<e5m2> {
  static constexpr int fraction_bits = 2, bias = 15;
  static constexpr u32 largest = 0x7b, nan = 0x7f, largest_bits = 0x47600000u;  // 57,344
};
template <class Code> LAB_DEVICE u32 code_of(float x) {
  using C = CodeOf<Code>;
  constexpr int dropped = 23 - C::fraction_bits;
  const u32 bits = float_to_bits(x), magnitude = bits & 0x7fffffffu, sign = bits >> 24 & 0x80;
  if (magnitude > 0x7f800000u) return C::nan;
  if (magnitude > C::largest_bits) return sign | C::largest;
  if (magnitude < (128u - C::bias) << 23) {  // subnormal: adding 2^(dropped + 1 - bias) rounds
    const u32 step = (128u + dropped - C::bias) << 23;
    return sign | (float_to_bits(bits_to_float(magnitude) + bits_to_float(step)) - step);
  }
  const u32 rounded = magnitude + (1u << (dropped - 1)) - 1 + (magnitude >> dropped & 1);
  return sign | ((rounded >> dropped) - ((127 - C::bias) << C::fraction_bits));
}

// Rounds four numbers to the codes of a word, the first in its lowest byte.
LAB_DEVICE u32 pack4_e4m3(float a, float b, float c, float d) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  u32 word;
  asm("{.reg .b16 lo, hi; cvt.rn.satfinite.e4m3x2.f32 lo, %2, %1;"
      " cvt.rn.satfinite.e4m3x2.f32 hi, %4, %3; mov.b32 %0, {lo, hi};}"
      : "=r"(word)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return word;
#else
  return code_of<e4m3>(a) | code_of<e4m3>(b) << 8 | code_of<e4m3>(c) << 16 | code_of<e4m3>(d) << 24;
#endif
}

}  // namespace lab
