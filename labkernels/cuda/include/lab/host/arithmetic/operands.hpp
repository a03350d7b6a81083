// This file has the bytes of a tensor core's operands, and the registers that hold its results.
#pragma once
#include <cstring>

#include "lab/host/arithmetic/dot.hpp"
#include "lab/host/arithmetic/numbers.hpp"

namespace lab::host {

constexpr int bytes_of_k = 32;  // per instruction
using KBytes = unsigned char[bytes_of_k];

// Writes the encodings in 32 bytes of K, one per word, and returns their number.
inline int unpack(Input input, const KBytes& bytes, u32* words) {
  const int size = bytes_of(input), n = bytes_of_k / size;
  for (int k = 0; k < n; ++k) {
    words[k] = 0;
    std::memcpy(&words[k], bytes + k * size, static_cast<std::size_t>(size));
  }
  return n;
}

// Puts a lane's four registers of a's 16 rows in their places.
inline void place_rows(KBytes (&rows)[16], int lane, const u32* registers) {
  const int g = lane / 4, t = lane % 4;
  for (int i = 0; i < 4; ++i)
    std::memcpy(rows[g + i % 2 * 8] + i / 2 * 16 + t * 4, registers + i, 4);
}

// Calls visit(value, row, column) for what a lane holds of a 16 x 8 part of d.
template <class Visit> void each_result(void* registers, int lane, bool half, Visit visit) {
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    if (half) {
      u16& h = static_cast<u16*>(registers)[i];
      float value = float_from_f16(h);
      visit(value, row, column);
      h = f16_from_float(value);
    } else {
      visit(static_cast<float*>(registers)[i], row, column);
    }
  }
}

}  // namespace lab::host
