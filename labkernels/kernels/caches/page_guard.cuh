// This kernel checks lengths and page numbers against the pools, with one block per request. With
// wrong numbers, an attention kernel would access memory outside its tensors. The scales of used
// pages must be positive and finite. A finding is written to memory that the host can read without
// waiting for the GPU.
#pragma once
#include "lab/core/exp2.cuh"

namespace page_guard {
using namespace lab;

struct Scales {  // of K or of V
  const float* at;
  i64 page, block, head;  // strides
};

struct Params {               // page_guard.py mirrors this struct
  const int* page_table;      // [batch, max_pages]
  const int* kv_len;          // [batch]
  const int* cu_seqlens_new;  // [batch + 1], of rows that are appended; or null
  const int* planned;         // [batch], what the lengths must be; or null
  int* found;                 // {kind, request, slot, page}, {kind, request, no_slot, length}, or
                              // {kind, page, block * heads + head, bits of a scale}
  int page_table_stride, max_pages, page_size, pages;
  int blocks, heads;  // of a page, with scales of their own; a cache of 16 bits has 1 and 0
  Scales k, v;
};

constexpr int threads = LAB_THREADS, no_slot = LAB_NO_SLOT;
enum class Kind : u32 { page = 1, k_scale = LAB_K_SCALE, v_scale = LAB_V_SCALE };

// If several threads find something at once, one finding remains: a store of 16 bytes is not torn.
LAB_DEVICE void report(const Params& p, Kind kind, int request, int slot, u32 value) {
  const u32x4 words = {
      {static_cast<u32>(kind), static_cast<u32>(request), static_cast<u32>(slot), value}};
  store_global(reinterpret_cast<u32x4*>(p.found), words);
}

LAB_DEVICE void check_scale(const Params& p, Kind kind, int page, int place) {
  const Scales& of = kind == Kind::k_scale ? p.k : p.v;
  const i64 block = place / p.heads, head = place % p.heads;
  const float scale = load_constant(of.at + page * of.page + block * of.block + head * of.head);
  if (!(scale > 0 && scale < -minus_infinity())) report(p, kind, page, place, float_to_bits(scale));
}

LAB_KERNEL(threads, 1) guard(LAB_GRID_CONSTANT Params p) {
  const int request = block_x(), most = p.max_pages * p.page_size;
  int keys = load_constant(p.kv_len + request);
  const bool right =
      p.planned == nullptr ? 0 <= keys && keys <= most : keys == load_constant(p.planned + request);
  if (!right) {
    if (thread_x() == 0) report(p, Kind::page, request, no_slot, keys);
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
      report(p, Kind::page, request, slot, page);
      continue;
    }
    // the last page may have blocks without keys, whose scales nothing reads
    const int block_keys = p.page_size / p.blocks, here = keys - slot * p.page_size;
    for (int place = 0; place < p.blocks * p.heads && place / p.heads * block_keys < here; ++place) {
      check_scale(p, Kind::k_scale, page, place);
      check_scale(p, Kind::v_scale, page, place);
    }
  }
}

}  // namespace page_guard
