// The warpgroup of mla_wgmma that brings K.
#pragma once
#include "mla_wgmma/tile.cuh"

namespace mla_wgmma {

template <class C> struct Producer {
  using T = typename C::T;
  static constexpr int copied_keys = C::keys / 4;        // of a warp that copies
  Smem<C>& smem;
  const Params& p;
  const Block<C>& b;
  const int* pages;
  int warp, lane;
  int step, pieces;                    // a lane's keys from the next lane's; and how many lanes
  Barrier* copied;                     // of the lines copied last, in flight

  LAB_DEVICE Producer(Smem<C>& s, const Params& params, const Block<C>& block)
      : smem(s), p(params), b(block),
        pages(p.mla.page_table + static_cast<i64>(b.request) * p.mla.page_table_stride),
        warp(warp_uniform(thread_x() % C::group_threads / 32)), lane(thread_x() % 32),
        step(p.box_keys > 0 ? p.box_keys : 1),
        pieces(p.box_keys > 0 ? C::keys >> p.box_shift : copied_keys), copied(nullptr) {}

  LAB_DEVICE void run() {
    if (warp >= producer_warps<C>(p)) return;
    if (p.box_keys == 0) {
      bring([&](int j, int part, int page) { copy(j, part, page); });
      if (copied) arrive_copied<0>();
    } else {
      bring([&](int j, int part, int page) { load(j, part, page); });
    }
  }

 private:
  template <class Bring> LAB_DEVICE void bring(Bring part_of) {
    const int blocks = key_blocks<C>(b);
    int page = look_up(0);
    for (int j = 0; j < blocks; ++j) {
      const int now = page;
      page = look_up(j + 1);           // a step early: its latency is hidden
#pragma unroll 1
      for (int part = 0; part < 2; ++part) {
        // Free when the stage's own warpgroup has read it, or the other one.
        barrier_wait(smem.empty[j % 2][(j + part) % 2], j / 2 % 2 ^ 1);
        part_of(j, part, now);
      }
    }
  }
  LAB_DEVICE int first_key(int j) const { return b.first_key + j * C::keys + warp * copied_keys; }
  LAB_DEVICE int own_key(int j) const { return first_key(j) + least(lane, pieces - 1) * step; }
  // The page of a lane's key, or of one beyond the end: it does not wait for the request's length.
  LAB_DEVICE int look_up(int j) const {
    const int slot = page_slot(p.mla, own_key(j));
    return slot < p.mla.max_pages ? load_constant(pages + slot) : 0;
  }

  LAB_DEVICE int token(int key) const {
    return key - static_cast<int>(page_slot(p.mla, key)) * p.mla.page_size;
  }

  // By the TMA. Keys of the last block that no box holds stay as they were.
  LAB_DEVICE void load(int j, int part, int page) {
    const int stage = j % 2, half = stage ^ part, octets = step / 8, key = own_key(j);
    const int place = page * p.mla.page_size + token(key);  // of the key, in the pool
    Stage<C>& tile = smem.k[stage];
    Barrier& full = smem.full[stage][part];
    const int octet_bytes = sizeof(tile.half[0][0]) + part * sizeof(tile.pe[0]);
    const int boxes = least((b.end_key - first_key(j) + step - 1) >> p.box_shift, pieces);
    if (lane == 0) barrier_arrive_expect(full, boxes * octets * octet_bytes);
#pragma unroll 1
    for (int i = 0; i < boxes; ++i) {
      const int octet = shfl(place, i) / 8;
      if (lane > 0) continue;
      tma_load(tile.half[half][i * octets], p.ckv_map, full, 0, 0, half * C::half_lines, octet,
               Keep::briefly);
      if (part == 1)
        tma_load(tile.pe[i * octets], p.kpe_map, full, 0, 0, octet, Keep::briefly);
    }
  }

  // By the threads, for pages that no box fits: eight lanes copy a line. Keys from the end on
  // arrive as zeros.
  LAB_DEVICE void copy(int j, int part, int page) {
    const int stage = j % 2, half = stage ^ part, c = lane % 8, key = own_key(j);
    const int own_page = key < b.end_key ? page : 0, own_token = token(key);
    Stage<C>& tile = smem.k[stage];
#pragma unroll 1
    for (int row = lane / 8; row < copied_keys; row += 4) {
      const i64 at = shfl(own_page, row), in_page = shfl(own_token, row);
      const T* ckv = static_cast<const T*>(p.mla.ckv) + at * p.mla.ckv_stride_page +
                     in_page * p.mla.ckv_stride_token + half * (C::d_v / 2) + c * chunk_elements;
      const T* kpe = static_cast<const T*>(p.mla.kpe) + at * p.mla.kpe_stride_page +
                     in_page * p.mla.kpe_stride_token + c * chunk_elements;
      const bool valid = first_key(j) + row < b.end_key;
      const int to = warp * (copied_keys / 8) + row / 8;
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
