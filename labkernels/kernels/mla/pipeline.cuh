// In an MLA decode all query heads of a request share one latent row per key. The row has two
// parts: ckv, which is also V, and kpe, which carries the key's position. Rows are packed as in a
// prefill of one KV head (packed_gqa/rows.cuh): row r is token r / heads and head r % heads, so
// that a tile serves several tokens.
#pragma once
#include "packed_gqa/rows.cuh"

namespace lab {

// Strides count elements; the last dimension is contiguous. kernels/mla/cuda.py mirrors this
// struct.
struct MlaParams {
  const void *q_nope, *q_pe;  // [total_q, q_heads, 512], [total_q, q_heads, 64]
  const void *ckv, *kpe;      // [pages, page_size, 512], [pages, page_size, 64]
  const int* cu_seqlens_q;    // [batch + 1]
  const int* page_table;      // [batch, max_pages]
  const int* kv_len;          // [batch]
  const PrefillWork* work;    // [blocks], of KV head 0
  void* out;                  // [total_q, q_heads, 512]
  float* lse2;                // [total_q, q_heads], base 2
  float* partial_o;           // [total_q, q_heads, splits, 512], not yet divided by l
  float* partial_m;           // [total_q, q_heads, splits], log2 units
  float* partial_l;           // [total_q, q_heads, splits]
  int* split_semaphores;      // semaphore_index: splits that have arrived; 0 between launches
  i64 q_nope_stride_token, q_nope_stride_head, q_pe_stride_token, q_pe_stride_head;
  i64 ckv_stride_page, ckv_stride_token, kpe_stride_page, kpe_stride_token;
  int page_table_stride, max_pages, page_size;
  int page_shift;  // for `page_slot`
  u32 page_inverse;
  int q_heads, kv_heads, group;  // group = q_heads, kv_heads = 1
  int group_shift;               // for `token_of`
  u32 group_inverse;
  int keys_per_split, splits;
  int causal;        // query i of n with L keys sees keys 0 to L - n + i
  float scale_log2;  // softmax scale times log2 e
};

// Copies the tile of Q, with its two parts side by side, in one copy group per thread. Rows past
// the request's end are zero.
template <class T, int D, int Dpe, int Rows, int Threads>
LAB_DEVICE void load_latent_query(T (&tile)[Rows][D + Dpe], const MlaParams& p,
                                  const WorkTile<Rows>& b) {
  constexpr int nope_chunks = D / chunk_elements, chunks = (D + Dpe) / chunk_elements;
  const T* nope = static_cast<const T*>(p.q_nope);
  const T* pe = static_cast<const T*>(p.q_pe);
  for (int i = thread_x(); i < Rows * chunks; i += Threads) {
    const int row = i / chunks, c = i % chunks;
    const int packed = b.first_row + row, token = packed / p.group;
    const i64 at = b.first_token + token, head = packed - token * p.group;
    const T* source =
        c < nope_chunks
            ? (nope + at * p.q_nope_stride_token + head * p.q_nope_stride_head + c * chunk_elements)
            : (pe + at * p.q_pe_stride_token + head * p.q_pe_stride_head +
               (c - nope_chunks) * chunk_elements);
    cp_async_16(chunk<D + Dpe>(tile, row, c), source, row < b.n_rows);
  }
  cp_async_commit();
}

// The block has this window on the latent rows, `Keys` keys at a time, with ckv and kpe of a key
// side by side. Eight lanes copy a key, 128 bytes at once. The window looks up where its keys lie
// when it moves, so that the page table's latency is hidden.
template <class T, int D, int Dpe, int Keys, int Threads> struct LatentWindow {
  static constexpr int keys_per_pass = least(Threads / 8, Keys), passes = Keys / keys_per_pass;
  static_assert(Keys % keys_per_pass == 0 && D % 64 == 0 && Dpe == 64, "whole passes");
  static_assert(keys_per_pass % 8 == 0, "a lane has the same swizzle in every pass");

  const MlaParams& p;
  const int* pages;                 // of the request
  const T *ckv, *kpe;               // this lane's first 16 bytes of the pools' first key
  int key, end_key;                 // key: the window's first; keys from the end on arrive as zeros
  int page[passes], token[passes];  // place of the keys that this lane copies

  template <class Block>
  LAB_DEVICE LatentWindow(const MlaParams& p_, const Block& block)
      : p(p_), pages(p.page_table + static_cast<i64>(block.request) * p.page_table_stride),
        ckv(static_cast<const T*>(p.ckv) + thread_x() % 8 * chunk_elements),
        kpe(static_cast<const T*>(p.kpe) + thread_x() % 8 * chunk_elements), key(block.first_key),
        end_key(block.end_key) {
    look_up();
  }

  LAB_DEVICE bool holds_keys() const { return key < end_key; }
  LAB_DEVICE void move() {
    key = key + Keys;
    look_up();
  }
  // Copies the window. `address` is that of chunk thread % 8 of the tile's row thread / 8.
  LAB_DEVICE void copy(u32 address) const {
    constexpr int row_bytes = (D + Dpe) * static_cast<int>(sizeof(T));
    if (thread_x() >= keys_per_pass * 8) return;  // 16 keys are fewer than 256 threads can copy
#pragma unroll
    for (int pass = 0; pass < passes; ++pass) {
      const bool valid = key + row(pass) < end_key;
      const T* latent = ckv + page[pass] * p.ckv_stride_page + token[pass] * p.ckv_stride_token;
      const u32 to = address + pass * keys_per_pass * row_bytes;
#pragma unroll
      for (int c = 0; c < D / chunk_elements; c += 8)
        cp_async_16(other_chunk(to, c), latent + c * chunk_elements, valid);
      cp_async_16(other_chunk(to, D / chunk_elements),
                  kpe + page[pass] * p.kpe_stride_page + token[pass] * p.kpe_stride_token, valid);
    }
  }

 private:
  // Returns the key of the window that this lane copies in a pass.
  LAB_DEVICE static int row(int pass) {
    const int lane = thread_x() & 31, warp = thread_x() / 32;
    return pass * keys_per_pass + lane / 8 + warp * 4;
  }
  LAB_DEVICE void look_up() {
#pragma unroll
    for (int pass = 0; pass < passes; ++pass) {
      const int at = key + row(pass), slot = at / p.page_size;
      token[pass] = at - slot * p.page_size;
      page[pass] = 0;
      if (at < end_key) page[pass] = load_constant(pages + slot);  // the page is used a step later
    }
  }
};

// A block has a pipeline over its keys, in stages that its warps share: while a stage is computed,
// the next stages are copied.
template <class T, int D, int Dpe, int Keys, int Threads, int Stages> struct LatentPipeline {
  static constexpr u32 stage_bytes = sizeof(T) * Keys * (D + Dpe);
  static_assert(Stages >= 1, "one stage is copied after its last reader");

  LatentWindow<T, D, Dpe, Keys, Threads> window;  // of the keys that are copied next
  u32 first_copy;                                 // this lane's address in the first stage
  int key, stage, copy_stage;

  template <class Block>
  LAB_DEVICE LatentPipeline(const T (&stages)[Stages][Keys][D + Dpe], const MlaParams& p,
                            const Block& block)
      : window(p, block),
        first_copy(chunk_address<D + Dpe>(stages[0], thread_x() / 8, thread_x() % 8)),
        key(block.first_key), stage(0), copy_stage(0) {}

  LAB_DEVICE bool more() const { return key < window.end_key; }
  LAB_DEVICE void start() {
#pragma unroll
    for (int i = 0; i < Stages - 1 + (Stages == 1); ++i) copy_next();
  }
  // Once this returns, the stage of this step is there, and no warp reads the stage before it.
  LAB_DEVICE void wait() {
    cp_async_wait<Stages == 1 ? 0 : Stages - 2>();
    sync_block();
    if constexpr (Stages > 1) copy_next();
  }
  LAB_DEVICE void advance() {
    key = key + Keys;
    if constexpr (Stages == 1) {
      sync_block();  // no warp reads the stage any more
      copy_next();
    } else {
      stage = stage + 1 == Stages ? 0 : stage + 1;
    }
  }

 private:
  // One copy group per step, even an empty one, keeps the number of groups in flight constant.
  LAB_DEVICE void copy_next() {
    if (window.holds_keys()) {
      window.copy(first_copy + copy_stage * stage_bytes);
      window.move();
    }
    cp_async_commit();
    copy_stage = copy_stage + 1 == Stages ? 0 : copy_stage + 1;
  }
};

}  // namespace lab
