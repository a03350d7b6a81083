// One warpgroup loads tiles that another multiplies: `mistake` chooses what is wrong.
#pragma once
#include "lab/hopper/tma.cuh"
#include "lab/hopper/wgmma.cuh"

namespace roles {
using namespace lab;

struct Params {
  TensorMap a, b;  // a [64][64 steps], b [N][64 steps]
  float* out;      // [64][N]
  int steps, mistake;
  int filler[12];
};

enum Mistake { nothing, no_arrive, no_wait, early_release, one_warp_waits };

constexpr int threads = 256, tile_k = 64;

template <int N, int Stages> struct Smem {
  alignas(1024) bf16 a[Stages][64 * tile_k], b[Stages][N * tile_k];
  Mbarrier full[Stages], empty[Stages];
};

template <int N, int Stages> LAB_DEVICE void produce(Smem<N, Stages>& smem, const Params& p) {
  setmaxnreg_dec<40>();
  if (thread_x() != 0) return;
  for (int step = 0; step < p.steps; ++step) {
    const int s = step % Stages, round = step / Stages;
    mbarrier_wait(smem.empty[s], 1 ^ (round & 1));  // here: empty
    mbarrier_arrive_expect_tx(smem.full[s], (64 + N) * tile_k * 2);
    tma_load(smem.a[s], p.a, smem.full[s], step * tile_k, 0);  // here: load a
    tma_load(smem.b[s], p.b, smem.full[s], step * tile_k, 0);  // here: load b
  }
}

LAB_DEVICE u64 tile(const bf16* at) { return wgmma_descriptor(at, 16, 1024); }

template <int N, int Stages> LAB_DEVICE void consume(Smem<N, Stages>& smem, const Params& p) {
  setmaxnreg_inc<240>();
  float d[N / 2];
  for (float& x : d) x = 0.f;
  for (int step = 0; step < p.steps; ++step) {
    const int s = step % Stages, round = step / Stages;
    if (p.mistake != no_wait) mbarrier_wait(smem.full[s], round & 1);  // here: full
    wgmma_fence();
    for (int k = 0; k < tile_k / 16; ++k)
      wgmma<bf16>(d, tile(smem.a[s] + k * 16), tile(smem.b[s] + k * 16));  // here: wgmma
    wgmma_commit();
    if (p.mistake != early_release) wgmma_wait<0>();
    if (p.mistake != one_warp_waits) named_sync(1, 128);
    if (thread_x() % 128 == 0 && p.mistake != no_arrive) mbarrier_arrive(smem.empty[s]);
    if (p.mistake == early_release) wgmma_wait<0>();
  }
  const int row = thread_x() % 128 / 32 * 16 + thread_x() % 32 / 4, column = thread_x() % 4 * 2;
  for (int i = 0; i < N / 2; ++i)
    store_global(p.out + (row + i / 2 % 2 * 8) * N + i / 4 * 8 + column + i % 2, d[i]);
}

template <int N, int Stages> LAB_KERNEL(threads, 1) multiply(LAB_GRID_CONSTANT Params p) {
  auto& smem = shared_memory<Smem<N, Stages>>();
  if (thread_x() == 0) {
    for (int s = 0; s < Stages; ++s) {
      mbarrier_init(smem.full[s], 1);
      mbarrier_init(smem.empty[s], 1);
    }
    fence_mbarrier_init();
  }
  sync_block();
  if (thread_x() < 128) produce(smem, p);
  else consume(smem, p);
}

}  // namespace roles
