// This pipeline has two stages: while a tile is summed, the next tile is copied.
#pragma once
#include "lab/core/ptx.cuh"

namespace small_pipeline {
using namespace lab;

constexpr int stages = 2, tile = 256, threads = 64;

struct Params {
  const float* x;  // [n_tiles, tile]
  float* sums;     // [threads]
  int* trace;      // [2 n_tiles + 2]: j for the fetch of tile j, -1 - j for its use
  int n_tiles;
};
struct Smem { alignas(16) float stage[stages][tile]; };
struct Trace { int n; };

// Starts the copy of a tile into its stage, as one group of this thread's copies.
LAB_DEVICE void fetch(Smem& smem, const Params& p, Trace& trace, int j) {
  cp_async_16(smem.stage[j % stages] + thread_x() * 4, p.x + j * tile + thread_x() * 4, true);
  cp_async_commit();
  if (thread_x() == 0) store_global(p.trace + trace.n++, j);
}
// Adds the thread's part of a tile: words that other threads have copied.
LAB_DEVICE float consume(Smem& smem, const Params& p, Trace& trace, float sum, int j) {
  for (int i = 0; i < tile / threads; ++i)
    sum = sum + smem.stage[j % stages][i * threads + thread_x()];
  if (thread_x() == 0) store_global(p.trace + trace.n++, -1 - j);
  return sum;
}

// [lab: pipeline]
LAB_DEVICE float sum_of_tiles(Smem& smem, const Params& p, Trace& trace) {
  float sum = 0.f;
  fetch(smem, p, trace, 0);
  for (int j = 0; j < p.n_tiles; ++j) {
    if (j + 1 < p.n_tiles) fetch(smem, p, trace, j + 1);
    else cp_async_commit();  // an empty group, so that tile j's group is not the youngest
    cp_async_wait<1>();      // this thread's copies of tile j have landed
    sync_block();            // and those of all other threads
    sum = consume(smem, p, trace, sum, j);
    sync_block();  // no thread reads this stage any more
  }
  return sum;
}
// [/lab: pipeline]

LAB_KERNEL(threads, 1) sum_up(LAB_GRID_CONSTANT Params p) {
  Trace trace = {0};
  store_global(p.sums + thread_x(), sum_of_tiles(shared_memory<Smem>(), p, trace));
}

}  // namespace small_pipeline
