// This file has exchanges between a warp's lanes that take more than one instruction.
#pragma once
#include "lab/core/ptx.cuh"

namespace lab {

// Lane t of a quad has four words of its own, and gets word t of each of the four lanes.
LAB_DEVICE void quad_transpose(u32 (&w)[4]) {
  const int lane = thread_x();
#pragma unroll
  for (int bit = 1; bit < 4; bit *= 2)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int low = bit == 1 ? 2 * i : i, high = low + bit;
      const bool upper = lane & bit;
      const u32 got = float_to_bits(shfl_xor(bits_to_float(upper ? w[low] : w[high]), bit));
      if (upper) w[low] = got;
      else w[high] = got;
    }
}

}  // namespace lab
