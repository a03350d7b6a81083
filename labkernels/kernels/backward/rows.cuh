// One kernel runs before the backward kernel and computes values of each row; another runs after it
// and makes dq from the fp32 sums. A block takes row_padding rows of a query head, which its work
// item names. A last one, for attention with sinks, sums over all rows of a head.
#pragma once
#include "backward/overlap.cuh"
#include "lab/core/warp.cuh"

namespace lab {

constexpr int row_threads = LAB_THREADS;

// Returns the sum of eight products, in ascending order.
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

// [lab: prepare rows]
// Computes row_lse2 and row_delta, and clears the `Cleared` channels of dq_accum, unless other
// blocks do so. D / 8 lanes share a row. A thread asks for several rows, and clears its part of
// dq_accum while they are on their way.
template <class T, int D, int Cleared>
LAB_KERNEL(row_threads, 4) backward_prepare(LAB_GRID_CONSTANT BackwardParams p) {
  constexpr int lanes = D / 8, rows_per_pass = row_threads / lanes, at_once = 4;
  constexpr int rows_at_once = at_once * rows_per_pass;
  constexpr int zeros = rows_at_once * Cleared / 4 / row_threads;  // of four floats, per thread
  static_assert(row_padding % rows_at_once == 0);
  allow_next_launch();
  const BackwardWork work = backward_work(p);
  const BackwardRequest request = backward_request(p, work.request);
  const int chunk = thread_x() % lanes;
  const i64 first = work.head * p.padded_rows + request.first_padded + work.tile * row_padding;
  f32x4* sums = reinterpret_cast<f32x4*>(p.dq_accum + first * Cleared) + thread_x();
#pragma unroll 1
  for (int i = 0; i < row_padding; i += rows_at_once, sums += zeros * row_threads) {
    u32x4 out[at_once] = {}, dout[at_once] = {};  // [rows, 8 channels]
    float lse2[at_once];                          // [rows]
#pragma unroll
    for (int j = 0; j < at_once; ++j) {
      const int row = work.tile * row_padding + i + j * rows_per_pass + thread_x() / lanes;
      const i64 token = request.first_token + row;
      lse2[j] = infinity();
      if (row >= request.q_len) continue;
      lse2[j] = load_constant(p.lse2 + token * p.q_heads + work.head);
      if (!in_head<D>(chunk * 8)) continue;
      out[j] =
          load8<T>(p.out, token * p.out_stride_token + work.head * p.out_stride_head + chunk * 8);
      dout[j] = load8<T>(p.dout,
                         token * p.dout_stride_token + work.head * p.dout_stride_head + chunk * 8);
    }
    if (Cleared > 0 && work.awaits == 0)
#pragma unroll
      for (int j = 0; j < zeros; ++j) store_global(sums + j * row_threads, f32x4{});
#pragma unroll
    for (int j = 0; j < at_once; ++j) {
      float delta = dot8<T>(out[j], dout[j]);
#pragma unroll
      for (int mask = lanes / 2; mask > 0; mask /= 2) delta = delta + shfl_xor(delta, mask);
      if (chunk == 0) {
        const i64 place = first + i + j * rows_per_pass + thread_x() / lanes;
        // A row without keys has lse2 = -inf: exp2(0 - lse2) would be inf, but exp2(s - inf) is 0.
        store_global(p.row_lse2 + place, lse2[j] == minus_infinity() ? infinity() : lse2[j]);
        store_global(p.row_delta + place, delta);
      }
    }
  }
}
// [/lab: prepare rows]

// [lab: convert dq]
// Computes dq = scale dq_accum, rounded. A warp takes 16 rows by 32 channels: it reads four
// fragments, each of 512 contiguous bytes, and a lane writes 8 channels of the rows g and g + 8.
template <class T, int D>
LAB_KERNEL(row_threads, 4) backward_convert(LAB_GRID_CONSTANT BackwardParams p) {
  constexpr int units = D / 32;
  const BackwardWork work = backward_work(p);
  const BackwardRequest request = backward_request(p, work.request);
  const i64 first = work.head * p.padded_rows + request.first_padded + work.tile * row_padding;
  const float* sums = p.dq_accum + first * D;
  const int lane = thread_x() & 31, g = lane / 4, t = lane % 4;
  if (work.awaits > 0) await_added(p, work, request.q_len);
  else wait_previous_launch();
#pragma unroll 2
  for (int unit = thread_x() / 32; unit < row_padding / 16 * units; unit += row_threads / 32) {
    const int m = unit / units, n = unit % units * 4;
    u32 packed[2][4];  // [2 rows, 4 times 2 channels]
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float* fragment = sums + dq_index<D>(m * 16 + g, (n + j) * 8 + t * 2);
      const f32x4 x = load_global(reinterpret_cast<const f32x4*>(fragment));
#pragma unroll
      for (int r = 0; r < 2; ++r)
        packed[r][j] = pack2<T>(x.v[2 * r] * p.scale, x.v[2 * r + 1] * p.scale);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      quad_transpose(packed[r]);
      const int row = work.tile * row_padding + m * 16 + g + r * 8;
      const i64 head = (request.first_token + row) * p.q_heads + work.head;
      T* place = static_cast<T*>(p.dq) + head * head_channels<D> + (n + t) * 8;
      const u32x4 eight = {{packed[r][0], packed[r][1], packed[r][2], packed[r][3]}};
      if (row < request.q_len && in_head<D>((n + t) * 8))
        store_global(reinterpret_cast<u32x4*>(place), eight);
    }
  }
  if (work.awaits > 0 && block_x() == 0) wait_previous_launch();  // so that it ends first
}
// [/lab: convert dq]

struct SinkParams {
  BackwardParams problem;     // of whose work an item names the block's head
  const BackwardWork* tiles;  // [n_tiles]: all tiles of row_padding rows of a head
  const float* sinks;         // [q_heads]
  float* dsinks;              // [q_heads]
  int n_tiles;
};

// [lab: gradient of sinks]
// A sink is a key with a value of 0, so that its dP is 0. Its gradient is -P delta, summed over the
// head's rows in one order. Padding has a P of 0.
template <int Warps>
LAB_KERNEL(32 * Warps, 4) backward_sinks(LAB_GRID_CONSTANT SinkParams params) {
  static_assert(row_padding == 32 * 4, "a lane takes four rows of a tile");
  static_assert(sizeof(float[Warps]) == LAB_SMEM_BYTES, "the ledger's bytes are the compiler's");
  auto& sums = shared_memory<float[Warps]>();
  const BackwardParams& p = params.problem;
  const int head = backward_work(p).head, lane = thread_x() & 31, warp = thread_x() / 32;
  const float sink = load_constant(params.sinks + head) * log2_e;
  float sum = 0.f;
  wait_previous_launch();
#pragma unroll 2
  for (int i = warp; i < params.n_tiles; i += Warps) {
    const BackwardWork work = load_work(params.tiles + i);
    const i64 row = head * p.padded_rows + backward_request(p, work.request).first_padded +
                    work.tile * row_padding + lane * 4;
    const f32x4 lse2 = load_global(reinterpret_cast<const f32x4*>(p.row_lse2 + row));
    const f32x4 delta = load_global(reinterpret_cast<const f32x4*>(p.row_delta + row));
#pragma unroll
    for (int j = 0; j < 4; ++j) sum = fma_rn(-ex2_approx(sink - lse2.v[j]), delta.v[j], sum);
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) sum = sum + shfl_xor(sum, mask);
  if (lane == 0) sums[warp] = sum;
  sync_block();
  if (thread_x() > 0) return;
  for (int i = 1; i < Warps; ++i) sum = sum + sums[i];
  store_global(params.dsinks + head, sum);
}
// [/lab: gradient of sinks]

}  // namespace lab
