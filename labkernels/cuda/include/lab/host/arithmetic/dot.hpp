// This computes one output of a tensor core, term by term, for any format of its inputs.
#pragma once
#include "lab/host/machine/multiprocessor.hpp"

namespace lab::host {

enum class Input : unsigned char { f16, bf16, e4m3 };

// Returns c + sum of a[k] b[k] over n encodings, in ascending chunks of K.
float dot(Input input, const u32* a, const u32* b, int n, float c);

}  // namespace lab::host
