// The warpgroup of mla_wgmma that brings K: a warp a quarter of every key block.
#pragma once
#include "mla_wgmma/tile.cuh"

namespace mla_wgmma {

template <class C> struct Producer {
  using T = typename C::T;
  static constexpr int keys = C::keys / C::quarters;  // of a warp
  Smem<C>& smem;
  const Params& p;
  const Block<C>& b;
  int warp, lane;
  Barrier* copied;                     // of the lines copied last, in flight

  LAB_DEVICE Producer(Smem<C>& s, const Params& params, const Block<C>& block)
      : smem(s), p(params), b(block),
        warp(warp_uniform(thread_x() % C::group_threads / 32)), lane(thread_x() % 32),
        copied(nullptr) {}

  LAB_DEVICE void run() {
    const int* pages = p.mla.page_table + static_cast<i64>(b.request) * p.mla.page_table_stride;
    for (int j = 0; j < key_blocks<C>(b); ++j) {
      const int first = b.first_key + j * C::keys + warp * keys, key = first + lane % keys;
      const int slot = key / p.mla.page_size, token = key - slot * p.mla.page_size;
      const int page = key < b.end_key ? load_constant(pages + slot) : 0;
#pragma unroll 1
      for (int part = 0; part < 2; ++part) {
        wait_empty(j, part, warp);
        if (p.box_keys > 0) load(j, part, first, page * p.mla.page_size + token);
        else copy(j, part, first, page, token);
      }
    }
    if (copied) arrive_copied<0>();
  }

 private:
  LAB_DEVICE void wait_empty(int j, int part, int quarter) {
    barrier_wait(smem.empty[j % 2][(j + part) % 2][quarter], j / 2 % 2 ^ 1);
  }

  // By the TMA; `place` is where a lane's key stands in the pool. Keys of the last block that no
  // box holds stay as they were.
  LAB_DEVICE void load(int j, int part, int first, int place) {
    const int stage = j % 2, half = stage ^ part, octets = p.box_keys / 8;
    const int left = (b.end_key - first + p.box_keys - 1) / p.box_keys;
    const int boxes = left < 0 ? 0 : least(left, keys / p.box_keys);
    Stage<C>& tile = smem.k[stage];
    Barrier& full = smem.full[stage][part];
    const int octet_bytes = sizeof(tile.half[0][0]) + part * sizeof(tile.pe[0]);
    if (lane == 0) barrier_arrive_expect(full, boxes * octets * octet_bytes);
    for (int i = 0; i < boxes; ++i) {
      const int octet = shfl(place, i * p.box_keys) / 8, to = warp * (keys / 8) + i * octets;
      if (lane == 0)
        tma_load(tile.half[half][to], p.ckv_map, full, 0, 0, half * C::half_lines, octet,
                 Keep::briefly);
    }
    if (part == 0) return;
    wait_empty(j, part, C::quarters - 1);                // all of P has been read
    for (int i = 0; i < boxes; ++i) {
      const int octet = shfl(place, i * p.box_keys) / 8, to = warp * (keys / 8) + i * octets;
      if (lane == 0) tma_load(tile.pe[to], p.kpe_map, full, 0, 0, octet, Keep::briefly);
    }
  }

  // By the threads, for pages that no box fits: eight lanes copy a line. Keys from the end on
  // arrive as zeros.
  LAB_DEVICE void copy(int j, int part, int first, int page, int token) {
    const int stage = j % 2, half = stage ^ part, c = lane % 8;
    Stage<C>& tile = smem.k[stage];
    if (part == 1) wait_empty(j, part, C::quarters - 1);
#pragma unroll 1
    for (int row = lane / 8; row < keys; row += 4) {
      const i64 at = shfl(page, row), in_page = shfl(token, row);
      const T* ckv = static_cast<const T*>(p.mla.ckv) + at * p.mla.ckv_stride_page +
                     in_page * p.mla.ckv_stride_token + half * (C::d_v / 2) + c * chunk_elements;
      const T* kpe = static_cast<const T*>(p.mla.kpe) + at * p.mla.kpe_stride_page +
                     in_page * p.mla.kpe_stride_token + c * chunk_elements;
      const bool valid = first + row < b.end_key;
      const int to = warp * (keys / 8) + row / 8;
#pragma unroll
      for (int i = 0; i < C::half_lines; ++i)
        cp_async_16(chunk<C::width>(tile.half[half][to][i], row % 8, c), ckv + i * C::width, valid);
      if (part == 1) cp_async_16(chunk<C::width>(tile.pe[to], row % 8, c), kpe, valid);
    }
    cp_async_commit();
    if (copied) arrive_copied<1>();
    copied = &smem.full[stage][part];
  }
  template <int InFlight> LAB_DEVICE void arrive_copied() {
    cp_async_wait<InFlight>();
    fence_async_shared();                                // wgmma reads what this thread copied
    sync_warp();                                         // every lane's copies are there
    if (lane == 0) barrier_arrive(*copied);
  }
};

}  // namespace mla_wgmma
