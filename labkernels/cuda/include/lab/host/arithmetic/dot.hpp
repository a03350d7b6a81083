// This computes one output of a tensor core, term by term, for any format of its inputs.
#pragma once
#include "lab/host/machine/multiprocessor.hpp"

namespace lab::host {

enum class Input : unsigned char { f16, bf16, tf32, e4m3, e5m2 };
constexpr int bytes_of(Input input) {
  return input == Input::tf32 ? 4 : input == Input::f16 || input == Input::bf16 ? 2 : 1;
}

// Returns c + sum of a[k] b[k] over n encodings, in ascending chunks of K. With `half`, c and the
// result are fp16 values. 8-bit inputs give what mma.sync on sm_89 and wgmma on sm_90 give.
float dot(Input input, const u32* a, const u32* b, int n, float c, bool half);

// Computes mma.sync of 8-bit inputs on sm_90, which has no unit for them. They are widened to fp16:
// first one pair of every four, and then the other pair. The sum of both is added to c in fp32.
float dot_widened(Input input, const u32* a, const u32* b, float c);

}  // namespace lab::host
