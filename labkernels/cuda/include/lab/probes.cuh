// Probes are kernels that run one instruction on an array of inputs, to measure its arithmetic.
#pragma once
#include "lab/hopper/wgmma.cuh"

namespace lab {

constexpr int probe_threads = 256;

struct Ex2Params {
  const float* x;  // a multiple of probe_threads
  float* y;
};

LAB_KERNEL(probe_threads, 1) probe_ex2(LAB_GRID_CONSTANT Ex2Params p) {
  const i64 i = static_cast<i64>(block_x()) * probe_threads + thread_x();
  store_global(p.y + i, ex2_approx(load_constant(p.x + i)));
}

// The tensor cores compute tiles d = c + a b; c and d are float, or f16 in pairs of columns.
struct MmaParams {
  const u32* a;   // [tile][row][bytes of K / 4]
  const u32* b;   // [tile][column][bytes of K / 4]
  const void* c;  // [tile][row][column]
  void* d;
};

// A lane holds these registers of a 16 x 8 part of d; `row` and `column` are those of the first
// register.
template <class Out> struct Accumulator {
  using Register = float;
  static constexpr int registers = 4;
  LAB_DEVICE static i64 index(i64 row, int column, int columns, int i) {
    return (row + i / 2 * 8) * columns + column + i % 2;
  }
};
template <> struct Accumulator<f16> {
  using Register = u32;
  static constexpr int registers = 2;
  LAB_DEVICE static i64 index(i64 row, int column, int columns, int i) {
    return ((row + i * 8) * columns + column) / 2;
  }
};

// Calls move(register, its index in c and d) for all parts of the 16 rows that a warp holds.
template <class Out, int N, class Move>
LAB_DEVICE void each_register(typename Accumulator<Out>::Register (&d)[N], i64 first_row,
                              Move move) {
  constexpr int n = Accumulator<Out>::registers, columns = N / n * 8;
  const i64 row = first_row + thread_x() % 32 / 4;
#pragma unroll
  for (int i = 0; i < N; ++i)
    move(d[i], Accumulator<Out>::index(row, i / n * 8 + thread_x() % 4 * 2, columns, i % n));
}

// For mma.sync a warp has one tile of 16 x 8; the number of tiles is a multiple of probe_tiles.
constexpr int probe_tiles = probe_threads / 32;

template <class T, class Out>
LAB_KERNEL(probe_threads, 1) probe_mma(LAB_GRID_CONSTANT MmaParams p) {
  using Register = typename Accumulator<Out>::Register;
  const i64 tile = static_cast<i64>(block_x()) * probe_tiles + thread_x() / 32;
  const int g = thread_x() % 32 / 4, t = thread_x() % 4;
  const u32* a = p.a + tile * 128 + g * 8 + t;
  const u32* b = p.b + tile * 64 + g * 8 + t;
  const u32 rows[4] = {load_constant(a), load_constant(a + 64), load_constant(a + 4),
                       load_constant(a + 68)};
  Register d[Accumulator<Out>::registers];
  each_register<Out>(d, tile * 16, [&](Register& r, i64 at) {
    r = load_constant(static_cast<const Register*>(p.c) + at);
  });
  mma_m16n8<T>(d, rows, load_constant(b), load_constant(b + 4));
  each_register<Out>(d, tile * 16, [&](Register& r, i64 at) {
    store_global(static_cast<Register*>(p.d) + at, r);
  });
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
template <Major M, Swizzle S, int N, int Steps>
LAB_DEVICE void stage(u32x4 (&tile)[wgmma_chunks<N, Steps>], const u32* from) {
  constexpr int chunks = M == Major::k ? 2 * Steps : N / 8;  // of 16 bytes, in a row of memory
  constexpr int rows = N * 2 * Steps / chunks;
  for (int i = thread_x(); i < N * 2 * Steps; i += wgmma_probe_threads) {
    const int row = i / chunks, c = i % chunks;
    const int below = row / 8, within = row % 8;
    int to;
    if constexpr (S == Swizzle::b128) to = (c / 8 * rows + row) * 8 + (c % 8 ^ within);
    else to = (below * chunks + c) * 8 + within;
    const u32x4 chunk = load_constant(reinterpret_cast<const u32x4*>(from) + i);
    tile[to] = chunk;
  }
}

// Returns the descriptor of the 32 bytes of K that step `step` takes.
template <Major M, Swizzle S, int N, int Steps>
LAB_DEVICE u64 descriptor(const u32x4 (&tile)[wgmma_chunks<N, Steps>], int step) {
  constexpr int core = 128, chunks = M == Major::k ? 2 * Steps : N / 8;
  if constexpr (S == Swizzle::b128) {
    const int first = M == Major::k ? step * 2 : step * 128;
    return wgmma_descriptor(tile + first, M == Major::k ? 16 : 16 * Steps * core, 8 * core, S);
  } else if constexpr (M == Major::k) {
    return wgmma_descriptor(tile + step * 16, core, chunks * core, S);
  } else {
    return wgmma_descriptor(tile + step * 2 * chunks * 8, chunks * core, core, S);
  }
}

template <class T, class Out, Major A, Major B, Swizzle S, bool RegisterA, int Columns,
          int Steps>
LAB_KERNEL(wgmma_probe_threads, 1)
probe_wgmma(LAB_GRID_CONSTANT MmaParams p) {
  using Register = typename Accumulator<Out>::Register;
  auto& smem = shared_memory<WgmmaSmem<Columns, Steps>>();
  const i64 tile = block_x();
  stage<A, S, 64, Steps>(smem.a, p.a + tile * (64 * 8 * Steps));
  stage<B, S, Columns, Steps>(smem.b, p.b + tile * (Columns * 8 * Steps));
  fence_async_shared();
  Register d[Columns / 8 * Accumulator<Out>::registers];
  const i64 first_row = tile * 64 + thread_x() / 32 * 16;
  each_register<Out>(d, first_row, [&](Register& r, i64 at) {
    r = load_constant(static_cast<const Register*>(p.c) + at);
  });
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
    const u64 b = descriptor<B, S, Columns, Steps>(smem.b, step);
    if constexpr (RegisterA) wgmma<T, B>(d, rows[step], b);
    else wgmma<T, A, B>(d, descriptor<A, S, 64, Steps>(smem.a, step), b);
  }
  wgmma_commit();
  wgmma_wait<0>();
  each_register<Out>(d, first_row, [&](Register& r, i64 at) {
    store_global(static_cast<Register*>(p.d) + at, r);
  });
}

}  // namespace lab
