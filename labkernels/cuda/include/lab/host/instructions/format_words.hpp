// These are the words of lab/core/formats.cuh on the CPU.
#pragma once
#include "lab/host/arithmetic/dot.hpp"
#include "lab/host/instructions/ptx.hpp"

namespace lab {

struct e4m3 { unsigned char bits; };
struct e5m2 { unsigned char bits; };
struct e4m3x2 : e4m3 { e4m3 high; };

namespace host {

template <class T> constexpr Input input_of = Input::f16;
template <> inline constexpr Input input_of<bf16> = Input::bf16;
template <> inline constexpr Input input_of<e4m3> = Input::e4m3;
template <> inline constexpr Input input_of<e4m3x2> = Input::e4m3;

// Returns the f16 of an e4m3 code, whose exponent is biased by 7 and not by 15.
inline u16 f16_of_e4m3(u32 code) {
  const u32 magnitude = code & 0x7f, sign = (code & 0x80) << 8;
  if (magnitude == 0x7f) return 0x7fff;
  if (magnitude < 8)  // subnormal
    return static_cast<u16>(sign | f16_from_float(static_cast<float>(magnitude) * 0x1p-9f));
  return static_cast<u16>(sign | ((magnitude << 7) + 0x2000));
}

}  // namespace host

LAB_DEVICE void widen_e4m3(u32& low, u32& high, u32 codes) {
  u32 wide[4];
  for (int i = 0; i < 4; ++i) wide[i] = host::f16_of_e4m3(codes >> 8 * i & 0xff);
  low = wide[0] | wide[1] << 16;
  high = wide[2] | wide[3] << 16;
}

}  // namespace lab
