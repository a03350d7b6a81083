// K and V lie in pages. This file says where a key lies, and how one warp copies its keys to shared
// memory.
#pragma once
#include "lab/attention/scales.cuh"
#include "lab/ampere/shared_tile.cuh"
#include "lab/attention/variant.cuh"

namespace lab {

// Strides count elements; the last dimension is contiguous. kernels/decode/cuda.py mirrors this
// struct.
struct DecodeParams {
  const void* q;          // [batch, q_heads, D]
  const void* k_pool;     // [pages, page_size, kv_heads, D]
  const void* v_pool;     // [pages, page_size, kv_heads, D], with the strides of k_pool
  const int* page_table;  // [batch, max_pages]: a row lists the pages of one request, in order
  const int* kv_len;      // [batch]
  void* out;              // [batch, q_heads, D]
  float* lse2;            // [batch, q_heads], base 2
  float* partial_o;       // [batch, q_heads, splits, D], not yet divided by l
  float* partial_m;       // [batch, q_heads, splits], log2 units
  float* partial_l;       // [batch, q_heads, splits]
  int* split_semaphores;  // [batch, blocks of a split]: splits that arrived; 0 between launches
  i64 q_stride_batch, q_stride_head;
  i64 kv_stride_page, kv_stride_token, kv_stride_head;
  int page_table_stride, max_pages, page_size;
  int q_heads, kv_heads, group;
  int head_slices;  // blocks that share a KV head's `group` query heads
  int keys_per_split, splits;
  float scale_log2;  // softmax scale times log2 e
};

// The parameter of a kernel whose cache has the format Kv, and Q the format T. Blocks: whether
// blocks of keys have scales, and not heads.
template <class T, class Kv, class V, bool Blocks = false> struct ParamsOfCache {
  using type = WithScales<ParamsOf<DecodeParams, V>>;
};
template <class T, class Kv, class V> struct ParamsOfCache<T, Kv, V, true> {
  using type = WithBlockScales<ParamsOf<DecodeParams, V>>;
};
template <class T, class V> struct ParamsOfCache<T, T, V, false> {
  using type = ParamsOf<DecodeParams, V>;
};

// A block computes this part of the problem: some query heads of one KV head, over one split of the
// keys of one request.
struct DecodeWork {
  int batch, split, kv_head;
  int first_q_head, n_q_heads;
  int first_key, end_key;  // empty if first_key >= end_key
  int live_splits;         // splits of the request that hold keys
};

// Returns the keys per split of a request of which the query sees n keys. Built with these numbers,
// a kernel splits each request by its own length, whatever the other requests are.
LAB_DEVICE int keys_per_split(const DecodeParams& p, int n) {
#ifdef LAB_SPLIT_KEYS
  return LAB_SPLIT_KEYS << (n > LAB_SPLIT_DOUBLED_ABOVE_0) + (n > LAB_SPLIT_DOUBLED_ABOVE_1) +
                               (n > LAB_SPLIT_DOUBLED_ABOVE_2) + (n > LAB_SPLIT_DOUBLED_ABOVE_3);
#else
  return p.keys_per_split;
#endif
}

template <int Rows, class V = Plain, class Params>
LAB_DEVICE DecodeWork decode_work(const Params& p) {
  DecodeWork w;
  w.kv_head = block_x() / p.head_slices;
  const int slice = block_x() - w.kv_head * p.head_slices;
  w.split = block_y();
  w.batch = block_z();
  w.first_q_head = w.kv_head * p.group + slice * Rows;
  const int left = p.group - slice * Rows;
  w.n_q_heads = left < Rows ? left : Rows;
  const int kv_len = load_constant(p.kv_len + w.batch);
  int first = 0;  // the first key that the query sees; its own place is kv_len - 1
  if constexpr (V::window) first = greatest(kv_len - 1 - p.variant.window_left, 0);
  const int keys = keys_per_split(p, kv_len - first);
  w.live_splits = (kv_len - first + keys - 1) / keys;
  w.first_key = first + w.split * keys;
  const int end = w.first_key + keys;
  w.end_key = end < kv_len ? end : kv_len;
  return w;
}

// Begins the softmax of a lane's rows, of which the first is row `first_row` of the block: finds
// their slopes and, in the first warp of the first split, their sinks.
template <class V, class Rows, class Params>
LAB_DEVICE void begin_rows(OnlineSoftmaxOf<Rows>& softmax, Slope (&slopes)[Rows::rows],
                           const Params& p, const DecodeWork& w, int first_row = 0) {
#pragma unroll
  for (int r = 0; r < Rows::rows; ++r) {
    const int row = first_row + Rows::row(r), place = load_constant(p.kv_len + w.batch) - 1;
    if constexpr (V::bias) slopes[r] = slope_of<V>(p, w.first_q_head, place);  // read by all rows
    if (row >= w.n_q_heads) continue;
    const int head = w.first_q_head + row;
    if constexpr (V::by_distance) slopes[r] = slope_of<V>(p, head, place);
    if constexpr (V::sinks)
      if (w.split == 0 && thread_x() < 32) begin_with_sink(softmax, r, p, head);
  }
}

// Returns the numbers by which scores are scaled, with the k_scale of the block's KV head.
template <class V, class Params>
LAB_DEVICE const Params& score_numbers(const Params& p, const DecodeWork&) {
  return p;
}
template <class V, class Params>
LAB_DEVICE Params score_numbers(const WithScales<Params>& p, const DecodeWork& w) {
  const float factor = load_constant(p.scales.k_scale + w.kv_head * p.scales.k_scale_stride);
  Params scaled = p;
  scaled.scale_log2 = p.scale_log2 * factor;
  if constexpr (V::soft_cap) scaled.variant.exponent_of_cap = p.variant.exponent_of_cap * factor;
  return scaled;
}
// Multiplies channels of a query head's output by the v_scale of its KV head.
template <class Params>
LAB_DEVICE void scale_values(const WithScales<Params>& p, i64 head, f32x4& o) {
  const int kv_head = static_cast<int>(head % p.q_heads) / p.group;
  const float factor = load_constant(p.scales.v_scale + kv_head * p.scales.v_scale_stride);
#pragma unroll
  for (int c = 0; c < 4; ++c) o.v[c] = o.v[c] * factor;
}

LAB_DEVICE int row_count(const DecodeWork& work) { return work.n_q_heads; }
LAB_DEVICE i64 head_index(const DecodeParams& p, const DecodeWork& work, int row) {
  return static_cast<i64>(work.batch) * p.q_heads + work.first_q_head + row;
}
LAB_DEVICE i64 semaphore_index(const DecodeParams& p, const DecodeWork& work) {
  return static_cast<i64>(work.batch) * p.kv_heads * p.head_slices + block_x();
}

// A lane has no scales of its keys.
struct NoKeyScales {
  template <class Params> LAB_DEVICE NoKeyScales(const Params&, const DecodeWork&) {}
  LAB_DEVICE void look_up(int, int) {}
  LAB_DEVICE void load(bool) {}
};
// A lane has the scales of its key in each of `Windows` windows, the one that is computed first:
// they are requested as early as the copies of K, and so wait in registers. Scores are multiplied
// by a key's k_scale, and P, before it is rounded, by its v_scale. Both products are exact if the
// scale is a power of two; therefore P is never fp16, whose range they leave. K and V times their
// scales would be rounded once more, and are several times as many numbers.
template <int Windows> struct KeyScales {
  const float *k_scale, *v_scale;  // of this KV head
  const BlockScales& blocks;
  i64 offset;  // of the lane's key in the latest window looked up
  float k[Windows], v[Windows];

  template <class Params>
  LAB_DEVICE KeyScales(const Params& p, const DecodeWork& w)
      : k_scale(p.block_scales.k_scale + w.kv_head * p.block_scales.stride_head),
        v_scale(p.block_scales.v_scale + w.kv_head * p.block_scales.stride_head),
        blocks(p.block_scales), offset(0), k(), v() {}
  LAB_DEVICE void look_up(int page, int token) { offset = blocks.of_slot(page, token); }
  // Requests the scales of the window that was looked up; 0, which is finite, past the last key.
  LAB_DEVICE void load(bool valid) {
#pragma unroll
    for (int i = 1; i < Windows; ++i) {
      k[i - 1] = k[i];
      v[i - 1] = v[i];
    }
    k[Windows - 1] = valid ? load_constant(k_scale + offset) : 0.f;
    v[Windows - 1] = valid ? load_constant(v_scale + offset) : 0.f;
  }
};
template <bool Blocks, int Windows> struct ScalesOfKeys { using type = NoKeyScales; };
template <int Windows> struct ScalesOfKeys<true, Windows> { using type = KeyScales<Windows>; };
// Multiplies columns of scores, or of P, by their keys' scales, of which lane i has that of key i.
template <class Rows, class Scores> LAB_DEVICE void scale_columns(Scores& scores, float scale) {
  constexpr int n = registers_of<Scores> / Rows::rows;
  auto& s = flat(scores);
#pragma unroll
  for (int k = 0; k < n; ++k) {
    const float factor = shfl(scale, Rows::column(k));
#pragma unroll
    for (int r = 0; r < Rows::rows; ++r) s[Rows::at(r, k, n)] = s[Rows::at(r, k, n)] * factor;
  }
}

// A warp has this window on the paged pools, `Keys` keys at a time. Lane i looks up where key i of
// the *next* window lies while the present one is computed, so that the page table's latency is
// hidden.
template <class T, int D, int Keys, class Scales = NoKeyScales> struct PagedWindow {
  static constexpr int chunks = D / elements_of_chunk<T>;  // chunks of one row
  static constexpr int rows_per_pass = 32 / (chunks < 32 ? chunks : 32);
  static_assert(Keys <= 32 && chunks <= 32, "a lane looks up one key; a pass copies whole rows");

  const T *k, *v;  // first element of this KV head
  const int* pages;
  i64 stride_page, stride_token;
  int max_pages, page_size, end_key;
  i64 offset, previous;  // of this lane's key in the latest window looked up, and before
  Scales scales;

  template <class Params>
  LAB_DEVICE PagedWindow(const Params& p, const DecodeWork& w)
      : k(static_cast<const T*>(p.k_pool) + w.kv_head * p.kv_stride_head),
        v(static_cast<const T*>(p.v_pool) + w.kv_head * p.kv_stride_head),
        pages(p.page_table + static_cast<i64>(w.batch) * p.page_table_stride),
        stride_page(p.kv_stride_page), stride_token(p.kv_stride_token), max_pages(p.max_pages),
        page_size(p.page_size), end_key(w.end_key), offset(0), previous(0), scales(p, w) {}

  // Looks up where the lane's key lies. The look-up is bounded by the table and not by the
  // request's length, so that the first look-up does not wait for the length to arrive. Entries
  // past the length may hold anything and are not followed.
  LAB_DEVICE void look_up(int first_key) {
    previous = offset;
    const int key = first_key + (thread_x() & 31) % Keys;
    const int slot = key / page_size;
    if (slot < max_pages) {
      const int page = load_constant(pages + slot), token = key - slot * page_size;
      offset = page * stride_page + token * stride_token;
      scales.look_up(page, token);
    }
  }

  // Issues the copies of the window at first_key, given each lane's offset. Keys past the end
  // arrive as zeros: a masked P of zero times a stale NaN would still be NaN.
  LAB_DEVICE void copy(T (*tile)[D], const T* pool, int first_key, i64 offsets) const {
    const int lane = thread_x() & 31, c = lane % chunks;
#pragma unroll
    for (int pass = 0; pass < Keys / rows_per_pass; ++pass) {
      const int row = pass * rows_per_pass + lane / chunks;
      const i64 start = shfl(offsets, row);
      const bool valid = first_key + row < end_key && in_head<D>(c * elements_of_chunk<T>);
      cp_async_16(chunk<D>(tile, row, c), pool + (valid ? start + c * elements_of_chunk<T> : 0),
                  valid);
    }
  }
};

}  // namespace lab
