// These are the words of lab/core/formats.cuh on the CPU.
#pragma once
#include <type_traits>

#include "lab/host/arithmetic/dot.hpp"
#include "lab/host/instructions/ptx.hpp"

namespace lab {

struct tf32 { float value; };
struct e4m3 { unsigned char bits; };
struct e5m2 { unsigned char bits; };
struct e4m3x2 : e4m3 { e4m3 high; };

namespace host {

template <class T> constexpr Input input_of = Input::f16;
template <> inline constexpr Input input_of<bf16> = Input::bf16;
template <> inline constexpr Input input_of<tf32> = Input::tf32;
template <> inline constexpr Input input_of<e4m3> = Input::e4m3;
template <> inline constexpr Input input_of<e4m3x2> = Input::e4m3;
template <> inline constexpr Input input_of<e5m2> = Input::e5m2;

struct FormatOperands {
  const u32* a;
  u32 b[2];
  Input input;
  bool half;
};
LAB_EXPORT void act_mma_format(Warp& warp);

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

template <class T, class D, int Registers>
LAB_WORD void mma_m16n8(D (&d)[Registers], const u32 (&a)[4], u32 b0, u32 b1, LAB_HERE) {
  constexpr bool half = std::is_same_v<D, u32>;
  static_assert(Registers == (half ? 2 : 4) && (!half || std::is_same_v<T, f16>));
  if constexpr (sizeof(T) == 2 && !half) {
    mma_m16n8k16<T>(d, a, b0, b1, here);
  } else {
    const host::FormatOperands operands{a, {b0, b1}, host::input_of<T>, half};
    host::Lane& mine = host::my_lane();
    mine.in = &operands;
    mine.out = d;
    host::meet_whole_warp(host::Word::mma_format, here, host::act_mma_format);
  }
}

}  // namespace lab
