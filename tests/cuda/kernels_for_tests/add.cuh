// Small kernels, in the lab's vocabulary, for the tests of the compiler and of the launcher.
#pragma once
#include "lab/core/ptx.cuh"

namespace add {
using namespace lab;

struct Params {
  const float *a, *b;
  float* sum;
  int n;
};

template <int Threads> LAB_KERNEL(Threads, 1) add(LAB_GRID_CONSTANT Params p) {
  const int i = block_x() * Threads + thread_x();
  if (i < p.n) store_global(p.sum + i, load_constant(p.a + i) + load_constant(p.b + i));
}

// The product and the sum round separately, unless the compiler fuses them.
template <int Threads> LAB_KERNEL(Threads, 1) multiply_add(LAB_GRID_CONSTANT Params p) {
  const int i = block_x() * Threads + thread_x();
  const float a = load_constant(p.a + i), b = load_constant(p.b + i);
  store_global(p.sum + i, a * b + a);
}

// Dynamic shared memory, of as many bytes as the ledger says.
struct Smem { float value[LAB_SMEM_BYTES / 4]; };
template <int Threads> LAB_KERNEL(Threads, 1) add_through_smem(LAB_GRID_CONSTANT Params p) {
  static_assert(sizeof(Smem) == LAB_SMEM_BYTES, "the ledger's bytes are the compiler's");
  auto& smem = shared_memory<Smem>();
  const int i = block_x() * Threads + thread_x();
  constexpr int last = LAB_SMEM_BYTES / 4 - Threads;
  smem.value[last + thread_x()] = i < p.n ? load_constant(p.a + i) : 0.f;
  sync_block();
  const int other = Threads - 1 - thread_x();
  const int j = block_x() * Threads + other;
  if (j < p.n) store_global(p.sum + j, smem.value[last + other] + load_constant(p.b + j));
}

// Each of 1024 threads has `Values` live values; the register file has 64 registers for each.
template <int Values> LAB_KERNEL(1024, 1) spill(LAB_GRID_CONSTANT Params p) {
  float value[Values];
#pragma unroll
  for (int i = 0; i < Values; ++i) value[i] = load_global(p.a + i * 1024 + thread_x());
  sync_block();
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < Values; ++i) sum = fma_rn(value[i], value[(i * 7 + 3) % Values], sum);
#pragma unroll
  for (int i = 0; i < Values; ++i) store_global(p.sum + i * 1024 + thread_x(), value[i] * sum);
}

// One mma and four ex2, which the tests count in the machine code.
template <class T> LAB_KERNEL(32, 1) one_mma(LAB_GRID_CONSTANT Params p) {
  float d[4] = {0.f, 0.f, 0.f, 0.f};
  u32 a[4];
  for (int i = 0; i < 4; ++i) a[i] = float_to_bits(load_constant(p.a + 4 * thread_x() + i));
  mma_m16n8k16<T>(d, a, a[0], a[1]);
  for (int i = 0; i < 4; ++i) store_global(p.sum + 4 * thread_x() + i, ex2_approx(d[i]));
}

}  // namespace add
