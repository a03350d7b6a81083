// These conversions to and from 16 bits round as the GPU does.
#pragma once
#include <bit>
#include <cstdint>

#include "lab/host/machine/multiprocessor.hpp"

namespace lab::host {

constexpr u32 canonical_nan = 0x7fffffff;

inline float as_float(u32 bits) { return std::bit_cast<float>(bits); }
inline u32 as_bits(float x) { return std::bit_cast<u32>(x); }

inline u16 bf16_from_float(float x) {
  const u32 bits = as_bits(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return static_cast<u16>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline u16 f16_from_float(float x) {
  const u32 bits = as_bits(x), sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0x7fff;
  if (magnitude >= 0x477ff000) return static_cast<u16>(sign | 0x7c00);  // 65520 and above
  if (magnitude < 0x38800000) {  // a subnormal result: adding 1/2 rounds at 2^-24
    return static_cast<u16>(sign | (as_bits(as_float(magnitude) + 0.5f) - 0x3f000000));
  }
  const u32 rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return static_cast<u16>(sign | ((rounded - 0x38000000) >> 13));
}

inline float float_from_bf16(u16 h) { return as_float(static_cast<u32>(h) << 16); }

inline float float_from_f16(u16 h) {
  // The multiplication moves the exponent's bias, and normalises a subnormal number.
  const float magnitude = as_float(static_cast<u32>(h & 0x7fff) << 13) * 0x1p112f;
  if (magnitude > 65536.f) return as_float(canonical_nan);
  const u32 infinite = magnitude == 65536.f ? 0x7f800000 : 0;
  return as_float(as_bits(magnitude) | infinite | static_cast<u32>(h & 0x8000) << 16);
}

// Returns the larger of two values: the number, given a number and a NaN, and +0, given +0 and -0.
inline float larger(float a, float b) {
  if (a > b) return a;
  if (b > a) return b;
  if (a == b) return as_float(as_bits(a) & as_bits(b));
  return a == a ? a : b == b ? b : as_float(canonical_nan);
}

// Returns 2^x with the bits of the hardware's ex2.approx.ftz.f32.
extern "C" LAB_EXPORT float lab_ex2_approx(float x);

}  // namespace lab::host
