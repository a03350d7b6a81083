// Tiles in boxes of the TMA: lines of 64 16-bit elements, in 128-byte swizzle, side by side.
#pragma once
#include "lab/layout.cuh"
#include "lab/tma.cuh"
#include "lab/wgmma.cuh"

namespace lab {

template <class T, int Boxes, int Lines> using Boxed = T[Boxes][Lines][64];

// Asks for the lines of a head from a token on.
template <class T, int Boxes, int Lines>
LAB_DEVICE void load_boxes(Boxed<T, Boxes, Lines>& tile, const TensorMap& map, Barrier& full,
                           int head, i64 token) {
#pragma unroll
  for (int b = 0; b < Boxes; ++b)
    tma_load(tile[b], map, full, b * 64, head, static_cast<int>(token));
}

// Zeroes in the lines from the n-th on, which are another request's, or nobody's: 0 times a NaN of
// theirs is a NaN. `threads` threads do it, this is the thread-th.
template <class T, int Boxes, int Lines>
LAB_DEVICE void clear_lines(Boxed<T, Boxes, Lines>& tile, int n, int thread, int threads) {
#pragma unroll 1
  for (int i = n * 8 + thread; i < Lines * 8; i += threads)
#pragma unroll
    for (int b = 0; b < Boxes; ++b)
      *reinterpret_cast<u32x4*>(&tile[b][i / 8][i % 8 * 8]) = u32x4{{0, 0, 0, 0}};
}

// The same in two tiles, before any of the threads, which meet at a named barrier, goes on.
template <class Tile>
LAB_DEVICE void clear_lines_of_both(Tile& a, Tile& b, int n, int thread, int id, int threads) {
  clear_lines(a, n, thread, threads);
  clear_lines(b, n, thread, threads);
  fence_async_shared();
  named_sync(id, threads);
}

// Operands of wgmma from an element of a box on, whose K runs along the lines, or down them. lines:
// of a box, so many to the next 64 elements.
template <class T> LAB_DEVICE u64 k_major(const T* element) {
  return wgmma_descriptor(element, 16, 1024, Swizzle::b128);
}
template <class T> LAB_DEVICE u64 mn_major(const T* element, int lines) {
  return wgmma_descriptor(element, lines * 128, 1024, Swizzle::b128);
}

// The n-th use of one of several stages: which, and the parity of its barriers' phases.
template <int Stages> struct StageUse {
  int stage, parity;
  LAB_DEVICE explicit StageUse(int n) : stage(n % Stages), parity(n / Stages & 1) {}
};

}  // namespace lab
