// Probes: one instruction on an array of inputs, so that its arithmetic can be read off a device.
#pragma once
#include "lab/ptx.cuh"

namespace lab {

constexpr int probe_threads = 256;

struct Ex2Params {
  const float* x;             // a multiple of probe_threads
  float* y;
};

LAB_KERNEL(probe_threads, 1) probe_ex2(LAB_GRID_CONSTANT Ex2Params p) {
  const i64 i = static_cast<i64>(block_x()) * probe_threads + thread_x();
  store_global(p.y + i, ex2_approx(load_constant(p.x + i)));
}

// Tiles d = c + a b, one a warp, a multiple of probe_tiles of them.
constexpr int probe_tiles = probe_threads / 32;

struct MmaParams {
  const u32* a;               // [tile][16][8] pairs of 16-bit elements, k running along a row
  const u32* b;               // [tile][8][8] such pairs, k running along a column
  const float* c;             // [tile][16][8]
  float* d;                   // [tile][16][8]
};

// Lane 4 g + t holds rows g and g + 8 of a and c, column g of b, and pairs t and t + 4 of k.
template <class T> LAB_KERNEL(probe_threads, 1) probe_mma(LAB_GRID_CONSTANT MmaParams p) {
  const i64 tile = static_cast<i64>(block_x()) * probe_tiles + thread_x() / 32;
  const int g = thread_x() % 32 / 4, t = thread_x() % 4;
  const u32* a = p.a + tile * 128 + g * 8 + t;
  const u32* b = p.b + tile * 64 + g * 8 + t;
  const i64 at = tile * 128 + g * 8 + 2 * t;
  const u32 rows[4] = {load_constant(a), load_constant(a + 64), load_constant(a + 4),
                       load_constant(a + 68)};
  float d[4];
  for (int i = 0; i < 4; ++i) d[i] = load_constant(p.c + at + i / 2 * 64 + i % 2);
  mma_m16n8k16<T>(d, rows, load_constant(b), load_constant(b + 4));
  for (int i = 0; i < 4; ++i) store_global(p.d + at + i / 2 * 64 + i % 2, d[i]);
}

}  // namespace lab
