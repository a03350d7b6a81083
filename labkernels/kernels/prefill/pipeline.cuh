// A block has a pipeline over its keys: its warps share the stages of K and V in shared memory,
// which all threads fill.
#pragma once
#include "packed_gqa/rows.cuh"

namespace lab {

template <class T, int Dqk, int Dvo, int Keys, int Stages> struct BlockStages {
  alignas(128) T k[Stages][Keys][Dqk];
  alignas(128) T v[Stages][Keys][Dvo];
};

// The block has this window on K and V, `Keys` keys at a time. Eight lanes copy a key, 128 bytes at
// once; a warp copies four keys in a pass. When the window moves, these eight lanes look up where
// paged keys lie, each lane for another pass. The look-up comes a step before the copy, so that the
// page table's latency is hidden.
template <class T, int Dqk, int Dvo, int Keys, int Threads, bool Paged, bool Begins>
struct KvWindow {
  static constexpr int keys_per_pass = Threads / 8, passes = Keys / keys_per_pass;
  static constexpr int look_ups = Paged ? (passes + 7) / 8 : 1;  // per lane
  // Paged K and V of equal channels have equal strides, so one offset addresses a key and its
  // value.
  static constexpr bool equal_strides = Paged && Dqk == Dvo;
  static_assert(Keys % keys_per_pass == 0 && Dqk % 64 == 0 && Dvo % 64 == 0, "whole passes");
  static_assert(keys_per_pass % 8 == 0, "a lane has the same swizzle in every pass");

  const PrefillParams& p;
  const T *k, *v;  // ragged: this lane's first 16 bytes; paged: the pools
  // key: the window's first. Keys before begin_key, which is 0 unless `Begins`, and keys from
  // end_key on arrive as zeros.
  int request, key, begin_key, end_key;
  u32 k_chunk, v_chunk;                 // paged: this lane's first chunk of a token
  u32 page[look_ups], token[look_ups];  // offsets of the keys that this lane has looked up

  template <class Block>
  LAB_DEVICE KvWindow(const PrefillParams& p_, const Block& block, int key_, int begin_key_)
      : p(p_), k(static_cast<const T*>(p.k)), v(static_cast<const T*>(p.v)), request(block.request),
        key(key_), begin_key(begin_key_), end_key(block.end_key) {
    const i64 k_head = block.kv_head * p.k_stride_head, v_head = block.kv_head * p.v_stride_head;
    const int chunk = thread_x() % 8;
    if constexpr (Paged) {
      k_chunk = in_chunks(k_head) + chunk;
      v_chunk = in_chunks(v_head) + chunk;
      look_up();
    } else {
      const i64 token = block.first_kv + key + thread_x() / 8;
      k = k + token * p.k_stride_token + k_head + chunk * chunk_elements;
      v = v + token * p.v_stride_token + v_head + chunk * chunk_elements;
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

  // These copy the window's K, its V, or both. An address is that of chunk thread % 8 of a tile's
  // row thread / 8.
  LAB_DEVICE void copy_k(u32 address) const {
    const Rows rows(*this, k_chunk, p.k_stride_page, p.k_stride_token);
#pragma unroll
    for (int pass = 0; pass < passes; ++pass) copy_row<Dqk>(address, k + rows.offset(pass), pass);
    cp_async_commit();
  }
  LAB_DEVICE void copy_v(u32 address) const {
    const Rows rows(*this, v_chunk, p.v_stride_page, p.v_stride_token);
#pragma unroll
    for (int pass = 0; pass < passes; ++pass) copy_row<Dvo>(address, v + rows.offset(pass), pass);
    cp_async_commit();
  }
  LAB_DEVICE void copy_both(u32 k_address, u32 v_address) const {
    const Rows k_rows(*this, k_chunk, p.k_stride_page, p.k_stride_token);
    const Rows v_rows(*this, v_chunk, p.v_stride_page, p.v_stride_token);
#pragma unroll
    for (int pass = 0; pass < passes; ++pass) {
      const i64 row = k_rows.offset(pass);
      copy_row<Dqk>(k_address, k + row, pass);
      copy_row<Dvo>(v_address, v + (equal_strides ? row : v_rows.offset(pass)), pass);
    }
    cp_async_commit();
  }

 private:
  LAB_DEVICE int first_live() const { return Begins ? begin_key : 0; }
  LAB_DEVICE void look_up() {
    const int* pages = p.page_table + static_cast<i64>(request) * p.page_table_stride;
#pragma unroll
    for (int i = 0; i < look_ups; ++i) {
      const int at = key + (i * 8 + thread_x() % 8) * keys_per_pass + thread_x() / 8;
      const u32 slot = page_slot(p, at);
      token[i] = at - slot * p.page_size;
      page[i] = 0;
      if (at >= first_live() && at < end_key)
        page[i] = load_constant(pages + slot);  // used a step later
    }
  }

  LAB_DEVICE static u32 in_chunks(i64 stride) { return static_cast<u32>(stride / chunk_elements); }

  // These are the offsets of the keys that a lane copies, from its first key (ragged) or from the
  // pool's start (paged). Paged rows begin at multiples of 16 bytes. Counted in 16 bytes, offsets
  // fit 32 bits for every pool that PagedKV allows, and take half the registers of 64-bit offsets.
  struct Rows {
    i64 stride;
    u32 chunk, looked_up[look_ups];
    LAB_DEVICE Rows(const KvWindow& w, u32 chunk_, i64 stride_page, i64 stride_token)
        : stride(stride_token), chunk(chunk_) {
      if constexpr (Paged)
#pragma unroll
        for (int i = 0; i < look_ups; ++i)
          looked_up[i] = w.page[i] * in_chunks(stride_page) + w.token[i] * in_chunks(stride_token);
    }
    LAB_DEVICE i64 offset(int pass) const {
      if constexpr (Paged)
        return i64{shfl_octet(looked_up[pass / 8], pass % 8) + chunk} * chunk_elements;
      else return pass * (keys_per_pass * stride);
    }
  };

  template <int D>
  LAB_DEVICE void copy_row(u32 address, const T* source, int pass) const {
    const int row = pass * keys_per_pass, at = key + thread_x() / 8 + row;
#pragma unroll
    for (int c = 0; c < D / chunk_elements; c += 8)
      cp_async_16(other_chunk(address, c) + row * D * static_cast<int>(sizeof(T)),
                  source + c * chunk_elements,
                  at < end_key && (!Begins || at >= begin_key) &&
                      in_head<D>((thread_x() % 8 + c) * chunk_elements));
  }
};

// With two stages, K and V of the next step are copied during this one. With one, V of this step is
// copied during Q K^T, and K of the next step during P V.
template <class T, int Dqk, int Dvo, int Keys, int Threads, int Stages, KeyOrder Order, bool Paged,
          bool Begins = false>
struct BlockPipeline {
  using Buffers = BlockStages<T, Dqk, Dvo, Keys, Stages>;
  static constexpr int step = Order == KeyOrder::ascending ? Keys : -Keys;
  static constexpr u32 k_stage_bytes = sizeof(T) * Keys * Dqk;
  static constexpr u32 v_stage_bytes = sizeof(T) * Keys * Dvo;
  static_assert(Stages == 1 || Stages == 2, "copies run at most a step ahead");

  KvWindow<T, Dqk, Dvo, Keys, Threads, Paged, Begins>
      window;          // a step ahead, if there are two stages
  u32 k_copy, v_copy;  // this lane's addresses in the first stages
  int first_key, stage;

  template <class Block>
  LAB_DEVICE BlockPipeline(const Buffers& stages, const PrefillParams& p, const Block& b,
                           int begin_key = 0)
      : window(p, b, start_key(b), begin_key),
        k_copy(chunk_address<Dqk>(stages.k[0], thread_x() / 8, thread_x() % 8)),
        v_copy(chunk_address<Dvo>(stages.v[0], thread_x() / 8, thread_x() % 8)),
        first_key(b.first_key), stage(0) {}

  template <class Block> LAB_DEVICE static int start_key(const Block& b) {
    if (Order == KeyOrder::ascending || b.end_key <= b.first_key) return b.first_key;
    return b.first_key + (b.end_key - b.first_key - 1) / Keys * Keys;
  }
  LAB_DEVICE bool holds_keys(int at) const {
    return (Order == KeyOrder::ascending || at >= first_key) && at < window.end_key;
  }
  LAB_DEVICE bool more() const { return holds_keys(window.key - (Stages - 1) * step); }
  // Returns the first key of this step, once wait_k has returned.
  LAB_DEVICE int key() const { return window.key - Stages * step; }

  LAB_DEVICE void start() {
    if constexpr (Stages == 1) {
      window.copy_k(k_copy);
    } else {
      window.copy_both(k_copy, v_copy);
      window.move(step);
    }
  }
  // Once this returns, K of this step is there (and V, with two stages), and no warp reads the
  // stage before it.
  LAB_DEVICE void wait_k() {
    cp_async_wait<0>();
    sync_block();
    if constexpr (Stages == 1) {
      window.copy_v(v_copy);
      window.move(step);
    } else {
      if (holds_keys(window.key))
        window.copy_both(k_copy + (stage ^ 1) * k_stage_bytes,
                         v_copy + (stage ^ 1) * v_stage_bytes);
      window.move(step);
    }
  }
  LAB_DEVICE void wait_v() {
    if constexpr (Stages == 1) {
      cp_async_wait<0>();
      sync_block();  // V is there, and no warp reads K any more
      if (holds_keys(window.key)) window.copy_k(k_copy);
    }
  }
  LAB_DEVICE void advance() {
    if constexpr (Stages > 1) stage = stage ^ 1;
  }
};

}  // namespace lab
