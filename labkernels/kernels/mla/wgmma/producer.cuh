// This is the warpgroup of mla_wgmma that loads K.
#pragma once
#include "mla/wgmma/tile.cuh"

namespace mla_wgmma {

template <class C> struct Producer {
  using T = typename C::T;
  static constexpr int copied_keys = C::keys / 4;  // keys per copying warp
  Smem<C>& smem;
  const Params& p;
  const Work& work;
  const int* pages;
  int warp, lane;
  // The next lane's key is `step` keys after a lane's own; `pieces` lanes have a key.
  int step, pieces;
  Mbarrier* copied;  // the full barrier of the latest copies

  LAB_DEVICE Producer(Smem<C>& s, const Params& params, const Work& block)
      : smem(s), p(params), work(block),
        pages(p.mla.page_table + static_cast<i64>(work.request) * p.mla.page_table_stride),
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
    const int blocks = key_blocks<C>(work);
    int page = look_up(0);
    for (int j = 0; j < blocks; ++j) {
      const int now = page;
      page = look_up(j + 1);  // a step early, which hides its latency
      // The first part is the half of the channels that the key block's own warpgroup has of O.
#pragma unroll 1
      for (int part = 0; part < 2; ++part) {
        producer_acquire(smem.half_ring[j % 2 ^ part], j);
        part_of(j, part, now);
      }
    }
  }
  LAB_DEVICE int first_key(int j) const {
    return work.first_key + j * C::keys + warp * copied_keys;
  }
  LAB_DEVICE int own_key(int j) const { return first_key(j) + least(lane, pieces - 1) * step; }
  // Returns the page of a lane's key, which may lie beyond the request's end: the look-up does not
  // wait for the request's length.
  LAB_DEVICE int look_up(int j) const {
    const int slot = page_slot(p.mla, own_key(j));
    return slot < p.mla.max_pages ? load_constant(pages + slot) : 0;
  }

  LAB_DEVICE int token(int key) const {
    return key - static_cast<int>(page_slot(p.mla, key)) * p.mla.page_size;
  }

  // The TMA brings a part of a key block. In the last block, the rows that no box fills keep their
  // old contents.
  LAB_DEVICE void load(int j, int part, int page) {
    const int stage = j % 2, half = stage ^ part, key = own_key(j);
    const int place = page * p.mla.page_size + token(key);  // place of the key in the pool
    Stage<C>& tile = smem.k[stage];
    Mbarrier& full = smem.half_ring[half].full[stage];
    const int row_bytes = (C::Half::columns + part * C::Pe::columns) * static_cast<int>(sizeof(T));
    const int boxes = least((work.end_key - first_key(j) + step - 1) >> p.box_shift, pieces);
    if (lane == 0) mbarrier_arrive_expect_tx(full, boxes * step * row_bytes);
#pragma unroll 1
    for (int i = 0; i < boxes; ++i) {
      const int octet = shfl(place, i) / 8;
      if (lane > 0) continue;
      tma_load(tile.half[half].atom(i * step, 0), p.ckv_map, full, 0, 0,
               half * (C::half_v / atom_columns), octet, CacheHint::evict_first);
      if (part == 1)
        tma_load(tile.pe.atom(i * step, 0), p.kpe_map, full, 0, 0, octet, CacheHint::evict_first);
    }
  }

  // If no box fits the pages, threads copy a part of a key block: eight lanes copy a key, 128 bytes
  // at a time. Keys from the end on arrive as zeros.
  LAB_DEVICE void copy(int j, int part, int page) {
    const int stage = j % 2, half = stage ^ part, c = lane % 8, key = own_key(j);
    const int own_page = key < work.end_key ? page : 0, own_token = token(key);
    Stage<C>& tile = smem.k[stage];
#pragma unroll 1
    for (int row = lane / 8; row < copied_keys; row += 4) {
      const i64 at = shfl(own_page, row), in_page = shfl(own_token, row);
      const T* ckv = static_cast<const T*>(p.mla.ckv) + at * p.mla.ckv_stride_page +
                     in_page * p.mla.ckv_stride_token + half * C::half_v + c * chunk_elements;
      const T* kpe = static_cast<const T*>(p.mla.kpe) + at * p.mla.kpe_stride_page +
                     in_page * p.mla.kpe_stride_token + c * chunk_elements;
      const bool valid = first_key(j) + row < work.end_key;
      const int to = warp * copied_keys + row;
#pragma unroll
      for (int column = 0; column < C::half_v; column += atom_columns)
        cp_async_16(tile.half[half].chunk_at(to, column, c), ckv + column, valid);
      if (part == 1) cp_async_16(tile.pe.chunk_at(to, 0, c), kpe, valid);
    }
    cp_async_commit();
    if (copied) arrive_copied<1>();
    copied = &smem.half_ring[half].full[stage];
  }
  template <int InFlight> LAB_DEVICE void arrive_copied() {
    cp_async_wait<InFlight>();
    fence_async_shared();  // lets wgmma read what this thread copied
    sync_warp();           // every lane's copies are there
    if (lane == 0) mbarrier_arrive(*copied);
  }
};

}  // namespace mla_wgmma
