// A slow writer and two readers, for the tests of launch order.
#pragma once
#include "lab/core/ptx.cuh"

namespace order {
using namespace lab;

struct Params {
  const float* in;
  float* out;
  int spins, n;
};

// Lets the next launch begin, spins, and writes in[i] + 1 at the very end.
template <int Threads> LAB_KERNEL(Threads, 1) write_late(LAB_GRID_CONSTANT Params p) {
  allow_next_launch();
  const int i = block_x() * Threads + thread_x();
  float x = 1.f;
  for (int k = 0; k < p.spins; ++k) x = fma_rn(x, 0.5f, 0.5f);  // stays 1
  if (i < p.n) store_global(p.out + i, load_global(p.in + i) + x);
}

template <int Threads> LAB_KERNEL(Threads, 1) copy_after(LAB_GRID_CONSTANT Params p) {
  wait_previous_launch();
  const int i = block_x() * Threads + thread_x();
  if (i < p.n) store_global(p.out + i, load_global(p.in + i));
}

// This kernel wrongly reads what the previous launch may not have written yet.
template <int Threads> LAB_KERNEL(Threads, 1) copy_too_soon(LAB_GRID_CONSTANT Params p) {
  const int i = block_x() * Threads + thread_x();
  if (i < p.n) store_global(p.out + i, load_global(p.in + i));
}

}  // namespace order
