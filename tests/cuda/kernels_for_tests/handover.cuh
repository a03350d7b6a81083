// A stage that one thread fills by the TMA, twice, and a warp reads and releases.
#pragma once
#include "lab/tma.cuh"

namespace handover {
using namespace lab;

struct Params {
  const float* in;  // 128
  float* out;       // 32: of each lane, its two columns of either half
};

struct Smem {
  alignas(128) float tile[64];
  Barrier full, empty;
};

template <bool EveryLaneArrives> LAB_KERNEL(64, 1) handover(LAB_GRID_CONSTANT Params p) {
  auto& smem = shared_memory<Smem>();
  if (thread_x() == 0) {
    barrier_init(smem.full, 1);
    barrier_init(smem.empty, EveryLaneArrives ? 32 : 1);
    fence_barrier_init();
  }
  sync_block();
  if (thread_x() == 0) {
    for (int i = 0; i < 2; ++i) {
      barrier_wait(smem.empty, i ^ 1);
      barrier_arrive_expect(smem.full, sizeof(smem.tile));
      bulk_load(smem.tile, p.in + i * 64, sizeof(smem.tile), smem.full);
    }
  } else if (thread_x() >= 32) {
    const int lane = thread_x() - 32;
    float sum = 0.f;
    for (int i = 0; i < 2; ++i) {
      barrier_wait(smem.full, i);
      sum = sum + smem.tile[lane] + smem.tile[lane + 32];
      if constexpr (EveryLaneArrives) {
        barrier_arrive(smem.empty);
      } else {
        sync_warp();
        if (lane == 0) barrier_arrive(smem.empty);
      }
    }
    store_global(p.out + lane, sum);
  }
}

}  // namespace handover
