// Backward, a block a tile of keys: its walk over the query rows, and its turns to add to dq.
#pragma once
#include "lab/backward.cuh"
#include "lab/tma.cuh"

namespace lab {

// A block's tile of keys, and the walk that it takes over the rows that see it.
struct BackwardKeys {
  BackwardRequest request;
  int key, n_keys, kv_head, first_row, steps;  // steps: over all heads of the group
};
template <int Rows, int Keys> LAB_DEVICE BackwardKeys backward_keys(const BackwardParams& p) {
  const BackwardWork work = backward_work(p);
  const BackwardRequest request = backward_request(p, work.request);
  const int key = work.tile * Keys, seen_from = request.first_row(p, key);
  const int first_row = seen_from / Rows * Rows;
  const int tiles =
      seen_from < request.q_len ? (request.q_len - first_row + Rows - 1) / Rows : 0;
  return {request, key, request.kv_len - key, work.head, first_row, tiles * p.group};
}

// A step: a head of the group and a tile of rows.
template <int Rows> struct BackwardWalk {
  int head, row;
  LAB_DEVICE BackwardWalk(const BackwardParams& p, const BackwardKeys& b)
      : head(b.kv_head * p.group), row(b.first_row) {}
  LAB_DEVICE void next(const BackwardKeys& b) {
    row += Rows;
    if (row < b.request.q_len) return;
    row = b.first_row;
    head += 1;
  }
  LAB_DEVICE i64 padded_row(const BackwardParams& p, const BackwardKeys& b) const {
    return head * p.padded_rows + b.request.first_padded + row;
  }
};

// Of the tiles of keys that add to a row, the last comes first: when walks begin at the diagonal,
// each then finds its rows one step after the tile before it was there.
template <int Rows, int Keys>
LAB_DEVICE int tiles_before(const BackwardParams& p, const BackwardKeys& b, int row) {
  const int end_row = least(row + Rows, b.request.q_len);
  return (b.request.row_limit(p, end_row - 1) - 1) / Keys - b.key / Keys;
}

// One thread's turns to add to dq_accum, where the order matters. A turn counts the tiles of keys
// that have added.
struct Additions {
  int* turn = nullptr;  // of the rows added to last, which is still to be passed on
  int before = 0;

  // Waits until whoever was to add before this block has done so.
  LAB_DEVICE void take(const BackwardKeys& b, int* next, int tiles) {
    pass_on(b);
    turn = next;
    before = tiles;
    while (atomic_add_global(turn, 0) != before) {}
    fence_global();
  }
  // Once what was added is in global memory, the next tile may add. The first tile is the last to,
  // and leaves the turn as a new launch wants it.
  LAB_DEVICE void pass_on(const BackwardKeys& b) {
    bulk_wait<0>();
    if (turn == nullptr) return;
    fence_global();
    atomic_add_global(turn, b.key == 0 ? -before : 1);
    turn = nullptr;
  }
};

}  // namespace lab
