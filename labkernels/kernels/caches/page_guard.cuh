// This kernel checks lengths and page numbers against the pools, with one block per request. With
// wrong numbers, an attention kernel would access memory outside its tensors. A finding is written
// to memory that the host can read without waiting for the GPU.
#pragma once
#include "lab/core/ptx.cuh"

namespace page_guard {
using namespace lab;

struct Params {               // page_guard.py mirrors this struct
  const int* page_table;      // [batch, max_pages]
  const int* kv_len;          // [batch]
  const int* cu_seqlens_new;  // [batch + 1], of rows that are appended; or null
  const int* planned;         // [batch], what the lengths must be; or null
  int* found;                 // {1, request, slot, page}, or {1, request, no_slot, length}
  int page_table_stride, max_pages, page_size, pages;
};

constexpr int threads = LAB_THREADS, no_slot = LAB_NO_SLOT;

// If several threads find something at once, one finding remains: a store of 16 bytes is not torn.
LAB_DEVICE void report(const Params& p, int request, int slot, int value) {
  const u32x4 words = {
      {1u, static_cast<u32>(request), static_cast<u32>(slot), static_cast<u32>(value)}};
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
  const int used = ((keys < most ? keys : most) + p.page_size - 1) / p.page_size;
  const int* pages = p.page_table + static_cast<i64>(request) * p.page_table_stride;
  for (int slot = thread_x(); slot < used; slot += threads) {
    const int page = load_constant(pages + slot);
    if (page < 0 || page >= p.pages) report(p, request, slot, page);
  }
}

}  // namespace page_guard
