// This file has products of tiles in shared memory by mma.sync: how warps share a product, where a
// lane's fragments begin, and the copies that fill the tiles. A tile's rows are multiples of 128
// bytes.
#pragma once
#include "lab/ampere/shared_tile.cuh"

namespace lab {

// The warps that share a product of M x N divide it in the way that reads the least of A and B.
LAB_DEVICE constexpr int warps_down(int m, int n, int warps) {
  int best = 0;
  for (int down = 1; down <= warps; down *= 2) {
    const int across = warps / down;
    if (m % (16 * down) != 0 || n % (16 * across) != 0) continue;
    if (best == 0 || m / down + n / across < m / best + n / (warps / best)) best = down;
  }
  return best;
}
template <int M, int N, int Warps> struct WarpPartition {
  static constexpr int down = warps_down(M, N, Warps), across = Warps / down;
  static constexpr int rows = M / down, columns = N / across;  // rows and columns per warp
  // A warp's columns lie side by side if they are a power of two. Otherwise it has 16 of each 64,
  // since lanes reach chunks of a row by an XOR of their place among eight chunks.
  static constexpr bool apart = (columns & (columns - 1)) != 0 && across > 1;
  static constexpr int pitch = apart ? 64 : 16;  // columns from one 16 of a warp to its next
  static_assert(!apart || across * 16 == pitch);
  using Sum = float[rows / 16][columns / 8][4];
  LAB_DEVICE static int row() { return thread_x() / 32 / across * rows; }
  LAB_DEVICE static int column() { return thread_x() / 32 % across * (apart ? 16 : columns); }
};
// Returns where the n-th eight of a warp's columns lie, as seen from the first.
template <class Part> LAB_DEVICE constexpr int eighth(int n) {
  return n / 2 * Part::pitch + n % 2 * 8;
}

template <int Width, int Pitch = 16> LAB_DEVICE u32 fragment(u32 address, int tile, int step) {
  return other_chunk(address, step * (Pitch / chunk_elements)) +
         tile * 16 * Width * static_cast<int>(sizeof(u16));
}
// An operand of a product is the address at which a lane's rows of its fragments begin. If it is
// transposed, K runs down the rows of the tile, otherwise along a row. Pitch: as in WarpPartition.
template <int Width, bool Transposed, int Pitch = 16> struct Operand {
  u32 address;
  LAB_DEVICE void load(u32 (&f)[4], int outer, int k) const {
    if constexpr (Transposed) ldmatrix_x4_trans(f, fragment<Width, Pitch>(address, k, outer));
    else ldmatrix_x4(f, fragment<Width>(address, outer, k));
  }
};
// Returns the left operand, from the warp's row `first` on.
template <bool Transposed, int Width, class T>
LAB_DEVICE Operand<Width, Transposed> left(const T (*tile)[Width], int first) {
  const int lane = thread_x() & 31;
  if constexpr (Transposed)
    return {chunk_address<Width>(tile, (lane & 7) + (lane >> 4) * 8,
                                 first / chunk_elements + ((lane >> 3) & 1))};
  else return {chunk_address<Width>(tile, first + (lane & 15), lane >> 4)};
}
// Returns the right operand, from the warp's column `first` on.
template <bool Transposed, int Pitch = 16, int Width, class T>
LAB_DEVICE Operand<Width, Transposed, Pitch> right(const T (*tile)[Width], int first) {
  const int lane = thread_x() & 31;
  if constexpr (Transposed)
    return {chunk_address<Width>(tile, lane & 15, first / chunk_elements + (lane >> 4))};
  else return {chunk_address<Width>(tile, first + (lane & 7) + (lane >> 4) * 8, (lane >> 3) & 1)};
}

template <int M, int N> LAB_DEVICE void clear(float (&sum)[M][N][4]) {
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[m][n][i] = 0.f;
}

// [lab: product]
// sum += A B over K terms. sum: [16 M rows, 8 N columns] of the warp.
template <class T, int K, int M, int N, class Left, class Right>
LAB_DEVICE void multiply(float (&sum)[M][N][4], const Left& a, const Right& b) {
#pragma unroll
  for (int k = 0; k < K / 16; ++k) {
    u32 x[M][4];
#pragma unroll
    for (int m = 0; m < M; ++m) a.load(x[m], m, k);
#pragma unroll
    for (int n = 0; n < N / 2; ++n) {
      u32 y[4];
      b.load(y, n, k);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        mma_m16n8k16<T>(sum[m][2 * n], x[m], y[0], y[1]);
        mma_m16n8k16<T>(sum[m][2 * n + 1], x[m], y[2], y[3]);
      }
    }
  }
}
// [/lab: product]

// Copies rows of a tensor into a tile: eight lanes copy 128 bytes of a row. Rows from row n on, and
// the first rows up to row `live`, arrive as zeros.
template <int Threads, class T, int Rows, int D>
LAB_DEVICE void copy_rows(T (&tile)[Rows][D], const void* tensor, i64 first, i64 stride, int n,
                          int live = 0) {
  constexpr int rows_per_pass = Threads / 8;
  static_assert(Rows % rows_per_pass == 0 && rows_per_pass % 8 == 0, "one swizzle in every pass");
  const int row = thread_x() / 8, c = thread_x() % 8;
  const T* source = static_cast<const T*>(tensor) + first + row * stride + c * chunk_elements;
  const u32 place = chunk_address<D>(tile, row, c);
#pragma unroll
  for (int pass = 0; pass < Rows / rows_per_pass; ++pass) {
    const int below = pass * rows_per_pass;
#pragma unroll
    for (int far = 0; far < D / chunk_elements; far += 8)
      cp_async_16(other_chunk(place, far) + below * D * static_cast<int>(sizeof(T)),
                  source + below * stride + far * chunk_elements,
                  row + below < n && (live == 0 || row + below >= live) &&
                      in_head<D>((c + far) * chunk_elements));
  }
}

}  // namespace lab
