// The producers: one warp takes items and asks the TMA for their Q; one brings K, and one V, as
// keys.cuh says. What one of them waits for does not hold up the others.
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

// The part of an item that is a warpgroup's, of 64 rows.
template <class C>
LAB_DEVICE Ahead ahead_of(const PrefillParams& p, const Item<C>& item, int warpgroup) {
  const typename C::Block& b = item.block;
  const int row = warpgroup * 64;
  const int end = least(row_limit(p, b, row + 63), b.end_key);
  const int unseen = row < b.n_rows ? (item.last_key - end + C::keys) / C::keys : item.steps;
  // a step is left to open the rows, and a stage for the V that the item before still wants
  const int skipped = least(unseen, least(item.steps, C::stages) - 1);
  const int steps = item.steps - skipped, first_key = item.last_key - (item.steps - 1) * C::keys;
  const int whole = (least(row_limit(p, b, row), b.end_key) - first_key) / C::keys;
  return {skipped, steps, steps - least(steps, whole > 0 ? whole : 0), first_key < b.first_key};
}

template <class C> LAB_DEVICE Item<C> item_of(const typename C::Block& b) {
  const int first = b.first_key / C::keys, end = (b.end_key + C::keys - 1) / C::keys;
  return {b, (end - 1) * C::keys, b.end_key > b.first_key ? end - first : 0, {}};
}

template <class C>
LAB_DEVICE void hand_over(Smem<C>& smem, const PrefillParams& p, int i, const Item<C>& item) {
  const int at = stage_of<item_stages>(i);
  barrier_wait(smem.item_empty[at], parity_of<item_stages>(i) ^ 1);
  if ((thread_x() & 31) != 0) return;
  Item<C>& to = smem.items[at];
  to.block = item.block;
  to.last_key = item.last_key;
  to.steps = item.steps;
#pragma unroll 1
  for (int group = 0; group < C::consumers; ++group)
    to.ahead[group] = item.steps > 0 ? ahead_of<C>(p, item, group) : Ahead{};
  barrier_arrive(smem.item_full[at]);
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

// An item is taken when the last K but one of the item before is asked for, a ring of stages and
// a step ahead of its use: late, as what one block has taken no other can begin.
template <class C, class P> LAB_DEVICE void take_items(Smem<C>& smem, const Params& p) {
  int i = 0;
  for (int index = block_x(); index < p.items; index = take_item(p)) {
    const auto item =
        item_of<C>(prefill_block<C::rows, C::paged>(p.problem, index, p.tile_rows));
    if (item.steps == 0) {
      store_nothing<C, P>(p.problem, item.block);
    } else {
      hand_over<C>(smem, p.problem, i, item);
      load_query<C>(smem, p, item.block, i);
      barrier_wait(smem.item_wanted, i & 1);
      ++i;
    }
  }
  hand_over<C>(smem, p.problem, i, Item<C>{});
}

}  // namespace prefill_wgmma
