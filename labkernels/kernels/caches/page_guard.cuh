// This kernel checks lengths and page numbers against the pools, with one block per request. With
// wrong numbers, an attention kernel would access memory outside its tensors. The scales of used
// pages must be positive and finite. A finding is written to memory that the host can read without
// waiting for the GPU.
#pragma once
#include "lab/core/exp2.cuh"

namespace page_guard {
using namespace lab;

struct Params {               // page_guard.py mirrors this struct
  const int* page_table;      // [batch, max_pages]
  const int* kv_len;          // [batch]
  const int* cu_seqlens_new;  // [batch + 1], of rows that are appended; or null
  const int* planned;         // [batch], what the lengths must be; or null
  int* found;                 // {kind, request, slot, page}, {kind, request, no_slot, length}, or
                              // {kind, page, block * heads + head, bits of a scale}
  const float* scale;         // [pages, blocks, heads] of K or of V, if heads > 0
  i64 page_stride, block_stride, head_stride;
  int page_table_stride, max_pages, page_size, pages, heads, keys_per_scale, kind;
};

constexpr int threads = LAB_THREADS, no_slot = LAB_NO_SLOT;

// If several threads find something at once, one finding remains: a store of 16 bytes is not torn.
LAB_DEVICE void report(const Params& p, int request, int slot, u32 value, int kind = 1) {
  const u32x4 words = {
      {static_cast<u32>(kind), static_cast<u32>(request), static_cast<u32>(slot), value}};
  store_global(reinterpret_cast<u32x4*>(p.found), words);
}

LAB_KERNEL(threads, 1) guard(LAB_GRID_CONSTANT Params p) {
  const int request = block_x(), most = p.max_pages * p.page_size;
  int keys = load_constant(p.kv_len + request);
  const bool right =
      p.planned == nullptr ? 0 <= keys && keys <= most : keys == load_constant(p.planned + request);
  if (!right) {
    if (thread_x() == 0) report(p, request, no_slot, keys);
    return;
  }
  if (p.cu_seqlens_new != nullptr)
    keys = keys + load_constant(p.cu_seqlens_new + request + 1) -
           load_constant(p.cu_seqlens_new + request);
  keys = keys < most ? keys : most;
  const int used = (keys + p.page_size - 1) / p.page_size;
  const int* pages = p.page_table + static_cast<i64>(request) * p.page_table_stride;
  for (int slot = thread_x(); slot < used; slot += threads) {
    const int page = load_constant(pages + slot);
    if (page < 0 || page >= p.pages) {
      report(p, request, slot, page);
      continue;
    }
    // the last page may have blocks without keys, whose scales nothing reads
    const int left = keys - slot * p.page_size, here = left < p.page_size ? left : p.page_size;
    for (int i = 0; i < (here + p.keys_per_scale - 1) / p.keys_per_scale * p.heads; ++i) {
      const i64 block = i / p.heads, head = i % p.heads, first = page * p.page_stride;
      const float scale =
          load_constant(p.scale + first + block * p.block_stride + head * p.head_stride);
      if (!(scale > 0 && scale < -minus_infinity()))
        report(p, page, i, float_to_bits(scale), p.kind);
    }
  }
}

}  // namespace page_guard
