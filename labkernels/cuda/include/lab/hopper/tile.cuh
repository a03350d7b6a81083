// This file has tiles in shared memory, as the TMA writes and wgmma reads them, and their products.
#pragma once
#include "lab/ampere/shared_tile.cuh"
#include "lab/hopper/tma.cuh"
#include "lab/hopper/wgmma.cuh"

namespace lab {

// An atom is 8 rows of 64 elements of 16 bits: the swizzle spans the 128 bytes of a row, and
// repeats after 8 rows.
constexpr int atom_rows = LAB_ATOM_ROWS, atom_columns = LAB_ATOM_COLUMNS;
constexpr int atom_elements = atom_rows * atom_columns;

// The atom that comes next in memory is the atom below or the atom beside. It is the atom below
// where a TMA box has 64 columns of all rows, and the atom beside where a box has all columns of
// some rows, such as those of a page.
enum class NextAtom { below, beside };

template <class T_, int Rows, int Columns, NextAtom Next = NextAtom::below> struct SwizzledTile {
  using T = T_;
  static constexpr int rows = Rows, columns = Columns, elements = Rows * Columns;
  // These are the distances in elements from an atom to the one below it, and to the one beside it.
  static constexpr int row_pitch =
      Next == NextAtom::below ? atom_elements : Columns / atom_columns * atom_elements;
  static constexpr int column_pitch =
      Next == NextAtom::below ? Rows / atom_rows * atom_elements : atom_elements;
  static_assert(Rows % atom_rows == 0 && Columns % atom_columns == 0, "whole atoms");
  alignas(1024) T data[Rows * Columns];

  // Returns the atom that holds a row and a column.
  LAB_DEVICE T* atom(int row, int column) {
    return data + row / atom_rows * row_pitch + column / atom_columns * column_pitch;
  }
  LAB_DEVICE const T* atom(int row, int column) const {
    return data + row / atom_rows * row_pitch + column / atom_columns * column_pitch;
  }
  // Returns the place of chunk c of the eight chunks that the row has in the atom of `column`.
  LAB_DEVICE T* chunk_at(int row, int column, int c) {
    return chunk<atom_columns>(reinterpret_cast<T(*)[atom_columns]>(atom(row, column)),
                               row % atom_rows, c);
  }
};

// Returns the place of the chunk that holds a column of a row.
template <class T, int Rows, int Columns, NextAtom Next>
LAB_DEVICE T* chunk_of(SwizzledTile<T, Rows, Columns, Next>& tile, int row, int column) {
  return tile.chunk_at(row, column, column % atom_columns / chunk_elements);
}

// ---- operands of wgmma

// Returns the descriptor of the tile that begins `elements` later in shared memory.
LAB_DEVICE u64 further(u64 descriptor, int elements) { return descriptor + (elements * 2 >> 4); }

// This operand is a tile whose K runs along its rows: `step` describes the columns from k on.
template <class Tile_> struct KMajor {
  using Tile = Tile_;
  u64 descriptor;
  LAB_DEVICE u64 step(int k) const {
    return further(descriptor, k / atom_columns * Tile::column_pitch + k % atom_columns);
  }
};
// This operand is a tile whose K runs down its rows: `step` describes the rows from k on.
template <class Tile_> struct MnMajor {
  using Tile = Tile_;
  u64 descriptor;
  LAB_DEVICE u64 step(int k) const { return further(descriptor, k / atom_rows * Tile::row_pitch); }
};

template <class Tile> LAB_DEVICE KMajor<Tile> k_major(const Tile& tile, int row = 0) {
  return {wgmma_descriptor(tile.atom(row, 0), 16, Tile::row_pitch * 2)};
}
template <class Tile> LAB_DEVICE MnMajor<Tile> mn_major(const Tile& tile, int column = 0) {
  return {wgmma_descriptor(tile.atom(0, column), Tile::column_pitch * 2, Tile::row_pitch * 2)};
}
// An operand that has only `Rows` rows of a tile has this in the place of the tile's type.
template <class Tile, int Rows> struct RowsOf {
  using T = typename Tile::T;
  static constexpr int rows = Rows, columns = Tile::columns;
  static constexpr int row_pitch = Tile::row_pitch, column_pitch = Tile::column_pitch;
};
// Returns `Rows` rows of the tile, from row `first` on, as an operand.
template <int Rows, class Tile>
LAB_DEVICE MnMajor<RowsOf<Tile, Rows>> mn_major_rows(const Tile& tile, int first) {
  return {wgmma_descriptor(tile.atom(first, 0), Tile::column_pitch * 2, Tile::row_pitch * 2)};
}
// Returns the operand that begins `elements` later: another tile of an array of tiles, or later
// columns of the same tile.
template <class Operand> LAB_DEVICE Operand further(const Operand& operand, int elements) {
  return {further(operand.descriptor, elements)};
}

// ---- products

// Issues the wgmma of d = A B^T, or of d += A B^T, without fence and commit, for 64 rows of A. K is
// all columns of B. d: [64 rows, 2 N rows of B].
template <class A, class B, int N>
LAB_DEVICE void multiply_abt(float (&d)[N], const KMajor<A>& a, const KMajor<B>& b,
                             bool accumulate = false) {
  static_assert(B::columns <= A::columns && 2 * N <= B::rows);
#pragma unroll
  for (int k = 0; k < B::columns; k += 16)
    wgmma<typename B::T>(d, a.step(k), b.step(k), k > 0 || accumulate);
}

// Starts d = A B^T, with fence and commit. d may be read after wgmma_wait.
template <class A, class B, int N>
LAB_DEVICE void wgmma_abt(float (&d)[N], const KMajor<A>& a, const KMajor<B>& b) {
  wgmma_fence();
  multiply_abt(d, a, b);
  wgmma_commit();
}
// Starts d = A B^T for 64 rows of A from `row` on.
template <class A, class B, int N>
LAB_DEVICE void wgmma_abt(float (&d)[N], const A& a, int row, const B& b) {
  wgmma_abt(d, k_major(a, row), k_major(b));
}
// Starts d = A B^T, or d += A B^T, with A in registers: one fragment [64 rows, 16] per 16 columns
// of B. Of codes a fragment has 32 columns, which are 16 pairs.
template <class B, int N, int K>
LAB_DEVICE void wgmma_abt(float (&d)[N], const u32 (&a)[K][4], const KMajor<B>& b,
                          bool accumulate = false) {
  static_assert(B::columns >= 16 * K && 2 * N <= B::rows);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < K; ++k) wgmma<typename B::T>(d, a[k], b.step(16 * k), k > 0 || accumulate);
  wgmma_commit();
}
// Starts d += A B, or d = A B, with A in registers: one fragment [64 rows, 16] per 16 rows of B. d:
// [64 rows, 2 N columns of B].
template <class B, int N, int K>
LAB_DEVICE void wgmma_ab(float (&d)[N], const u32 (&a)[K][4], const MnMajor<B>& b,
                         bool accumulate = true) {
  static_assert(B::rows == 16 * K && 2 * N <= B::columns);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < K; ++k)
    wgmma<typename B::T, Major::mn>(d, a[k], b.step(16 * k), k > 0 || accumulate);
  wgmma_commit();
}
template <class B, int N, int K>
LAB_DEVICE void wgmma_ab(float (&d)[N], const u32 (&a)[K][4], const B& b) {
  wgmma_ab(d, a, mn_major(b));
}
// Starts the same product with A in shared memory.
template <class A, class B, int N>
LAB_DEVICE void wgmma_ab(float (&d)[N], const KMajor<A>& a, const MnMajor<B>& b,
                         bool accumulate = true) {
  static_assert(A::columns == B::rows && 2 * N <= B::columns);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < B::rows; k += 16)
    wgmma<typename B::T, Major::k, Major::mn>(d, a.step(k), b.step(k), k > 0 || accumulate);
  wgmma_commit();
}
// Starts d = A^T B, or d += A^T B, for 64 columns of A and all rows of both. d: [64 columns of A, 2
// N columns of B].
template <class A, class B, int N>
LAB_DEVICE void wgmma_atb(float (&d)[N], const MnMajor<A>& a, const MnMajor<B>& b,
                          bool accumulate = false) {
  static_assert(A::rows == B::rows && 2 * N <= B::columns);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < B::rows; k += 16)
    wgmma<typename B::T, Major::mn, Major::mn>(d, a.step(k), b.step(k), k > 0 || accumulate);
  wgmma_commit();
}

// The warpgroups that share a product of M x N take 64 rows each. If there are more than M / 64 of
// them, the warpgroups with the same rows share the columns. A warp has 16 of the rows.
template <int M, int N, int Warpgroups> struct WarpgroupPartition {
  static constexpr int down = M / 64, across = Warpgroups / down;
  static constexpr int rows = 16, columns = N / across, pitch = 16;
  static_assert(down * across == Warpgroups && N % across == 0);
  using Sum = float[1][columns / 8][4];
  LAB_DEVICE static int first_row() { return warpgroup() / across * 64; }  // of the warpgroup
  LAB_DEVICE static int row() { return first_row() + thread_x() / 32 % 4 * 16; }  // of the warp
  LAB_DEVICE static int column() { return warpgroup() % across * columns; }

 private:
  LAB_DEVICE static int warpgroup() { return thread_x() / 128; }
};
// Waits for d's products, but not for the `Later` groups committed since. d may then be read.
template <int Later = 0, int N> LAB_DEVICE void wgmma_wait(float (&d)[N]) {
  wgmma_wait<Later>();
  fence_operand(d);
}

// ---- copies

// Copies rows of a tensor into a tile by cp.async: eight lanes copy 128 bytes of a row. Rows from
// row n on arrive as zeros.
template <int Threads, class T, int Rows, int Columns, NextAtom Next>
LAB_DEVICE void copy_rows(SwizzledTile<T, Rows, Columns, Next>& tile, const void* tensor, i64 first,
                          i64 stride, int n) {
  const int c = thread_x() % 8;
  const T* source = static_cast<const T*>(tensor) + first + c * chunk_elements;
#pragma unroll
  for (int row = thread_x() / 8; row < Rows; row += Threads / 8)
#pragma unroll
    for (int column = 0; column < Columns; column += atom_columns)
      cp_async_16(tile.chunk_at(row, column, c), source + row * stride + column, row < n);
}

// Asks for the rows of a head from a token on, in one box per 64 columns.
template <class Tile>
LAB_DEVICE void load_boxes(Tile& tile, const TensorMap& map, Mbarrier& full, int head, i64 token) {
#pragma unroll
  for (int column = 0; column < Tile::columns; column += atom_columns)
    tma_load(tile.atom(0, column), map, full, column, head, static_cast<int>(token));
}

// Writes zeros to the rows from row n on, up to row `end`. These rows belong to another request, or
// no query sees them, and 0 times a NaN there would be NaN. `threads` threads call this, each with
// its number `thread`; then they call fence_async_shared and meet at a barrier.
template <class Tile> LAB_DEVICE void clear_rows(Tile& tile, int n, int thread, int threads,
                                                 int end = Tile::rows) {
#pragma unroll 1
  for (int i = n * 8 + thread; i < end * 8; i += threads)
#pragma unroll
    for (int column = 0; column < Tile::columns; column += atom_columns)
      *reinterpret_cast<u32x4*>(tile.atom(i / 8, column) + i / 8 % atom_rows * atom_columns +
                                i % 8 * chunk_elements) = {};
}

}  // namespace lab
