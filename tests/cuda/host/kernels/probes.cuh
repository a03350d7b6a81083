// This probe runs wgmma on an array of inputs, to compare its arithmetic with the models.
#pragma once
#include "lab/hopper/wgmma.cuh"

namespace lab {

// The tensor cores compute tiles d = c + a b; c and d are float.
struct MmaParams {
  const u32* a;    // [tile][row][bytes of K / 4]
  const u32* b;    // [tile][column][bytes of K / 4]
  const float* c;  // [tile][row][column]
  float* d;
};

// Calls move(register, its index in c and d) for all parts of the 16 rows that a warp holds.
template <int N, class Move>
LAB_DEVICE void each_register(float (&d)[N], i64 first_row, Move move) {
  const i64 row = first_row + thread_x() % 32 / 4;
#pragma unroll
  for (int i = 0; i < N; ++i)
    move(d[i], (row + i % 4 / 2 * 8) * (2 * N) + i / 4 * 8 + thread_x() % 4 * 2 + i % 2);
}

// For wgmma a block has one tile of 64 x `Columns`, and K takes `Steps` instructions. For Major::mn
// the memory is [tile][element of K][row or column].
constexpr int wgmma_probe_threads = 128;

// This many chunks of 16 bytes hold N rows of `Steps` x 32 bytes; a swizzle spans 64 rows.
template <int N, int Steps> constexpr int wgmma_chunks = (N + 63) / 64 * 64 * 2 * Steps;

template <int Columns, int Steps> struct WgmmaSmem {
  alignas(1024) u32x4 a[wgmma_chunks<64, Steps>], b[wgmma_chunks<Columns, Steps>];
};

// Puts N rows of `Steps` x 32 bytes (Major::mn: 16 Steps of N elements) where wgmma finds them.
template <Major M, int N, int Steps>
LAB_DEVICE void stage(u32x4 (&tile)[wgmma_chunks<N, Steps>], const u32* from) {
  constexpr int chunks = M == Major::k ? 2 * Steps : N / 8;  // of 16 bytes, in a row of memory
  constexpr int rows = N * 2 * Steps / chunks;
  for (int i = thread_x(); i < N * 2 * Steps; i += wgmma_probe_threads) {
    const int row = i / chunks, c = i % chunks;
    const u32x4 chunk = load_constant(reinterpret_cast<const u32x4*>(from) + i);
    tile[(c / 8 * rows + row) * 8 + (c % 8 ^ row % 8)] = chunk;
  }
}

// Returns the descriptor of the 32 bytes of K that step `step` takes.
template <Major M, int N, int Steps>
LAB_DEVICE u64 descriptor(const u32x4 (&tile)[wgmma_chunks<N, Steps>], int step) {
  constexpr int core = 128;
  const int first = M == Major::k ? step * 2 : step * 128;
  return wgmma_descriptor(tile + first, M == Major::k ? 16 : 16 * Steps * core, 8 * core);
}

template <class T, Major A, Major B, bool RegisterA, int Columns, int Steps>
LAB_KERNEL(wgmma_probe_threads, 1) probe_wgmma(
    LAB_GRID_CONSTANT MmaParams p) {
  auto& smem = shared_memory<WgmmaSmem<Columns, Steps>>();
  const i64 tile = block_x();
  stage<A, 64, Steps>(smem.a, p.a + tile * (64 * 8 * Steps));
  stage<B, Columns, Steps>(smem.b, p.b + tile * (Columns * 8 * Steps));
  fence_async_shared();
  float d[Columns / 2];
  const i64 first_row = tile * 64 + thread_x() / 32 * 16;
  each_register(d, first_row, [&](float& x, i64 at) { x = load_constant(p.c + at); });
  sync_block();
  u32 rows[Steps][4];
  if constexpr (RegisterA) {
    const int g = thread_x() % 32 / 4, t = thread_x() % 4;
#pragma unroll
    for (int step = 0; step < Steps; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        rows[step][i] =
            load_constant(p.a + ((first_row + g + i % 2 * 8) * Steps + step) * 8 + i / 2 * 4 + t);
  }
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < Steps; ++step) {
    const u64 b = descriptor<B, Columns, Steps>(smem.b, step);
    if constexpr (RegisterA) wgmma<T, B>(d, rows[step], b);
    else wgmma<T, A, B>(d, descriptor<A, 64, Steps>(smem.a, step), b);
  }
  wgmma_commit();
  wgmma_wait<0>();
  each_register(d, first_row, [&](float& x, i64 at) { store_global(p.d + at, x); });
}

}  // namespace lab
