// Shared-memory layout of a tile: rows of D 16-bit elements, in 16-byte chunks.
#pragma once
#include "lab/ptx.cuh"

namespace lab {

constexpr int chunk_elements = 8;  // of 16 bits: what one cp.async and one ldmatrix row move

// Chunk c of a row. The low three bits of c are XORed with the row, so that the eight rows that
// ldmatrix reads at once fall in eight different bank groups.
template <int D, class T> LAB_DEVICE T* chunk(T (*tile)[D], int row, int c) {
  return tile[row] + ((c ^ (row & 7)) * chunk_elements);
}

template <class T, int D> LAB_DEVICE u32x4 load_chunk(T (*tile)[D], int row, int c) {
  return *reinterpret_cast<const u32x4*>(chunk<D>(tile, row, c));
}

}  // namespace lab
