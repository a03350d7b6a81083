// What one warp hands to another, twice: a stage that the TMA fills and a warp reads and releases,
// and a line that a warp writes behind a named barrier.
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

// Two warps of three, one writing and one reading. Who is ahead waits at the barrier for the other,
// or only arrives there; the barriers' numbers are known when this is compiled, or not.
template <bool Waits> LAB_DEVICE void meet_ahead(int barrier, int threads) {
  if constexpr (Waits) named_sync(barrier, threads);
  else named_arrive(barrier, threads);
}
template <bool Waits, bool KnownBarriers>
LAB_KERNEL(96, 1) exchange(LAB_GRID_CONSTANT Params p) {
  constexpr int threads = 64;
  auto& smem = shared_memory<Smem>();
  const int warp = thread_x() / 32, lane = thread_x() % 32;
  if (warp == 2) return;
  const int written = KnownBarriers ? 1 : 1 + static_cast<int>(load_constant(p.in));  // in[0]: 0
  const int read = written + 1;
  float sum = 0.f;
  for (int i = 0; i < 2; ++i) {
    if (warp == 0) {
      smem.tile[lane] = load_constant(p.in + i * 64 + lane);
      smem.tile[lane + 32] = load_constant(p.in + i * 64 + lane + 32);
      meet_ahead<Waits>(written, threads);
      named_sync(read, threads);
    } else {
      named_sync(written, threads);
      sum = sum + smem.tile[lane] + smem.tile[lane + 32];
      meet_ahead<Waits>(read, threads);
    }
  }
  if (warp == 1) store_global(p.out + lane, sum);
}

}  // namespace handover
