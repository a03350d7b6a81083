// A tile in shared memory has rows of D elements of 16 or 8 bits, in chunks of 16 bytes.
#pragma once
#include "lab/core/head.cuh"

namespace lab {

constexpr int chunk_elements = 8;  // of 16 bits: one cp.async, or a row of an ldmatrix, moves them
template <class T> constexpr int elements_of_chunk = 16 / static_cast<int>(sizeof(T));

// Returns the place of chunk c of a row. The low three bits of c are XORed with the row, so that
// the eight rows that ldmatrix reads at once fall in eight different bank groups. Of rows of 64
// bytes, two share a line of all banks.
template <int D, class T> LAB_DEVICE T* chunk(T (*tile)[D], int row, int c) {
  constexpr int elements = elements_of_chunk<T>;
  if constexpr (D >= 8 * elements) return tile[row] + ((c ^ (row & 7)) * elements);
  else return tile[row] + ((c ^ (row / 2 & 3)) * elements);
}

// Returns the place of the chunk that holds a column of a row.
template <class T, int Rows, int D>
LAB_DEVICE T* chunk_of(T (&tile)[Rows][D], int row, int column) {
  return chunk<D>(tile, row, column / chunk_elements);
}

// Returns the same place as an address in shared memory. The tile begins at a multiple of 128
// bytes, so a lane reaches other chunks of its row, and of the rows 8, 16, ... below it, by
// constant steps.
template <int D, class T> LAB_DEVICE u32 chunk_address(const T (*tile)[D], int row, int c) {
  const int element = row * D + (c & ~7) * chunk_elements + ((c ^ row) & 7) * chunk_elements;
  return shared_address(tile) + element * static_cast<int>(sizeof(T));
}
// Goes from chunk c0 of a row to chunk c0 ^ (c % 8), and from there c / 8 times 128 bytes further.
LAB_DEVICE u32 other_chunk(u32 address, int c) { return (address ^ (c & 7) * 16) + (c >> 3) * 128; }

template <class T, int D> LAB_DEVICE u32x4 load_chunk(T (*tile)[D], int row, int c) {
  return *reinterpret_cast<const u32x4*>(chunk<D>(tile, row, c));
}

}  // namespace lab
