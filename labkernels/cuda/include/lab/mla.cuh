// MLA decode: all query heads of a request share one latent row a key, in two parts: ckv, which is
// V too, and kpe, which carries the key's position. Rows are packed as in a prefill of one KV head
// (prefill.cuh): row r is token r / heads, head r % heads, so that a tile serves several tokens.
#pragma once
#include "lab/prefill.cuh"

namespace lab {

// Strides count elements; the last dimension is contiguous. kernels/mla_params.py mirrors it.
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
  int* tickets;               // ticket_index: splits that have arrived, zero at rest
  i64 q_nope_stride_token, q_nope_stride_head, q_pe_stride_token, q_pe_stride_head;
  i64 ckv_stride_page, ckv_stride_token, kpe_stride_page, kpe_stride_token;
  int page_table_stride, max_pages, page_size;
  int q_heads, kv_heads, group;  // group = q_heads, kv_heads = 1
  int keys_per_split, splits;
  int causal;                 // query i of n with L keys sees keys 0 to L - n + i
  float scale_log2;           // softmax scale times log2 e
};

// The tile of Q, its two parts side by side, in one copy group a thread. Rows past the request's
// end are zero.
template <class T, int D, int Dpe, int Rows, int Threads>
LAB_DEVICE void load_latent_query(T (&tile)[Rows][D + Dpe], const MlaParams& p,
                                  const PrefillBlock<Rows>& b) {
  constexpr int nope_chunks = D / chunk_elements, chunks = (D + Dpe) / chunk_elements;
  const T* nope = static_cast<const T*>(p.q_nope);
  const T* pe = static_cast<const T*>(p.q_pe);
  for (int i = thread_x(); i < Rows * chunks; i += Threads) {
    const int row = i / chunks, c = i % chunks;
    const int packed = b.first_row + row, token = packed / p.group;
    const i64 at = b.first_token + token, head = packed - token * p.group;
    const T* source =
        c < nope_chunks
            ? nope + at * p.q_nope_stride_token + head * p.q_nope_stride_head + c * chunk_elements
            : pe + at * p.q_pe_stride_token + head * p.q_pe_stride_head +
                  (c - nope_chunks) * chunk_elements;
    cp_async_16(chunk<D + Dpe>(tile, row, c), source, row < b.n_rows);
  }
  cp_async_commit();
}

}  // namespace lab
