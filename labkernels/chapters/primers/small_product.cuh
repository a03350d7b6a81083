// A thread keeps `Sums` sums in registers, and the block keeps `Stages` tiles of 32 x Sums weights
// in shared memory. The lines compute y = W^T x, one column of x and y per thread.
#pragma once
#include "lab/core/ptx.cuh"

namespace small_product {
using namespace lab;

constexpr int threads = 128, tile_rows = 32;

struct Params {
  const float* x;  // [n_tiles * tile_rows, threads]
  const float* w;  // [n_tiles * tile_rows, Sums]
  float* y;        // [Sums, threads]
  int n_tiles;
};

template <int Sums, int Stages> struct Smem { float w[Stages][tile_rows][Sums]; };

// [lab: kernel]
template <int Sums, int Stages> LAB_KERNEL(threads, 1) multiply(LAB_GRID_CONSTANT Params p) {
  auto& smem = shared_memory<Smem<Sums, Stages>>();
  float sum[Sums] = {};
  for (int tile = 0; tile < p.n_tiles; ++tile) {
    float* w = smem.w[tile % Stages][0];
    for (int i = thread_x(); i < tile_rows * Sums; i += threads)
      w[i] = load_constant(p.w + tile * tile_rows * Sums + i);
    sync_block();
#pragma unroll 1
    for (int row = 0; row < tile_rows; ++row) {
      const float x = load_constant(p.x + (tile * tile_rows + row) * threads + thread_x());
#pragma unroll
      for (int i = 0; i < Sums; ++i) sum[i] = fma_rn(x, w[row * Sums + i], sum[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < Sums; ++i) store_global(p.y + i * threads + thread_x(), sum[i]);
}
// [/lab: kernel]

}  // namespace small_product
