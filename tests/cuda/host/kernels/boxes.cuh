// Boxes as they land in shared memory, and runs of bytes that are added to global memory.
#pragma once
#include "lab/hopper/tma.cuh"

namespace boxes {
using namespace lab;

struct Params {
  TensorMap map;
  void* values;        // [boxes][bytes of a box]: what lies in shared memory
  const int* corners;  // [boxes][5], innermost first
  float* tensor;
  int box_bytes;
  int offset;  // of the box in shared memory, in words
  int filler[8];
};

struct Smem {
  alignas(1024) u32 words[16384];
  Mbarrier full;
};

template <int Rank> LAB_DEVICE void load(Smem& smem, const Params& p, const int (&c)[5]) {
  u32* to = smem.words + p.offset;
  if constexpr (Rank == 2) tma_load(to, p.map, smem.full, c[0], c[1]);        // here: 2
  if constexpr (Rank == 3) tma_load(to, p.map, smem.full, c[0], c[1], c[2]);  // here: 3
  if constexpr (Rank == 4) tma_load(to, p.map, smem.full, c[0], c[1], c[2], c[3]);
  if constexpr (Rank == 5) tma_load(to, p.map, smem.full, c[0], c[1], c[2], c[3], c[4]);
}
LAB_DEVICE void corner(const Params& p, int (&c)[5]) {
  for (int i = 0; i < 5; ++i) c[i] = load_constant(p.corners + block_x() * 5 + i);
}

// Each block loads one box, and copies it to `values` as it lies in shared memory.
template <int Rank> LAB_KERNEL(32, 1) loads(LAB_GRID_CONSTANT Params p) {
  auto& smem = shared_memory<Smem>();
  if (thread_x() == 0) {
    mbarrier_init(smem.full, 1);
    fence_mbarrier_init();
    prefetch_tensormap(p.map);
  }
  sync_block();
  int c[5];
  corner(p, c);
  if (thread_x() == 0) {
    mbarrier_arrive_expect_tx(smem.full, p.box_bytes);
    load<Rank>(smem, p, c);
  }
  mbarrier_wait(smem.full, 0);
  u32* out = static_cast<u32*>(p.values) + block_x() * (p.box_bytes / 4);
  const u32* box = smem.words + p.offset;
  for (int i = thread_x(); i < p.box_bytes / 4; i += 32) store_global(out + i, box[i]);
}

// Each block adds one run of `box_bytes` to the tensor, from element c[0] on.
LAB_KERNEL(32, 1) runs(LAB_GRID_CONSTANT Params p) {
  auto& smem = shared_memory<Smem>();
  if (thread_x() == 0) {
    mbarrier_init(smem.full, 1);
    fence_mbarrier_init();
  }
  sync_block();
  int c[5];
  corner(p, c);
  if (thread_x() != 0) return;
  const u32* from = static_cast<const u32*>(p.values) + block_x() * (p.box_bytes / 4);
  mbarrier_arrive_expect_tx(smem.full, p.box_bytes);
  bulk_load(smem.words, from, p.box_bytes, smem.full);
  mbarrier_wait(smem.full, 0);
  const float* sums = reinterpret_cast<const float*>(smem.words);
  bulk_add(p.tensor + c[0], sums, p.box_bytes);
  bulk_commit();
  bulk_wait<0>();
}

}  // namespace boxes
