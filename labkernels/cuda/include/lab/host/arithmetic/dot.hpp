// One output of a tensor core, term by term, for any format of its inputs.
#pragma once
#include "lab/host/machine/multiprocessor.hpp"

namespace lab::host {

enum class Input : unsigned char { f16, bf16, tf32, e4m3, e5m2 };
constexpr int bytes_of(Input input) {
  return input == Input::tf32 ? 4 : input == Input::f16 || input == Input::bf16 ? 2 : 1;
}

// c + sum of a[k] b[k] over n encodings, K in ascending chunks. A `half` c is an fp16 value, and
// so is the result. 8-bit inputs are those of mma.sync on sm_89 and of wgmma on sm_90.
float dot(Input input, const u32* a, const u32* b, int n, float c, bool half);

// 8-bit inputs of mma.sync on sm_90: no unit takes them. They are widened to fp16, a pair of every
// four first, then the other; what both add up to is added to c in fp32.
float dot_widened(Input input, const u32* a, const u32* b, float c);

}  // namespace lab::host
