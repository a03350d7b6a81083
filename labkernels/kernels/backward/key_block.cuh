// In this backward pass a block has a tile of keys. This file has the query rows that the block
// goes through, and says when the block adds to dq.
#pragma once
#include "backward/problem.cuh"
#include "lab/hopper/tma.cuh"

namespace lab {

// This is a block's tile of keys, with the rows that see it.
struct BackwardKeys {
  BackwardRequest request;
  int key, n_keys, kv_head, first_row, end_row;
  int steps;  // over all heads of the group
};
template <int Rows, int Keys, class V, class Params>
LAB_DEVICE BackwardKeys backward_keys(const Params& p) {
  const BackwardWork work = backward_work(p);
  const BackwardRequest request = backward_request(p, work.request);
  const int key = work.tile * Keys, seen_from = first_seeing<V>(p, request, key);
  const int first_row = seen_from / Rows * Rows, end_row = end_seeing<V>(p, request, key, Keys);
  const int tiles = seen_from < end_row ? (end_row - first_row + Rows - 1) / Rows : 0;
  return {request, key, request.kv_len - key, work.head, first_row, end_row, tiles * p.group};
}

// RowBlocks goes through the blocks of rows that see the tile, one head of the group after the
// other.
template <int Rows> struct RowBlocks {
  int head, row;
  LAB_DEVICE RowBlocks(const BackwardParams& p, const BackwardKeys& b)
      : head(b.kv_head * p.group), row(b.first_row) {}
  LAB_DEVICE void next(const BackwardKeys& b) {
    row += Rows;
    if (row < b.end_row) return;
    row = b.first_row;
    head += 1;
  }
  LAB_DEVICE i64 padded_row(const BackwardParams& p, const BackwardKeys& b) const {
    return head * p.padded_rows + b.request.first_padded + row;
  }
};

// Returns how many tiles of keys add to a block of rows before this block's tile: the last tile
// that the rows see adds first. Under a causal mask a block begins with the rows at the diagonal.
// The block of the next tile begins with rows that this block reaches Keys / Rows steps later, and
// adds to them first.
template <int Rows, int Keys, class V, class Params>
LAB_DEVICE int tiles_before(const Params& p, const BackwardKeys& b, int row) {
  const int end_row = least(row + Rows, b.request.q_len);
  return (row_limit<V>(p, b.request, end_row - 1) - 1) / Keys - b.key / Keys;
}

// With this a thread keeps the fixed order of additions to dq_accum. A semaphore counts the tiles
// of keys that have added to a block of rows.
struct DqSemaphore {
  int* taken;
  int before;

  // Waits until every block whose turn is before this block's has added.
  LAB_DEVICE void wait(int* semaphore, int tiles) {
    taken = semaphore;
    before = tiles;
    while (atomic_add_global(taken, 0) != before) {}
    fence_global();
  }
  // Lets the next tile add, once this block's additions are in global memory. The first tile that
  // the rows see adds last, and resets the semaphore for the next launch.
  LAB_DEVICE void release(bool is_first_tile) {
    bulk_wait<0>();
    fence_global();
    atomic_add_global(taken, is_first_tile ? -before : 1);
  }
};

}  // namespace lab
