// How K and V come to shared memory: a warp each, by the TMA or by copies.
#pragma once
#include "prefill_wgmma/tile.cuh"

namespace prefill_wgmma {
using namespace lab;

// K or V, in global memory.
struct Keys {
  const TensorMap& map;
  const void* pool;
  i64 stride_page, stride_token, stride_head;
  PageSteps steps;
};

// The warp that brings all tiles of K, or of V, as stages become free: by boxes of the TMA, or by
// copies of 16 bytes where a page holds no box.
template <class C, int D> struct Producer {
  using T = typename C::T;
  using Tile = KeyTile<C, D>;

  Smem<C>& smem;
  const Params& p;
  const Keys of;
  Tile (&tiles)[C::stages];
  Barrier (&full)[C::stages], (&empty)[C::stages];
  int lane, i, n;                                // i, n: items and steps so far

  LAB_DEVICE Producer(Smem<C>& s, const Params& params, const Keys& keys, Tile (&t)[C::stages],
                     Barrier (&f)[C::stages], Barrier (&e)[C::stages])
      : smem(s), p(params), of(keys), tiles(t), full(f), empty(e), lane(thread_x() & 31), i(0),
        n(0) {}

  // is_v: a box's rows after the request's last key are another's, and must be zeros, as P is 0
  // there, and 0 times NaN is NaN.
  template <bool is_v> LAB_DEVICE void run() {
    int tails = 0;
    for (; receive(smem, i).steps > 0; ++i) {
      int key = item().last_key;
      for (int steps = item().steps; steps > 0; --steps, ++n, key = key - C::keys) {
        const int stage = stage_of<C::stages>(n);
        if (!is_v && steps == least(item().steps, 2) && lane == 0)
          barrier_arrive(smem.item_wanted);
        const int page = page_of(key, lane);     // on its way while the stage is waited for
        barrier_wait(empty[stage], parity_of<C::stages>(n) ^ 1);
        if (copies()) {
          if constexpr (C::paged) copy(tiles[stage], key, page);
          continue;
        }
        const bool is_tail = is_v && key + C::keys > item().block.kv_len;
        load(tiles[stage], is_tail ? smem.tail_full : full[stage], key, page);
        if (!is_tail) continue;
        barrier_wait(smem.tail_full, tails & 1);
        ++tails;
        clear_rows(tiles[stage], item().block.kv_len - key);
        if (lane == 0) barrier_arrive(full[stage]);
      }
      release(smem.item_empty[stage_of<item_stages>(i)]);
    }
    if (copies()) arrive_copied<0>();
  }

 private:
  LAB_DEVICE const Item<C>& item() const { return smem.items[stage_of<item_stages>(i)]; }
  LAB_DEVICE bool copies() const { return C::paged && p.box_keys == 0; }

  // The page of the n-th box, or key, from `key` on; -1 after the last: zeros arrive.
  LAB_DEVICE int page_of(int key, int n) const {
    const typename C::Block& b = item().block;
    const int own = key + n * (copies() ? 1 : p.box_keys);
    if (!C::paged || own >= b.kv_len) return -1;
    const int* pages =
        p.problem.page_table + static_cast<i64>(b.request) * p.problem.page_table_stride;
    return load_constant(pages + static_cast<int>(page_slot(p.problem, own)));
  }
  LAB_DEVICE int row_in_page(int key) const {
    return key - static_cast<int>(page_slot(p.problem, key)) * p.problem.page_size;
  }

  // A lane asks for a box: of its page, or of 64 channels.
  LAB_DEVICE void load(Tile& tile, Barrier& arrived, int key, int page) const {
    if (lane == 0) barrier_arrive_expect(arrived, sizeof(Tile));
    sync_warp();                                 // announced before any of it arrives
    const int head = item().block.kv_head;
    if constexpr (C::paged) {
      const int first = lane * p.box_keys;
      const int place = page < 0 ? -1 : page * of.steps.page + head * of.steps.head;
      if (first < C::keys)
        tma_load(tile.octet_of(first), of.map, arrived, 0, 0, 0, row_in_page(key + first) / octet,
                 place, Keep::long_);
    } else if (lane < D / channels) {
      tma_load(tile.at + lane * Tile::next_line, of.map, arrived, lane * channels, head,
               static_cast<int>(item().block.first_kv) + key, Keep::long_);
    }
  }

  // Eight lanes copy 64 channels of a key. A tile is asked for before the one before it is there.
  LAB_DEVICE void copy(Tile& tile, int key, int page) const {
    const int c = lane % 8;
#pragma unroll 1
    for (int first = 0; first < C::keys; first += 32) {
      i64 start = item().block.kv_head * of.stride_head;
      if (page >= 0)
        start += page * of.stride_page + row_in_page(key + first + lane) * of.stride_token;
      const int left = item().block.kv_len - key - first;
      page = page_of(key + first + 32, lane);
#pragma unroll 1
      for (int k = lane / 8; k < least(32, C::keys - first); k += 4) {
        const T* source = static_cast<const T*>(of.pool) + (shfl(start, k) + c * chunk_elements);
        const u32 to = shared_address(
            chunk<channels>(tile.octet_of(first + k), (first + k) % octet, c));
#pragma unroll
        for (int column = 0; column < D / channels; ++column)
          cp_async_16(to + column * Tile::next_line * 2, source + column * channels, k < left);
      }
    }
    cp_async_commit();
    arrive_copied<1>();
  }
  // For the tile before the n-th.
  template <int InFlight> LAB_DEVICE void arrive_copied() const {
    if (n == 0) return;
    cp_async_wait<InFlight>();
    fence_async_shared();                        // wgmma reads what this thread copied
    sync_warp();                                 // every lane's copies are there
    if (lane == 0) barrier_arrive(full[stage_of<C::stages>(n - 1)]);
  }

  LAB_DEVICE void clear_rows(Tile& tile, int first) const {
#pragma unroll 1
    for (int at = first * 8 + lane; at < C::keys * 8; at += 32)
#pragma unroll
      for (int column = 0; column < D / channels; ++column)
        *reinterpret_cast<u32x4*>(tile.octet_of(at / 8)[at / 8 % octet] + column * Tile::next_line +
                                  at % 8 * chunk_elements) = {};
    fence_async_shared();
    sync_warp();                                 // every lane's zeros, before one says so
  }
};

template <class C> LAB_DEVICE void bring_keys(Smem<C>& smem, const Params& p) {
  const PrefillParams& t = p.problem;
  const Keys k = {p.k, t.k, t.k_stride_page, t.k_stride_token, t.k_stride_head, p.k_steps};
  Producer<C, C::dim_qk>(smem, p, k, smem.k, smem.k_full, smem.k_empty).template run<false>();
}
template <class C> LAB_DEVICE void bring_values(Smem<C>& smem, const Params& p) {
  const PrefillParams& t = p.problem;
  const Keys v = {p.v, t.v, t.v_stride_page, t.v_stride_token, t.v_stride_head, p.v_steps};
  Producer<C, C::dim_vo>(smem, p, v, smem.v, smem.v_full, smem.v_empty).template run<true>();
}

}  // namespace prefill_wgmma
