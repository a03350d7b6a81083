// Prefill: which rows and keys a block answers for, and how a block brings Q, K and V to shared
// memory. A request's rows are packed: row r is token r / group, query head r % group of the KV
// head's group, so that a tile of one KV head serves all its query heads.
#pragma once
#include "lab/layout.cuh"
#include "lab/state.cuh"

namespace lab {

// One a block, in launch order, from the host's plan.
struct alignas(16) PrefillWork { int request, q_tile, kv_head, split; };

// Strides count elements; the last dimension is contiguous. kernels/prefill_params.py mirrors it.
struct PrefillParams {
  const void *q;              // [total_q, q_heads, Dqk]
  const void *k, *v;          // [total_k, kv_heads, D], or [pages, page_size, kv_heads, D]
  const int* cu_seqlens_q;    // [batch + 1]
  const int* cu_seqlens_k;    // [batch + 1], ragged K and V alone
  const int* page_table;      // [batch, max_pages], paged K and V alone
  const int* kv_len;          // [batch], paged K and V alone
  const PrefillWork* work;    // [blocks]
  void* out;                  // [total_q, q_heads, Dvo]
  float* lse2;                // [total_q, q_heads], base 2
  float* partial_o;           // [total_q, q_heads, splits, Dvo], not yet divided by l
  float* partial_m;           // [total_q, q_heads, splits], log2 units
  float* partial_l;           // [total_q, q_heads, splits]
  int* tickets;               // ticket_index: splits that have arrived, zero at rest
  i64 q_stride_token, q_stride_head;
  i64 k_stride_page, k_stride_token, k_stride_head;
  i64 v_stride_page, v_stride_token, v_stride_head;
  int page_table_stride, max_pages, page_size;
  int q_heads, kv_heads, group;
  int keys_per_split, splits;
  int causal;                 // query i of n with L keys sees keys 0 to L - n + i
  float scale_log2;           // softmax scale times log2 e
};

enum class Walk { forward, backward };  // the order in which a block goes through its keys

// The part of the problem that one block answers for: `Rows` packed rows of one request and KV
// head, over one split of the keys.
template <int Rows> struct PrefillBlock {
  int request, q_tile, kv_head, split;
  int first_row, n_rows;      // of the request's packed rows; fewer than Rows at their end
  i64 first_token, first_kv;  // the request's first row in q, and in ragged k and v
  int kv_len, past;           // past: keys before the causal row 0's own
  int first_key, end_key;     // of the split, up to the last key that a row of the tile sees
  int live_splits;            // splits of the tile that hold keys which its rows see
};

LAB_DEVICE int least(int a, int b) { return a < b ? a : b; }

// A row sees the keys below this one, which is at least 0.
template <int Rows>
LAB_DEVICE int row_limit(const PrefillParams& p, const PrefillBlock<Rows>& b, int row) {
  if (!p.causal) return b.kv_len;
  const int limit = b.past + (b.first_row + row) / p.group + 1;
  return limit > 0 ? least(limit, b.kv_len) : 0;
}

template <int Rows, bool Paged>
LAB_DEVICE PrefillBlock<Rows> prefill_block(const PrefillParams& p) {
  const u32x4 item = load_constant(reinterpret_cast<const u32x4*>(p.work + block_x()));
  PrefillBlock<Rows> b;
  b.request = static_cast<int>(item.v[0]);
  b.q_tile = static_cast<int>(item.v[1]);
  b.kv_head = static_cast<int>(item.v[2]);
  b.split = static_cast<int>(item.v[3]);
  b.first_token = load_constant(p.cu_seqlens_q + b.request);
  const int n = load_constant(p.cu_seqlens_q + b.request + 1) - static_cast<int>(b.first_token);
  b.first_row = b.q_tile * Rows;
  b.n_rows = least(Rows, n * p.group - b.first_row);
  b.first_kv = 0;
  if constexpr (Paged) {
    b.kv_len = load_constant(p.kv_len + b.request);
  } else {
    b.first_kv = load_constant(p.cu_seqlens_k + b.request);
    b.kv_len = load_constant(p.cu_seqlens_k + b.request + 1) - static_cast<int>(b.first_kv);
  }
  b.past = b.kv_len - n;
  b.first_key = b.split * p.keys_per_split;
  const int visible = row_limit(p, b, b.n_rows - 1);
  b.end_key = least(b.first_key + p.keys_per_split, visible);
  b.live_splits = (visible + p.keys_per_split - 1) / p.keys_per_split;
  return b;
}

// A split that holds none of the tile's keys; the first is there in any case and writes the zeros.
template <int Rows> LAB_DEVICE bool is_idle(const PrefillBlock<Rows>& b) {
  return b.split > 0 && b.first_key >= b.end_key;
}

template <int Rows> LAB_DEVICE int row_count(const PrefillBlock<Rows>& b) { return b.n_rows; }

// A row's place in [total_q, q_heads].
template <int Rows>
LAB_DEVICE i64 head_index(const PrefillParams& p, const PrefillBlock<Rows>& b, int row) {
  const int packed = b.first_row + row, token = packed / p.group;
  return (b.first_token + token) * p.q_heads + b.kv_head * p.group + (packed - token * p.group);
}

// Tiles before a request are at most first_token * group / Rows, rounded down, and one a request.
template <int Rows>
LAB_DEVICE i64 ticket_index(const PrefillParams& p, const PrefillBlock<Rows>& b) {
  return (b.first_token * p.group / Rows + b.request + b.q_tile) * p.kv_heads + b.kv_head;
}

// The tile of Q, in one copy group a thread. Rows past the request's end are zero.
template <class T, int D, int Rows, int Threads>
LAB_DEVICE void load_query(T (&tile)[Rows][D], const PrefillParams& p,
                           const PrefillBlock<Rows>& b) {
  constexpr int chunks = D / chunk_elements;
  const T* q = static_cast<const T*>(p.q) + b.kv_head * p.group * p.q_stride_head;
  for (int i = thread_x(); i < Rows * chunks; i += Threads) {
    const int row = i / chunks, c = i % chunks;
    const int packed = b.first_row + row, token = packed / p.group;
    const T* source = q + (b.first_token + token) * p.q_stride_token +
                      (packed - token * p.group) * p.q_stride_head + c * chunk_elements;
    cp_async_16(chunk<D>(tile, row, c), source, row < b.n_rows);
  }
  cp_async_commit();
}

// The block's window on K and V, `Keys` keys at a time. Eight lanes copy a key, 128 bytes at once;
// a warp copies four keys in a pass. Where paged keys lie, the warp's lanes look up when the window
// moves, each for some of the keys that the warp will copy, so that the page table's latency is
// hidden.
template <class T, int Dqk, int Dvo, int Keys, int Threads, bool Paged> struct KvWindow {
  static constexpr int keys_per_pass = Threads / 8, passes = Keys / keys_per_pass;
  static constexpr int look_ups = Paged ? (passes + 7) / 8 : 1;  // a lane's
  static_assert(Keys % keys_per_pass == 0 && Dqk % 64 == 0 && Dvo % 64 == 0, "whole passes");
  static_assert(keys_per_pass % 8 == 0, "a lane has the same swizzle in every pass");

  const PrefillParams& p;
  const T *k, *v;             // this lane's first 16 bytes; paged: of the pools' first key
  const int* pages;
  int key, end_key;           // of the window's first; keys from the end on arrive as zeros
  i64 k_offset[look_ups], v_offset[look_ups];  // of the keys that this lane has looked up

  LAB_DEVICE KvWindow(const PrefillParams& p_, i64 first_kv, int request, int kv_head, int key_,
                      int end)
      : p(p_), k(static_cast<const T*>(p.k) + kv_head * p.k_stride_head),
        v(static_cast<const T*>(p.v) + kv_head * p.v_stride_head), pages(nullptr), key(key_),
        end_key(end) {
    const int lane_element = thread_x() % 8 * chunk_elements;
    k = k + lane_element;
    v = v + lane_element;
    if constexpr (Paged) {
      pages = p.page_table + static_cast<i64>(request) * p.page_table_stride;
      look_up();
    } else {
      const i64 token = first_kv + key + thread_x() / 8;
      k = k + token * p.k_stride_token;
      v = v + token * p.v_stride_token;
    }
  }

  LAB_DEVICE void move(int keys) {
    key = key + keys;
    if constexpr (Paged) {
      look_up();
    } else {
      k = k + keys * p.k_stride_token;
      v = v + keys * p.v_stride_token;
    }
  }

  // copy_k and copy_v take the address of the tile's chunk (thread / 8, thread % 8).
  LAB_DEVICE void copy_k(u32 address) const { copy<Dqk>(address, k, k_offset, p.k_stride_token); }
  LAB_DEVICE void copy_v(u32 address) const { copy<Dvo>(address, v, v_offset, p.v_stride_token); }

 private:
  LAB_DEVICE void look_up() {
#pragma unroll
    for (int i = 0; i < look_ups; ++i) {
      const int mine = i * 32 + (thread_x() & 31);            // of the warp's 4 * passes keys
      const int at = key + mine / 4 * keys_per_pass + thread_x() / 32 * 4 + mine % 4;
      k_offset[i] = v_offset[i] = 0;
      if (at >= 0 && at < end_key) {
        const int slot = at / p.page_size, token = at - slot * p.page_size;
        const i64 page = load_constant(pages + slot);
        k_offset[i] = page * p.k_stride_page + token * p.k_stride_token;
        v_offset[i] = page * p.v_stride_page + token * p.v_stride_token;
      }
    }
  }

  template <int D>
  LAB_DEVICE void copy(u32 address, const T* base, const i64 (&offsets)[look_ups],
                       i64 stride) const {
#pragma unroll
    for (int pass = 0; pass < passes; ++pass) {
      const T* source;
      if constexpr (Paged)
        source = base + shfl(offsets[pass / 8], pass % 8 * 4 + (thread_x() & 31) / 8);
      else
        source = base + pass * (keys_per_pass * stride);
      const int row = pass * keys_per_pass;
#pragma unroll
      for (int c = 0; c < D / chunk_elements; c += 8)
        cp_async_16(other_chunk(address, c) + row * D * static_cast<int>(sizeof(T)),
                    source + c * chunk_elements, key + thread_x() / 8 + row < end_key);
    }
    cp_async_commit();
  }
};

// Two neighbouring channels of a row's output.
LAB_DEVICE void store2(float* p, float x, float y) {
  const u32x2 pair = {{float_to_bits(x), float_to_bits(y)}};
  store_global(reinterpret_cast<u32x2*>(p), pair);
}
template <class T> LAB_DEVICE void store2(T* p, float x, float y) {
  store_global(reinterpret_cast<u32*>(p), pack2<T>(x, y));
}

}  // namespace lab
