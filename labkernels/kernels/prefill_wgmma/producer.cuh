// The producer: one warp that asks the TMA for the tiles of item after item, as stages become free.
#pragma once
#include "prefill_wgmma/tile.cuh"

namespace prefill_wgmma {
using namespace lab;

// A box a page, or a part of one: pages lie anywhere.
template <class C, int D>
LAB_DEVICE void load_keys(typename C::T (&tile)[D / channels][C::keys][channels], Barrier& full,
                          const TensorMap& map, const Params& p, const typename C::Block& b,
                          int key) {
  constexpr int columns = D / channels;
  const int lane = thread_x() & 31;
  if (lane == 0) barrier_arrive_expect(full, sizeof(tile));
  sync_warp();                                   // announced before any of it arrives
  if constexpr (C::paged) {
    const int* pages =
        p.problem.page_table + static_cast<i64>(b.request) * p.problem.page_table_stride;
#pragma unroll 1
    for (int i = lane; i / columns * p.box_keys < C::keys; i += 32) {
      const int row = i / columns * p.box_keys, at = key + row;
      const int slot = static_cast<int>(page_slot(p.problem, at));
      const int page = at < b.kv_len ? load_constant(pages + slot) : -1;  // -1: zeros arrive
      tma_load(tile[i % columns][row], map, full, i % columns * channels, b.kv_head,
               at - slot * p.problem.page_size, page, Keep::long_);
    }
  } else {
    if (lane < columns)
      tma_load(tile[lane], map, full, lane * channels, b.kv_head,
               static_cast<int>(b.first_kv) + key, Keep::long_);
  }
}

template <class C>
LAB_DEVICE void load_query(typename C::T (&tile)[C::dim_qk / channels][C::rows][channels],
                           Barrier& full, const Params& p, const typename C::Block& b) {
  const int lane = thread_x() & 31;
  if (lane == 0)
    barrier_arrive_expect(
        full, p.tile_rows * C::dim_qk * static_cast<int>(sizeof(typename C::T)));
  sync_warp();                                   // announced before any of it arrives
  if (lane < C::dim_qk / channels)
    tma_load(tile[lane], p.q, full, lane * channels, b.kv_head * p.problem.group,
             static_cast<int>(b.first_token) + b.first_row / p.problem.group, Keep::briefly);
}

// V's rows from `first` on are another request's: P is 0 there, and 0 times NaN is NaN.
template <class C>
LAB_DEVICE void clear_rows(typename C::T (&tile)[C::dim_vo / channels][C::keys][channels],
                           int first) {
  constexpr int chunks = channels / chunk_elements;
  const u32x4 zeros = {};
  const int lane = thread_x() & 31;
  for (int c = 0; c < C::dim_vo / channels; ++c)
    for (int i = first * chunks + lane; i < C::keys * chunks; i += 32)
      *reinterpret_cast<u32x4*>(&tile[c][i / chunks][i % chunks * chunk_elements]) = zeros;
  fence_async_shared();
  sync_warp();                                   // every lane's zeros, before one says so
}

// The rows of a tile without keys.
template <class C, class P>
LAB_DEVICE void store_nothing(const PrefillParams& p, const typename C::Block& b) {
  if (is_idle(b)) return;
  for (int row = 0; row < b.n_rows; ++row) {
    const i64 head = head_index(p, b, row);
    for (int i = thread_x(); i < C::dim_vo / 2; i += 32)
      store2(static_cast<typename P::Out*>(p.out) + head * C::dim_vo + 2 * i, 0.f, 0.f);
    if (thread_x() == 0) store_lse2(p, head, 0.f, 0.f);
  }
}

// Takes an item for this block; the last to find none puts the counter back.
LAB_DEVICE int take_item(const Params& p) {
  const int taken = atomic_add_global(p.next_item, 1);
  if (taken == p.items - 1) store_global(p.next_item, 0);
  return taken + p.blocks;
}

template <class C>
LAB_DEVICE void hand_over(Smem<C>& smem, int i, const Item<C>& item) {
  barrier_wait(smem.item_empty[stage_of<2>(i)], parity_of<2>(i) ^ 1);
  if (thread_x() == 0) {
    smem.items[stage_of<2>(i)] = item;
    barrier_arrive(smem.item_full[stage_of<2>(i)]);
  }
}

template <class C> LAB_DEVICE Item<C> read_item(const Params& p, int index) {
  if (index >= p.items) return {};
  return item_of<C>(prefill_block<C::rows, C::paged>(p.problem, index, p.tile_rows));
}

// The whole work of the producer's warp. i, n: its items and steps so far. The item after this one
// is looked up in time for its first tiles to follow this one's last.
template <class C, class P> LAB_DEVICE void produce(Smem<C>& smem, const Params& p) {
  constexpr int stages = C::stages, q_stages = C::q_stages;
  const int lane = thread_x();
  int i = 0, n = 0, tails = 0;
  Item<C> next = read_item<C>(p, block_x());
  for (int index = block_x(); index < p.items;) {
    const Item<C> item = next;
    int taken = 0;
    if (lane == 0) taken = take_item(p);
    if (item.steps == 0) store_nothing<C, P>(p.problem, item.block);
    else hand_over<C>(smem, i, item);
    for (int step = 0; step < item.steps + 1; ++step) {  // K a step ahead of V, as is consumed
      if (step < item.steps) {
        const int at = stage_of<stages>(n + step);
        barrier_wait(smem.k_empty[at], parity_of<stages>(n + step) ^ 1);
        load_keys<C, C::dim_qk>(smem.k[at], smem.k_full[at], p.k, p, item.block,
                                item.last_key - step * C::keys);
      }
      if (step == 0) {
        if (item.steps > 0) {
          const int at = stage_of<q_stages>(i);
          barrier_wait(smem.q_empty[at], parity_of<q_stages>(i) ^ 1);
          load_query<C>(smem.q[at], smem.q_full[at], p, item.block);
        }
        index = shfl(taken, 0);
        next = read_item<C>(p, index);
      } else {
        const int at = stage_of<stages>(n + step - 1);
        const int key = item.last_key - (step - 1) * C::keys;
        const bool is_tail = key + C::keys > item.block.kv_len;
        barrier_wait(smem.v_empty[at], parity_of<stages>(n + step - 1) ^ 1);
        load_keys<C, C::dim_vo>(smem.v[at], is_tail ? smem.tail_full : smem.v_full[at], p.v, p,
                                item.block, key);
        if (is_tail) {
          barrier_wait(smem.tail_full, tails & 1);
          ++tails;
          clear_rows<C>(smem.v[at], item.block.kv_len - key);
          if (lane == 0) barrier_arrive(smem.v_full[at]);
        }
      }
    }
    n = n + item.steps;
    if (item.steps > 0) ++i;
  }
  hand_over<C>(smem, i, Item<C>{});
}

}  // namespace prefill_wgmma
