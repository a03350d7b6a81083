// The launches of a backward pass overlap, head by head: blocks that go through keys also clear
// dq_accum for heads whose turn comes later, and dq is made for a head as soon as all its blocks
// have added to it, while blocks of other heads still run. For each KV head of a request one count
// says how many tiles of rows have been cleared, and another how many of the threads that add have
// added all (wgmma/overlap.py has these two as COUNTS_PER_HEAD). A block waits only for blocks that
// started before it.
#pragma once
#include "backward/problem.cuh"

namespace lab {

LAB_DEVICE int* cleared_tiles(const BackwardParams& p, int request, int kv_head) {
  return p.head_counts + 2 * (request * p.kv_heads + kv_head);
}
LAB_DEVICE int* added_threads(const BackwardParams& p, int request, int kv_head) {
  return cleared_tiles(p, request, kv_head) + 1;
}

// Waits until other blocks have cleared dq_accum for the head of this block's keys.
LAB_DEVICE void await_cleared(const BackwardParams& p) {
  const BackwardWork work = backward_work(p);
  if (work.awaits == 0) return;
  int* cleared = cleared_tiles(p, work.request, work.head);
  while (atomic_add_global(cleared, 0) != work.awaits) {}
  fence_global();
}

// Says that all additions of one of the block's threads to dq_accum are in global memory.
LAB_DEVICE void count_added(const BackwardParams& p) {
  if (p.head_counts == nullptr) return;
  const BackwardWork work = backward_work(p);
  if (backward_request(p, work.request).q_len == 0) return;  // nobody waits
  fence_global();
  atomic_add_global(added_threads(p, work.request, work.head), 1);
}

// A warp clears dq_accum for the tiles of rows that its block is given: items `first` to `end`.
template <int D>
LAB_DEVICE void clear_tiles(const BackwardParams& p, const BackwardWork* items, int first,
                            int end) {
  const int lane = thread_x() & 31;
#pragma unroll 1
  for (int i = first; i < end; ++i) {
    const BackwardWork work = load_work(items + i);
    const i64 row = work.head * p.padded_rows + backward_request(p, work.request).first_padded +
                    work.tile * row_padding;
    f32x4* sums = reinterpret_cast<f32x4*>(p.dq_accum + row * D) + lane;
#pragma unroll 8
    for (int j = 0; j < row_padding * D / 4; j += 32) store_global(sums + j, f32x4{});
    sync_warp();
    if (lane > 0) continue;
    fence_global();
    atomic_add_global(cleared_tiles(p, work.request, work.head / p.group), 1);
  }
}

// Waits until all blocks have added to dq_accum for the head of this block's rows. The last of the
// blocks that wait leaves both counts at 0 for the next launch.
LAB_DEVICE void await_added(const BackwardParams& p, const BackwardWork& work, int q_len) {
  if (thread_x() == 0) {
    const int kv_head = work.head / p.group;
    int* added = added_threads(p, work.request, kv_head);
    while (atomic_add_global(added, 0) < work.awaits) {}
    fence_global();
    const int tiles = (q_len + row_padding - 1) / row_padding * p.group;
    if (atomic_add_global(added, 1) == work.awaits + tiles - 1) {
      store_global(cleared_tiles(p, work.request, kv_head), 0);
      store_global(added, 0);
    }
  }
  sync_block();
}

}  // namespace lab
