// This computes mma.m16n8k16 with 16-bit factors and fp32 accumulators, bit for bit.
#pragma once
#include "lab/host/arithmetic/dot.hpp"

namespace lab::host {

struct F16 {
  static constexpr Input input = Input::f16;
  static constexpr int fraction_bits = 10, exponent_mask = 31, bias = 15;
};
struct Bf16 {
  static constexpr Input input = Input::bf16;
  static constexpr int fraction_bits = 7, exponent_mask = 255, bias = 127;
};

// c += a b
struct Fragments {
  alignas(32) u16 a[16][16];
  alignas(32) u16 b[16][8];
  alignas(32) float c[16][8];
};

template <class Format> void multiply_accumulate(Fragments& f);
extern template void multiply_accumulate<F16>(Fragments&);
extern template void multiply_accumulate<Bf16>(Fragments&);

}  // namespace lab::host
