// A right use of wgmma, and wrong ones: `number` chooses what is wrong.
#pragma once
#include "lab/hopper/wgmma.cuh"

namespace warpgroup {
using namespace lab;

struct Params {
  const void* in;  // a then b: 64 rows of 16 fp16
  void* out;       // [64][64] float
  int number;
};

enum Mistake {
  nothing,
  no_wait,
  no_commit,
  no_fence,
  overwritten,
  d_touched,
  descriptors_differ,
  base_offset,
  beyond_smem,
  early_look,
  two_groups,
  no_async_fence,
  late_fences,  // right: who multiplies makes the fence, and not who stored
  late_fences_of_some
};

// Rows have 128 bytes, of which a wgmma reads 32.
struct Smem { alignas(1024) u16 a[64 * 64], b[64 * 64]; };

LAB_DEVICE void stage(Smem& smem, const void* in) {
  u16* tile = &smem.a[0];
  for (int i = thread_x(); i < 2048; i += 128) {
    const int row = i / 16, k = i % 16;
    const int place = row * 64 + (k / 8 ^ row % 8) * 8 + k % 8;
    const u16 element = load_constant(static_cast<const u16*>(in) + i);
    tile[place] = element;  // here: written
  }
}

LAB_KERNEL(128, 1) multiply(LAB_GRID_CONSTANT Params p) {
  auto& smem = shared_memory<Smem>();
  stage(smem, p.in);
  const int mistake = p.number;
  if (mistake < no_async_fence || thread_x() == 7) fence_async_shared();
  sync_block();
  if (mistake == late_fences || (mistake == late_fences_of_some && thread_x() != 45))
    fence_async_shared();
  float d[32];
  for (float& x : d) x = 0.f;
  if (mistake != no_fence) wgmma_fence();
  u64 a = wgmma_descriptor(smem.a, 16, 1024);
  const u64 b = wgmma_descriptor(smem.b, 16, 1024);
  if (mistake == descriptors_differ && thread_x() == 40) a += 8;
  if (mistake == base_offset) a |= 1ull << 49;
  if (mistake == beyond_smem) a += 1024;
  wgmma<f16>(d, a, b);  // here: wgmma
  if (mistake != no_commit) wgmma_commit();
  const bool numbers = d[0] == d[0];
  if (mistake == two_groups) {
    wgmma<f16>(d, a, b);
    wgmma_commit();
    wgmma_wait<1>();
    if (d[0] == d[0]) return;  // the second group, which writes d, is in flight
  }
  if (mistake == overwritten && thread_x() == 5) smem.b[3] = 7;
  if (mistake == d_touched) d[4] = 1.f;
  if (mistake != no_wait) wgmma_wait<0>();
  if (mistake == early_look && !numbers) return;  // d was NaN before the wait
  const int row = thread_x() / 32 * 16 + thread_x() % 32 / 4, column = thread_x() % 4 * 2;
  for (int i = 0; i < 32; ++i) {
    const int at = (row + i / 2 % 2 * 8) * 64 + i / 4 * 8 + column + i % 2;
    store_global(static_cast<float*>(p.out) + at, d[i]);
  }
}

// One warp of a warpgroup returns before the wgmma.
LAB_KERNEL(128, 1) three_warps(LAB_GRID_CONSTANT Params p) {
  auto& smem = shared_memory<Smem>();
  stage(smem, p.in);
  fence_async_shared();
  sync_block();
  if (thread_x() >= 96) return;
  float d[32];
  for (float& x : d) x = 0.f;
  const u64 a = wgmma_descriptor(smem.a, 16, 1024);
  wgmma_fence();
  wgmma<f16>(d, a, a);
  wgmma_commit();
  wgmma_wait<0>();
}

}  // namespace warpgroup
