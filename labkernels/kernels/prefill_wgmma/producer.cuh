// The producers: one warp takes items and asks the TMA for their Q, one for their K, one for their
// V, as stages become free. What one of them waits for does not hold up the others.
#pragma once
#include "prefill_wgmma/tile.cuh"

namespace prefill_wgmma {
using namespace lab;

// Takes an item for this block; the last to find none puts the counter back.
LAB_DEVICE int take_item(const Params& p) {
  int taken = 0;
  if ((thread_x() & 31) == 0) {
    taken = atomic_add_global(p.next_item, 1);
    if (taken == p.items - 1) store_global(p.next_item, 0);
  }
  return shfl(taken, 0) + p.blocks;
}

// The rows of a tile without keys.
template <class C, class P>
LAB_DEVICE void store_nothing(const PrefillParams& p, const typename C::Block& b) {
  if (is_idle(b)) return;
  const int lane = thread_x() & 31;
  for (int row = 0; row < b.n_rows; ++row) {
    const i64 head = head_index(p, b, row);
    for (int i = lane; i < C::dim_vo / 2; i += 32)
      store2(static_cast<typename P::Out*>(p.out) + head * C::dim_vo + 2 * i, 0.f, 0.f);
    if (lane == 0) store_lse2(p, head, 0.f, 0.f);
  }
}

template <class C> LAB_DEVICE void hand_over(Smem<C>& smem, int i, const Item<C>& item) {
  barrier_wait(smem.item_empty[stage_of<2>(i)], parity_of<2>(i) ^ 1);
  if ((thread_x() & 31) == 0) {
    smem.items[stage_of<2>(i)] = item;
    barrier_arrive(smem.item_full[stage_of<2>(i)]);
  }
}

template <class C>
LAB_DEVICE void load_query(Smem<C>& smem, const Params& p, const typename C::Block& b, int i) {
  const int lane = thread_x() & 31, at = stage_of<C::q_stages>(i);
  barrier_wait(smem.q_empty[at], parity_of<C::q_stages>(i) ^ 1);
  if (lane == 0)
    barrier_arrive_expect(smem.q_full[at],
                          p.tile_rows * C::dim_qk * static_cast<int>(sizeof(typename C::T)));
  sync_warp();                                   // announced before any of it arrives
  if (lane < C::dim_qk / channels)
    tma_load(smem.q[at][lane], p.q, smem.q_full[at], lane * channels, b.kv_head * p.problem.group,
             static_cast<int>(b.first_token) + b.first_row / p.problem.group, Keep::briefly);
}

// An item is taken when the last K of the one before is asked for, a ring of stages ahead of its
// use: late, as what one block has taken no other can begin.
template <class C, class P> LAB_DEVICE void take_items(Smem<C>& smem, const Params& p) {
  int i = 0;
  for (int index = block_x(); index < p.items; index = take_item(p)) {
    const auto item =
        item_of<C>(prefill_block<C::rows, C::paged>(p.problem, index, p.tile_rows));
    if (item.steps == 0) {
      store_nothing<C, P>(p.problem, item.block);
    } else {
      hand_over<C>(smem, i, item);
      load_query<C>(smem, p, item.block, i);
      barrier_wait(smem.item_wanted, i & 1);
      ++i;
    }
  }
  hand_over<C>(smem, i, Item<C>{});
}

// The page of a key; -1 after the last: zeros arrive.
template <class C>
LAB_DEVICE int page_of(const Params& p, const typename C::Block& b, int key) {
  if (key >= b.kv_len) return -1;
  const int* pages =
      p.problem.page_table + static_cast<i64>(b.request) * p.problem.page_table_stride;
  return load_constant(pages + static_cast<int>(page_slot(p.problem, key)));
}

// Waits for room, and asks for a tile's boxes: a box a page, or a part of one, as pages lie
// anywhere. A lane looks its first page up before the wait.
template <class C, int D>
LAB_DEVICE void load_keys(typename C::T (&tile)[D / channels][C::keys][channels], Barrier& full,
                          Barrier& empty, int parity, const TensorMap& map, const Params& p,
                          const typename C::Block& b, int key) {
  constexpr int columns = D / channels;
  const int lane = thread_x() & 31;
  int row = lane / columns * p.box_keys, page = 0;
  if constexpr (C::paged)
    if (row < C::keys) page = page_of<C>(p, b, key + row);
  barrier_wait(empty, parity);
  if (lane == 0) barrier_arrive_expect(full, sizeof(tile));
  sync_warp();                                   // announced before any of it arrives
  if constexpr (C::paged) {
#pragma unroll 1
    for (int i = lane; row < C::keys;) {
      const int at = key + row, slot = static_cast<int>(page_slot(p.problem, at));
      tma_load(tile[i % columns][row], map, full, i % columns * channels, b.kv_head,
               at - slot * p.problem.page_size, page, Keep::long_);
      i = i + 32;
      row = i / columns * p.box_keys;
      if (row < C::keys) page = page_of<C>(p, b, key + row);
    }
  } else {
    if (lane < columns)
      tma_load(tile[lane], map, full, lane * channels, b.kv_head,
               static_cast<int>(b.first_kv) + key, Keep::long_);
  }
}

template <class C> LAB_DEVICE void bring_keys(Smem<C>& smem, const Params& p) {
  int i = 0, n = 0;
  while (true) {
    const Item<C> item = receive(smem, i);
    if (item.steps == 0) return;
    for (int step = 0; step < item.steps; ++step, ++n) {
      const int at = stage_of<C::stages>(n);
      if (step == item.steps - 1 && (thread_x() & 31) == 0) barrier_arrive(smem.item_wanted);
      load_keys<C, C::dim_qk>(smem.k[at], smem.k_full[at], smem.k_empty[at],
                              parity_of<C::stages>(n) ^ 1, p.k, p, item.block,
                              item.last_key - step * C::keys);
    }
    release(smem.item_empty[stage_of<2>(i)]);
    ++i;
  }
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

template <class C> LAB_DEVICE void bring_values(Smem<C>& smem, const Params& p) {
  int i = 0, n = 0, tails = 0;
  while (true) {
    const Item<C> item = receive(smem, i);
    if (item.steps == 0) return;
    for (int step = 0; step < item.steps; ++step, ++n) {
      const int at = stage_of<C::stages>(n), key = item.last_key - step * C::keys;
      const bool is_tail = key + C::keys > item.block.kv_len;
      load_keys<C, C::dim_vo>(smem.v[at], is_tail ? smem.tail_full : smem.v_full[at],
                              smem.v_empty[at], parity_of<C::stages>(n) ^ 1, p.v, p, item.block,
                              key);
      if (is_tail) {
        barrier_wait(smem.tail_full, tails & 1);
        ++tails;
        clear_rows<C>(smem.v[at], item.block.kv_len - key);
        if ((thread_x() & 31) == 0) barrier_arrive(smem.v_full[at]);
      }
    }
    release(smem.item_empty[stage_of<2>(i)]);
    ++i;
  }
}

}  // namespace prefill_wgmma
