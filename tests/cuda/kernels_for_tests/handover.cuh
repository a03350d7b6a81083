// Two handovers between warps, each done twice: of a stage that the TMA fills and a warp reads and
// releases, and of a line that a warp writes before a named barrier.
#pragma once
#include "lab/hopper/tma.cuh"

namespace handover {
using namespace lab;

struct Params {
  const float* in;  // 128
  float* out;       // 32: for each lane, the sum of its two columns of both halves
};

struct Smem {
  alignas(128) float tile[64];
  float sums[2][32];
  Mbarrier full, empty;
};

template <bool EveryLaneArrives> LAB_KERNEL(64, 1) handover(LAB_GRID_CONSTANT Params p) {
  auto& smem = shared_memory<Smem>();
  if (thread_x() == 0) {
    mbarrier_init(smem.full, 1);
    mbarrier_init(smem.empty, EveryLaneArrives ? 32 : 1);
    fence_mbarrier_init();
  }
  sync_block();
  if (thread_x() == 0) {
    for (int i = 0; i < 2; ++i) {
      mbarrier_wait(smem.empty, i ^ 1);
      mbarrier_arrive_expect_tx(smem.full, sizeof(smem.tile));
      bulk_load(smem.tile, p.in + i * 64, sizeof(smem.tile), smem.full);
    }
  } else if (thread_x() >= 32) {
    const int lane = thread_x() - 32;
    float sum = 0.f;
    for (int i = 0; i < 2; ++i) {
      mbarrier_wait(smem.full, i);
      sum = sum + smem.tile[lane] + smem.tile[lane + 32];
      if constexpr (EveryLaneArrives) {
        mbarrier_arrive(smem.empty);
      } else {
        sync_warp();
        if (lane == 0) mbarrier_arrive(smem.empty);
      }
    }
    store_global(p.out + lane, sum);
  }
}

// Two of three warps exchange a line. After its writes, the writer arrives at a barrier, and waits
// there if `Waits`. The reader does the same after its reads.
template <bool Waits> LAB_DEVICE void leave(int barrier) {
  if constexpr (Waits) named_sync(barrier, 64);
  else named_arrive(barrier, 64);
}
template <bool Waits> LAB_DEVICE void write_line(Smem& smem, const float* in, int lane) {
  for (int i = 0; i < 2; ++i) {
    smem.tile[lane] = load_constant(in + i * 64 + lane);
    smem.tile[lane + 32] = load_constant(in + i * 64 + lane + 32);
    leave<Waits>(1);
    named_sync(2, 64);
  }
}
template <bool Waits> LAB_DEVICE float read_line(const Smem& smem, int lane) {
  float sum = 0.f;
  for (int i = 0; i < 2; ++i) {
    named_sync(1, 64);
    sum = sum + smem.tile[lane] + smem.tile[lane + 32];
    leave<Waits>(2);
  }
  return sum;
}
// Both warps write, wait for each other, and read.
LAB_DEVICE float other_sum(Smem& smem, float sum, int warp, int lane) {
  smem.sums[warp][lane] = sum;
  named_sync(3, 64);
  return smem.sums[warp ^ 1][lane];
}
template <bool Waits> LAB_KERNEL(96, 1) exchange(LAB_GRID_CONSTANT Params p) {
  auto& smem = shared_memory<Smem>();
  const int warp = thread_x() / 32, lane = thread_x() % 32;
  if (warp == 2) return;
  float sum = 0.f;
  if (warp == 0) write_line<Waits>(smem, p.in, lane);
  else sum = read_line<Waits>(smem, lane);
  sum = sum + other_sum(smem, sum, warp, lane);
  if (warp == 0) store_global(p.out + lane, sum);
}

}  // namespace handover
