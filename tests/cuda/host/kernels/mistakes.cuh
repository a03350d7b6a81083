// Mistakes, each of which the CPU build has to name. `p.which` chooses one.
#pragma once
#include "lab/core/ptx.cuh"

namespace mistakes {
using namespace lab;

struct Params {
  const float* in;  // [64], read-only
  float* out;       // [64]
  int which;
};

LAB_KERNEL(64, 1) barriers(LAB_GRID_CONSTANT Params p) {
  const int t = thread_x();
  switch (p.which) {
    case 0:
      if (t < 40) sync_block();  // here: not reached by all
      break;
    case 1:
      if (t < 32) sync_block();  // here: one barrier
      else sync_block();         // here: another barrier
      break;
    case 2:
      if ((t & 31) < 16) sync_block();  // here: first half
      else sync_block();                // here: second half
      break;
    case 3:
      if (t == 3) sync_warp();  // here: lane 3 syncs
      else shfl(1.f, 0);        // here: others exchange
      break;
    case 4:
      if (t != 5) shfl(1.f, 0);  // here: without lane 5
      break;
    case 5: {
      float d[4] = {};
      u32 a[4] = {};
      if (t < 8) mma_m16n8k16<f16>(d, a, 0, 0);  // here: mma of some
      else mma_m16n8k16<f16>(d, a, 0, 0);        // here: mma of others
      break;
    }
    case 6:
      if (t == 33) sync_block();     // here: barrier of one
      else if (t > 33) sync_warp();  // here: warp barrier
      break;
  }
}

// Launched with 40 threads: the second warp has 8 lanes.
LAB_KERNEL(64, 1) part_of_a_warp(LAB_GRID_CONSTANT Params p) {
  const float v = shfl_xor(static_cast<float>(thread_x()), 1);
  sync_warp();
  store_global(p.out + thread_x(), v);
  if (p.which == 1) shfl(v, 8);          // here: a missing lane
  if (p.which == 2) movmatrix_trans(1);  // here: whole warps only
}

LAB_KERNEL(64, 1) global_memory(LAB_GRID_CONSTANT Params p) {
  const int t = thread_x();
  auto& smem = shared_memory<u32x4[4]>();
  if (t != 37) return;
  switch (p.which) {
    case 0: load_global(p.in + 64); break;                           // here: behind
    case 1: load_constant(p.in - 1); break;                          // here: before
    case 2: store_global(p.out + 64 + block_x(), 0.f); break;        // here: store behind
    case 3: store_global(const_cast<float*>(p.in) + 5, 0.f); break;  // here: read-only
    case 4: load_constant(p.out); break;                             // here: not constant
    case 5: load_global(static_cast<const float*>(nullptr)); break;  // here: null
    case 6: {
      const auto* odd = reinterpret_cast<const char*>(p.in) + 2;
      load_global(reinterpret_cast<const float*>(odd));  // here: odd address
      break;
    }
    case 7: cp_async_16(&smem[0], p.in + 61, true); break;  // here: source misaligned
    case 8: cp_async_16(&smem[0].v[1], p.in, true); break;  // here: target misaligned
    case 9: cp_async_16(&smem[0], p.in + 64, true); break;  // here: source behind
    case 10: cp_async_16(&smem[4], p.in, true); break;      // here: target behind
    case 11: cp_async_16(&smem[0], p.in, true); break;      // and no wait
    case 12: load_global(reinterpret_cast<const u32x4*>(p.in + 64 - 4 + 4 * block_x())); break;
    case 13: store_global(p.out + *reinterpret_cast<volatile int*>(8), 0.f); break;  // here: wild
    case 14: {
      const int zero = static_cast<int>(load_global(p.in));
      store_global(p.out, static_cast<float>(99 / zero));  // here: by zero
      break;
    }
  }
}

LAB_DEVICE void touch_far(u32* words, int far) { words[far] = 1; }  // here: far

// Plain accesses to shared memory, 256 bytes of it.
LAB_KERNEL(64, 1) shared(LAB_GRID_CONSTANT Params p) {
  auto& words = shared_memory<u32[64]>();
  const int t = thread_x();
  switch (p.which) {
    case 0: store_global(p.out + t, bits_to_float(words[t])); break;  // here: unwritten
    case 1: words[t + 1] = 1; break;                                  // here: word behind
    case 2: touch_far(words, 300000); break;
    case 3: touch_far(words, -300000); break;
    case 4:
      words[t] = 1;                                           // here: own word
      store_global(p.out + t, bits_to_float(words[63 - t]));  // here: other's word
      break;
    case 5: words[t / 2] = 1; break;  // here: same word
    case 6:
      words[t] = 1;
      sync_block();
      if (t == 63) store_global(p.out, bits_to_float(words[0]));  // here: read first
      if (t == 0) words[0] = 2;                                   // here: then written
      break;
    case 7:
      words[t] = 1;
      shfl(1.f, 0);                                          // orders no memory
      store_global(p.out + t, bits_to_float(words[t ^ 1]));  // here: after shfl
      break;
    case 8:
      words[t] = 1;
      sync_warp();
      store_global(p.out + t, bits_to_float(words[t ^ 32]));  // here: other warp's
      break;
    case 9:
      cp_async_16(words, p.in, true);  // here: copied over
      sync_block();
      break;
    case 10: {
      u32 r[4];
      ldmatrix_x4(r, &words[(t & 31) * 4]);  // here: last row behind
      break;
    }
    case 11: p.out[0] = 1.f; break;  // here: wordless
  }
}

// Every thread calls itself until its stack is full.
LAB_DEVICE int nothing() { return 0; }
int deep(int n) {
  volatile int block[256];
  for (int i = 0; i < 256; ++i) block[i] = n;
  return n > 1000000 ? nothing() : deep(n + 1) + block[n & 255];  // here: deep
}
LAB_KERNEL(64, 1) recursion(LAB_GRID_CONSTANT Params p) {
  store_global(p.out + thread_x(), static_cast<float>(deep(p.which)));
}

// The frame reaches past the page between two stacks, into the stack of the thread before.
LAB_KERNEL(64, 1) leap(LAB_GRID_CONSTANT Params p) {
  volatile int frame[1 << 15];
  frame[p.which] = thread_x();  // here: leap
  sync_block();
  store_global(p.out + thread_x(), static_cast<float>(frame[p.which]));
}

// All blocks wait for ever, but if `which` is 2, the first block fails at once.
LAB_KERNEL(32, 1) waiting(LAB_GRID_CONSTANT Params p) {
  if (p.which == 1 || block_x() > 0)
    while (atomic_add_global(reinterpret_cast<int*>(p.out), 0) == 0) {}
  store_global(p.out + (1 << 20), 0.f);
}

// Loops without an end: one exchanges registers, the other calls nothing.
LAB_KERNEL(32, 1) endless(LAB_GRID_CONSTANT Params p) {
  volatile int i = 0;
  float v = 0.f;
  while (p.which == 0 && i < 1) v = v + shfl(v, 0);  // here: exchanges for ever
  while (p.which == 1 && i < 1) {}                   // here: calls nothing
  store_global(p.out + thread_x(), v);
}

}  // namespace mistakes
