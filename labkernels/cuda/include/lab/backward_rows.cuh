// Before and after the backward kernel: what it needs of each row, and dq from its fp32 sums.
// A block takes row_padding rows of a query head: its work item says which.
#pragma once
#include "lab/backward.cuh"

namespace lab {

constexpr int row_threads = 256;

// Sum of eight products, in order.
template <class T> LAB_DEVICE float dot8(const u32x4& a, const u32x4& b) {
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const f32x2 x = unpack2<T>(a.v[i]), y = unpack2<T>(b.v[i]);
    sum = fma_rn(x.x, y.x, sum);
    sum = fma_rn(x.y, y.y, sum);
  }
  return sum;
}

template <class T> LAB_DEVICE u32x4 load8(const void* tensor, i64 element) {
  return load_constant(reinterpret_cast<const u32x4*>(static_cast<const T*>(tensor) + element));
}

LAB_DEVICE f32x4 load4(const float* p) {
  const u32x4 bits = load_constant(reinterpret_cast<const u32x4*>(p));
  f32x4 x;
#pragma unroll
  for (int i = 0; i < 4; ++i) x.v[i] = bits_to_float(bits.v[i]);
  return x;
}

// [lab: prepare rows]
// row_lse2, row_delta, and a dq_accum of zeros where ClearDq. D / 8 lanes share a row.
template <class T, int D, bool ClearDq>
LAB_KERNEL(row_threads, 4) backward_prepare(LAB_GRID_CONSTANT BackwardParams p) {
  constexpr int lanes = D / 8, rows_per_pass = row_threads / lanes;
  const BackwardWork work = backward_work(p);
  const BackwardRequest request = backward_request(p, work.request);
  const int chunk = thread_x() % lanes;
#pragma unroll 4
  for (int i = thread_x() / lanes; i < row_padding; i += rows_per_pass) {
    const int row = work.tile * row_padding + i;
    const i64 token = request.first_token + row;
    const bool inside = row < request.q_len;
    float delta = 0.f, lse2 = infinity();
    if (inside) {
      const i64 out = token * p.out_stride_token + work.head * p.out_stride_head;
      const i64 dout = token * p.dout_stride_token + work.head * p.dout_stride_head;
      delta = dot8<T>(load8<T>(p.out, out + chunk * 8), load8<T>(p.dout, dout + chunk * 8));
      lse2 = load_constant(p.lse2 + token * p.q_heads + work.head);
    }
#pragma unroll
    for (int mask = lanes / 2; mask > 0; mask /= 2) delta = delta + shfl_xor(delta, mask);
    if (chunk == 0) {
      const i64 place = work.head * p.padded_rows + request.first_padded + row;
      // no key: exp2(0 + inf) must not be; exp2(s - inf) is 0
      store_global(p.row_lse2 + place, lse2 == minus_infinity() ? infinity() : lse2);
      store_global(p.row_delta + place, delta);
    }
  }
  if constexpr (ClearDq) {
    const i64 first = work.head * p.padded_rows + request.first_padded + work.tile * row_padding;
    f32x4* sums = reinterpret_cast<f32x4*>(p.dq_accum + first * D);
    for (int i = thread_x(); i < row_padding * D / 4; i += row_threads)
      store_global(sums + i, f32x4{});
  }
}
// [/lab: prepare rows]

// [lab: convert dq]
// dq = scale dq_accum, rounded. A thread takes 8 channels of the rows g and g + 8 of a fragment.
template <class T, int D>
LAB_KERNEL(row_threads, 4) backward_convert(LAB_GRID_CONSTANT BackwardParams p) {
  constexpr int fragments = D / 8;
  const BackwardWork work = backward_work(p);
  const BackwardRequest request = backward_request(p, work.request);
  const i64 first = work.head * p.padded_rows + request.first_padded + work.tile * row_padding;
  const float* sums = p.dq_accum + first * D;
  for (int i = thread_x(); i < row_padding / 2 * fragments; i += row_threads) {
    const int n = i % fragments, g = i / fragments % 8, m = i / fragments / 8;
    const int row = work.tile * row_padding + m * 16 + g;
    if (row >= request.q_len) continue;
    u32x4 packed[2];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const f32x4 x = load4(sums + dq_index<D>(m * 16 + g, n * 8 + t * 2));
#pragma unroll
      for (int r = 0; r < 2; ++r)
        packed[r].v[t] = pack2<T>(x.v[2 * r] * p.scale, x.v[2 * r + 1] * p.scale);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const i64 head = (request.first_token + row + r * 8) * p.q_heads + work.head;
      T* place = static_cast<T*>(p.dq) + head * D + n * 8;
      if (row + r * 8 < request.q_len) store_global(reinterpret_cast<u32x4*>(place), packed[r]);
    }
  }
}
// [/lab: convert dq]

}  // namespace lab
