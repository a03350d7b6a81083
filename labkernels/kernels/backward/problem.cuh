// This file has the keys and rows that a block of the backward pass computes, and the place of the
// rows' workspace. Each request's rows begin at a multiple of `row_padding` in the workspace, so
// that a block can read and add whole tiles of rows without checking where the request ends.
#pragma once
#include "lab/ampere/shared_tile.cuh"
#include "packed_gqa/rows.cuh"

namespace lab {

constexpr int row_padding = LAB_ROW_PADDING;

// Each block has one of these items, in launch order, from the host's plan. `tile` is the number of
// a tile of the request's keys, or of its rows. `awaits` is for launches that overlap
// (overlap.cuh).
struct alignas(16) BackwardWork { int request, tile, head, awaits; };

// Strides count elements; the last dimension is contiguous. kernels/backward/cuda.py mirrors this
// struct.
struct BackwardParams {
  const void *q, *dout, *out;  // [total_q, q_heads, D]; Dv in dout and out
  const void *k, *v;           // [total_k, kv_heads, D]; Dv in v
  const float* lse2;           // [total_q, q_heads], base 2
  const int* cu_seqlens_q;     // [batch + 1]
  const int* cu_seqlens_k;     // [batch + 1]
  const BackwardWork* work;    // [blocks] of this launch
  void *dq, *dk, *dv;          // as q, k, v, each contiguous
  float* row_lse2;             // [q_heads, padded_rows]: +inf where a row sees no key or is padding
  float* row_delta;            // [q_heads, padded_rows]: sum of out dout, 0 in padding
  float* dq_accum;             // [q_heads, padded_rows, D of a tile], by dq_index; before the scale
  int* head_counts;            // [requests, kv_heads, 2], if launches overlap (overlap.cuh)
  i64 q_stride_token, q_stride_head;
  i64 dout_stride_token, dout_stride_head;
  i64 out_stride_token, out_stride_head;
  i64 k_stride_token, k_stride_head;
  i64 v_stride_token, v_stride_head;
  i64 padded_rows;
  int q_heads, kv_heads, group;
  int causal;               // query i of n with L keys sees keys 0 to L - n + i
  float scale, scale_log2;  // scale of the softmax; the same times log2 e
};

LAB_DEVICE int most(int a, int b) { return a > b ? a : b; }
LAB_DEVICE float infinity() { return bits_to_float(0x7f800000u); }

// A request begins at these places in q and out, in k and v, and in the workspace of rows.
struct BackwardRequest {
  i64 first_token, first_kv, first_padded;
  int q_len, kv_len;
  int past;  // keys before the last key that row 0 sees; negative if row 0 sees none

  // Returns the first row that sees a key.
  LAB_DEVICE int first_row(const BackwardParams& p, int key) const {
    return p.causal ? most(0, key - past) : 0;
  }
};

// A row is a token, and sees the keys below this number, as by `row_limit` of packed_gqa/rows.cuh.
// A select takes the place of the branch there: with the branch, ptxas spills more registers, and
// backward_mma takes 1 to 12 % more time on an H200 (data/performance/backward.parquet, commits
// 2fd0b7d and 4a14f10184).
template <class V = Plain, class Params>
LAB_DEVICE int row_limit(const Params& p, const BackwardRequest& r, int row) {
  if constexpr (V::window)
    return most(0, least(r.past + row + 1 + p.variant.window_right, r.kv_len));
  return p.causal ? most(0, least(r.past + row + 1, r.kv_len)) : r.kv_len;
}

// A row sees the keys from this number on.
template <class V, class Params>
LAB_DEVICE int row_begin(const Params& p, const BackwardRequest& r, int row) {
  if constexpr (V::window) return most(0, r.past + row - p.variant.window_left);
  return 0;
}
// Rows from first_seeing to before end_seeing see some of `n` keys from `key` on.
template <class V, class Params>
LAB_DEVICE int first_seeing(const Params& p, const BackwardRequest& r, int key) {
  if constexpr (V::window) return most(0, key - r.past - p.variant.window_right);
  return r.first_row(p, key);
}
template <class V, class Params>
LAB_DEVICE int end_seeing(const Params& p, const BackwardRequest& r, int key, int n) {
  if constexpr (V::window)
    return least(r.q_len, least(key + n, r.kv_len) - r.past + p.variant.window_left);
  return r.q_len;
}
// Returns how many of `n` keys from `key` on lie before the window of the request's first row. No
// row sees them, and they may be NaN.
template <class V, class Params>
LAB_DEVICE int keys_before(const Params& p, const BackwardRequest& r, int key, int n) {
  if constexpr (V::window) return most(0, least(row_begin<V>(p, r, 0) - key, n));
  return 0;
}

LAB_DEVICE BackwardRequest backward_request(const BackwardParams& p, int request) {
  BackwardRequest r;
  r.first_token = load_constant(p.cu_seqlens_q + request);
  r.q_len = load_constant(p.cu_seqlens_q + request + 1) - static_cast<int>(r.first_token);
  r.first_kv = load_constant(p.cu_seqlens_k + request);
  r.kv_len = load_constant(p.cu_seqlens_k + request + 1) - static_cast<int>(r.first_kv);
  r.first_padded = (r.first_token + i64{row_padding} * request) / row_padding * row_padding;
  r.past = r.kv_len - r.q_len;
  return r;
}

LAB_DEVICE BackwardWork load_work(const BackwardWork* work) {
  const u32x4 item = load_constant(reinterpret_cast<const u32x4*>(work));
  return {static_cast<int>(item.v[0]), static_cast<int>(item.v[1]), static_cast<int>(item.v[2]),
          static_cast<int>(item.v[3])};
}
LAB_DEVICE BackwardWork backward_work(const BackwardParams& p) {
  return load_work(p.work + block_x());
}

// Returns where dq_accum holds a row's channel. The order is that of a tensor core's accumulators,
// 16 rows by 8 channels at a time, so that a lane's four floats lie side by side and a warp's are
// contiguous. Lane 4 g + t of fragment (row / 16, channel / 8) has rows g and g + 8, channels 2 t
// and 2 t + 1.
template <int D> LAB_DEVICE i64 dq_index(i64 row, int channel) {
  const i64 fragment = row / 16 * (D / 8) + channel / 8;
  const int lane = static_cast<int>(row % 8) * 4 + channel % 8 / 2;
  return fragment * 128 + lane * 4 + static_cast<int>(row / 8 % 2) * 2 + channel % 2;
}

}  // namespace lab
