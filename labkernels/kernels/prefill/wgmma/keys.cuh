// The TMA brings K and V to shared memory: one warp asks for K, and one warp asks for V.
#pragma once
#include "prefill/wgmma/tile.cuh"

namespace prefill_wgmma {
using namespace lab;

// Returns the page in which a key of the request lies, and -1 after the last key.
template <class Work> LAB_DEVICE int page_of(const PrefillParams& p, const Work& work, int key) {
  if (key >= work.kv_len) return -1;
  const int* pages = p.page_table + static_cast<i64>(work.request) * p.page_table_stride;
  return load_constant(pages + static_cast<int>(page_slot(p, key)));
}
LAB_DEVICE int row_in_page(const PrefillParams& p, int key) {
  return key - static_cast<int>(page_slot(p, key)) * p.page_size;
}

// A warp brings all tiles of K, or of V, as stages become free.
template <class C, class Tile> struct Producer {
  using Ring = Pipeline<C::stages>;

  Smem<C>& smem;
  const typename C::Params& p;
  const TensorMap& map;
  const PageSteps steps;
  Tile (&tiles)[C::stages];
  Ring& ring;
  int lane, i, n;  // i work tiles and n blocks of keys so far

  LAB_DEVICE Producer(Smem<C>& s, const typename C::Params& params, const TensorMap& m,
                      PageSteps apart, Tile (&t)[C::stages], Ring& r)
      : smem(s), p(params), map(m), steps(apart), tiles(t), ring(r), lane(thread_x() & 31), i(0),
        n(0) {}

  // A box's rows after the request's last key belong to another request or to none. In V they must
  // be zeros, because P is 0 there, and 0 times a NaN is a NaN.
  template <bool is_v> LAB_DEVICE void run() {
    int tails = 0;
    for (; receive(smem, i).blocks > 0; ++i) {
      int key = tile().last_key;
      for (int blocks = tile().blocks; blocks > 0; --blocks, ++n, key = key - C::keys) {
        const int stage = ring.stage(n);
        if (!is_v && blocks == least(tile().blocks, 2) && lane == 0)
          mbarrier_arrive(smem.tile_wanted);
        const int page = page_of_box(key);  // loads while the warp waits for the stage
        producer_acquire(ring, n);
        const bool is_tail = is_v && key + C::keys > tile().work.kv_len;
        load(tiles[stage], is_tail ? smem.tail_full : ring.full[stage], key, page);
        if (!is_tail) continue;
        mbarrier_wait(smem.tail_full, tails & 1);
        ++tails;
        clear_rows(tiles[stage], tile().work.kv_len - key, lane, 32);
        fence_async_shared();
        sync_warp();  // every lane has written its zeros
        if (lane == 0) mbarrier_arrive(ring.full[stage]);
      }
      consumer_release(smem.tile_ring, i);
    }
  }

 private:
  LAB_DEVICE const ScheduledTile<C>& tile() const { return smem.tile(i); }

  // Returns the page of the lane's box of the keys from `key` on. It is -1 after the last key, and
  // before the rows' windows: zeros arrive there.
  LAB_DEVICE int page_of_box(int key) const {
    if constexpr (C::Variant::window)
      if (key + (lane + 1) * p.box_keys <=
          row_begin<typename C::Variant>(p.problem, tile().work, 0))
        return -1;
    return C::paged ? page_of(p.problem, tile().work, key + lane * p.box_keys) : -1;
  }

  // [lab: ask for boxes]
  // A lane asks for one box: the keys of its page, or 64 channels of all keys.
  LAB_DEVICE void load(Tile& to, Mbarrier& full, int key, int page) const {
    if (lane == 0) mbarrier_arrive_expect_tx(full, sizeof(Tile));
    sync_warp();  // announced before any byte arrives
    const int head = tile().work.kv_head;
    if constexpr (C::paged) {
      const int first = lane * p.box_keys;
      const int place = page < 0 ? -1 : page * steps.page + head * steps.head;
      if (first < C::keys)
        tma_load(to.atom(first, 0), map, full, 0, 0, 0,
                 row_in_page(p.problem, key + first) / atom_rows, place, CacheHint::evict_last);
    } else if (lane < Tile::columns / atom_columns) {
      tma_load(to.atom(0, lane * atom_columns), map, full, lane * atom_columns, head,
               static_cast<int>(tile().work.first_kv) + key, CacheHint::evict_last);
    }
  }
  // [/lab: ask for boxes]
};

template <class C> LAB_DEVICE void bring_keys(Smem<C>& smem, const typename C::Params& p) {
  Producer<C, typename C::K>(smem, p, p.k, p.k_steps, smem.k, smem.k_ring).template run<false>();
}
template <class C> LAB_DEVICE void bring_values(Smem<C>& smem, const typename C::Params& p) {
  Producer<C, typename C::V>(smem, p, p.v, p.v_steps, smem.v, smem.v_ring).template run<true>();
}

}  // namespace prefill_wgmma
