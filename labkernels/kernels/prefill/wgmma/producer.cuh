// The first producer warp is the block's tile scheduler, and asks the TMA for Q. Other warps bring
// K and V, by the TMA (keys.cuh) or by copies of their threads (copies.cuh), so that a wait of one
// warp does not hold up the others.
#pragma once
#include "prefill/wgmma/tile.cuh"

namespace prefill_wgmma {
using namespace lab;

// Takes the next work tile for this block. The launch's last take, which finds no tile left, resets
// the counter.
template <class Params> LAB_DEVICE int next_work_tile(const Params& p) {
  int taken = 0;
  if ((thread_x() & 31) == 0) {
    taken = atomic_add_global(p.next_work_tile, 1);
    if (taken == p.work_tiles - 1) store_global(p.next_work_tile, 0);
  }
  return shfl(taken, 0) + p.blocks;
}

// Stores zeros, and an lse2 of -inf, for the rows of a work tile without keys.
template <class C, class P>
LAB_DEVICE void store_nothing(const typename C::Problem& p, const typename C::Work& work) {
  if (is_idle(work)) return;
  constexpr int channels = head_channels<C::dim_vo>;
  const int lane = thread_x() & 31;
  for (int row = 0; row < work.n_rows; ++row) {
    const i64 head = head_index(p, work, row);
    for (int i = lane; i < channels / 2; i += 32)
      store2(static_cast<typename P::Out*>(p.out) + head * channels + 2 * i, 0.f, 0.f);
    OnlineSoftmaxOf<ArrayRows<1, 0>> softmax;
    if constexpr (C::Variant::sinks) begin_with_sink(softmax, 0, p, query_head(p, work, row));
    if (lane == 0) store_lse2(p, head, softmax.m[0], softmax.l[0]);
  }
}

// Returns the blocks of keys that a warpgroup goes through for its 64 rows of the tile.
template <class C>
LAB_DEVICE KeyBlocks key_blocks(const typename C::Params& p, const ScheduledTile<C>& tile,
                                int warpgroup) {
  const typename C::Work& work = tile.work;
  const int row = warpgroup * 64;
  using V = typename C::Variant;
  const int end = least(row_limit<V>(p.problem, work, row + 63), work.end_key);
  const int unseen = row < work.n_rows ? (tile.last_key - end + C::keys) / C::keys : tile.blocks;
  // At least one block is left, because the rows have to begin with a block. The ring of V holds
  // the last V of the tile before and the V of all skipped blocks at once, because the warpgroup
  // releases them after it has begun this tile.
  const int skipped = least(unseen, least(tile.blocks, C::stages) - 1);
  const int count = tile.blocks - skipped;
  const int first_key = tile.last_key - (tile.blocks - 1) * C::keys;
  const int whole = (least(row_limit<V>(p.problem, work, row), work.end_key) - first_key) / C::keys;
  const int masked = count - least(count, whole > 0 ? whole : 0);
  int partial = first_key < work.first_key;
  if constexpr (V::window) {
    const int last_row = least(row + 63, work.n_rows - 1);
    const int begin = greatest(row_begin<V>(p.problem, work, last_row), work.first_key);
    partial = least(greatest(begin - first_key + C::keys - 1, 0) / C::keys, count);
  }
  return {skipped, count, masked, partial};
}

template <class C> LAB_DEVICE ScheduledTile<C> scheduled(const typename C::Work& work) {
  const int first = work.first_key / C::keys, end = (work.end_key + C::keys - 1) / C::keys;
  return {work, (end - 1) * C::keys, work.end_key > work.first_key ? end - first : 0, {}};
}

// Gives the i-th work tile to the other warps.
template <class C>
LAB_DEVICE void publish(Smem<C>& smem, const typename C::Params& p, int i,
                        const ScheduledTile<C>& tile) {
  producer_acquire(smem.tile_ring, i);
  if ((thread_x() & 31) != 0) return;
  const int stage = smem.tile_ring.stage(i);
  ScheduledTile<C>& to = smem.tiles[stage];
  to.work = tile.work;
  to.last_key = tile.last_key;
  to.blocks = tile.blocks;
#pragma unroll 1
  for (int warpgroup = 0; warpgroup < C::consumer_warpgroups; ++warpgroup)
    to.keys[warpgroup] = tile.blocks > 0 ? key_blocks<C>(p, tile, warpgroup) : KeyBlocks{};
  mbarrier_arrive(smem.tile_ring.full[stage]);
}

// Asks for Q of the i-th work tile. A lane asks for 64 channels.
template <class C>
LAB_DEVICE void load_query(Smem<C>& smem, const typename C::Params& p, const typename C::Work& work,
                           int i) {
  const int lane = thread_x() & 31, stage = smem.q_ring.stage(i);
  Mbarrier& full = smem.q_ring.full[stage];
  producer_acquire(smem.q_ring, i);
  if (lane == 0)
    mbarrier_arrive_expect_tx(full,
                              p.tile_rows * C::dim_qk * static_cast<int>(sizeof(typename C::T)));
  sync_warp();  // the bytes are announced before they arrive
  if (lane < C::dim_qk / atom_columns)
    tma_load(smem.q[stage].atom(0, lane * atom_columns), p.q, full, lane * atom_columns,
             work.kv_head * p.problem.group,
             static_cast<int>(work.first_token) + work.first_row / p.problem.group,
             CacheHint::evict_first);
}

// Goes through the block's work tiles until none is left. The next work tile is taken just before
// the present tile's last block of K but one is asked for. It is not taken earlier, because no
// other block can begin a work tile that this block has taken.
template <class C, class P> LAB_DEVICE void schedule_tiles(Smem<C>& smem,
                                                           const typename C::Params& p) {
  int i = 0;
  for (int index = block_x(); index < p.work_tiles; index = next_work_tile(p)) {
    const auto tile = scheduled<C>(
        work_tile<C::rows, C::paged, typename C::Variant, C::keys>(p.problem, index, p.tile_rows));
    if (tile.blocks == 0) {
      store_nothing<C, P>(p.problem, tile.work);
    } else {
      publish<C>(smem, p, i, tile);
      load_query<C>(smem, p, tile.work, i);
      mbarrier_wait(smem.tile_wanted, i & 1);
      ++i;
    }
  }
  publish<C>(smem, p, i, ScheduledTile<C>{});
}

}  // namespace prefill_wgmma
