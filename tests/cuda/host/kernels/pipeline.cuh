// A kernel in the shape of the decode kernels: every warp fills and reads stages of its own, and
// the warps' sums merge through shared memory. `Omit` leaves one wait or barrier out.
#pragma once
#include "lab/core/ptx.cuh"

namespace pipeline {
using namespace lab;

enum class Omit { nothing, wait, sync_filled, sync_emptied, sync_merge, last_wait };

struct Params {
  const u32x4* in;  // [steps][warps][32]: 16 x 16 tiles
  float* out;       // [blocks][128]
  int steps;
};

constexpr int warps = 4, stages = 2;

struct Smem {
  u32x4 stage[warps][stages][32];
  float sum[warps][128];
};

LAB_DEVICE void copy(Smem& smem, const Params& p, int step) {
  const int warp = thread_x() / 32, lane = thread_x() & 31;
  const bool valid = step < p.steps;
  const int tile = ((block_x() + step) % p.steps) * warps + warp;
  cp_async_16(&smem.stage[warp][step % stages][lane], p.in + (valid ? tile * 32 + lane : 0), valid);
  cp_async_commit();
}

template <Omit omit> LAB_KERNEL(128, 1) sum_products(LAB_GRID_CONSTANT Params p) {
  auto& smem = shared_memory<Smem>();
  const int warp = thread_x() / 32, lane = thread_x() & 31;
  float d[4] = {0.f, 0.f, 0.f, 0.f}, total = 0.f;
  copy(smem, p, 0);
  for (int step = 0; step < p.steps; ++step) {
    copy(smem, p, step + 1);
    if (omit != Omit::wait) cp_async_wait<1>();
    if (omit != Omit::sync_filled) sync_warp();
    u32x4(&stage)[32] = smem.stage[warp][step % stages];
    u32 a[4];
    ldmatrix_x4(a, &stage[lane]);  // here: ldmatrix
    mma_m16n8k16<bf16>(d, a, a[0], a[3]);
    total = total + bits_to_float(stage[lane ^ 1].v[0] << 16);  // here: plain read
    if (omit != Omit::sync_emptied) sync_warp();
  }
  if (omit != Omit::last_wait) cp_async_wait<0>();
  for (int i = 0; i < 4; ++i) smem.sum[warp][lane * 4 + i] = d[i] + total;  // here: merge write
  if (omit != Omit::sync_merge) sync_block();
  float merged = 0.f;
  for (int w = 0; w < warps; ++w) merged = merged + smem.sum[w][thread_x()];  // here: merge read
  store_global(p.out + block_x() * 128 + thread_x(), merged);
}

}  // namespace pipeline
