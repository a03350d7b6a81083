// This kernel merges the outputs and log-sum-exps of rows whose keys were attended to in parts, for
// example a shared prefix and a request's own keys, or the keys of several GPUs. A thread takes
// eight channels of a row, and adds the parts in their order.
#pragma once
#include "lab/attention/split_kv.cuh"

namespace merge_states {
using namespace lab;

// Strides count elements; the last dimension of the outputs is contiguous.
struct Params {        // cuda.py mirrors this struct
  const void* outs;    // [states, rows, q_heads, D], of the type of out, or fp32
  const float* lse2s;  // [states, rows, q_heads], base 2
  void* out;           // [rows, q_heads, D]
  float* lse2;         // [rows, q_heads], base 2
  i64 stride_state, stride_row, stride_head;
  i64 lse2_stride_state, lse2_stride_row, lse2_stride_head;
  int states, q_heads;
  int threads;  // that have work: eight channels each
  int fp32;     // whether outs has fp32
};

template <class T, int Dim, int Warps, int Stages, int BlocksPerSm> struct KernelTraits {
  using Out = T;
  static constexpr int dim = Dim, warps = Warps, stages = Stages;
  static constexpr int threads = 32 * Warps, blocks_per_sm = BlocksPerSm;
};

constexpr int thread_channels = 8;

LAB_DEVICE void load8(f32x4 (&x)[2], const float* p) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const u32x4 words = load_constant(reinterpret_cast<const u32x4*>(p + 4 * half));
#pragma unroll
    for (int c = 0; c < 4; ++c) x[half].v[c] = bits_to_float(words.v[c]);
  }
}
template <class T> LAB_DEVICE void load8(f32x4 (&x)[2], const T* p) {
  const u32x4 words = load_constant(reinterpret_cast<const u32x4*>(p));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const f32x2 pair = unpack2<T>(words.v[i]);
    x[i / 2].v[i % 2 * 2] = pair.x;
    x[i / 2].v[i % 2 * 2 + 1] = pair.y;
  }
}

// [lab: merge]
// Merges eight channels of a row's head. A part without keys (lse2 of -inf) is not read.
template <class C, class P, class Part>
LAB_DEVICE void merge_row(const Params& p, int row, int head, int channel) {
  const float* lse2s = p.lse2s + row * p.lse2_stride_row + head * p.lse2_stride_head;
  const Part* outs =
      static_cast<const Part*>(p.outs) + row * p.stride_row + head * p.stride_head + channel;
  float m = lowest_score(), l = 0.f;
  for (int i = 0; i < p.states; ++i) m = maximum(m, load_constant(lse2s + i * p.lse2_stride_state));
  f32x4 o[2] = {};  // [8 channels]
  for (int first = 0; first < p.states; first += C::stages) {
    float weight[C::stages] = {};   // [stages]
    f32x4 part[C::stages][2] = {};  // [stages, 8 channels], loaded before the first sum
#pragma unroll
    for (int i = 0; i < C::stages; ++i) {
      if (first + i >= p.states) continue;
      const float part_m = load_constant(lse2s + (first + i) * p.lse2_stride_state);
      if (part_m == minus_infinity()) continue;
      weight[i] = exp2<P>(part_m - m);
      load8(part[i], outs + (first + i) * p.stride_state);
    }
#pragma unroll
    for (int i = 0; i < C::stages; ++i) merge(l, o, weight[i], 1.f, part[i]);
  }
  const i64 place = static_cast<i64>(row) * p.q_heads + head;
#pragma unroll
  for (int half = 0; half < 2; ++half)
    store_out<typename C::Out, C::dim>(p, place, channel + 4 * half, l, o[half]);
  if (channel == 0) store_global(p.lse2 + place, l == l ? lse2_of(m, l) : l);
}
// [/lab: merge]

template <class C, class P>
LAB_KERNEL(C::threads, C::blocks_per_sm) merge_states(LAB_GRID_CONSTANT Params p) {
  static_assert(LAB_SMEM_BYTES == 0, "the ledger's bytes are the compiler's");
  constexpr int row_threads = C::dim / thread_channels;
  const int i = block_x() * C::threads + thread_x();
  if (i >= p.threads) return;
  const int place = i / row_threads, channel = i % row_threads * thread_channels;
  const int row = place / p.q_heads, head = place - row * p.q_heads;
  if (p.fp32) merge_row<C, P, float>(p, row, head, channel);
  else merge_row<C, P, typename C::Out>(p, row, head, channel);
}

}  // namespace merge_states
