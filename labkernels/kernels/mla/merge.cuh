// This is the second launch of an MLA decode whose keys are split. A row's partial States have 512
// channels in fp32 for each split. If the last block of a tile merged them, one SM would read the
// States of all rows; therefore each row is merged by a separate block.
#pragma once
#include "mla/pipeline.cuh"

namespace lab {

constexpr int merge_threads = LAB_THREADS;  // a warp merges 128 channels of the row

// Block (x, y) merges row y of the x-th tile of the work list.
template <int Rows, int D, class P, Division Divide>
LAB_KERNEL(merge_threads, 4) mla_merge(LAB_GRID_CONSTANT MlaParams p) {
  static_assert(D == merge_threads / 32 * 128);
  const WorkTile<Rows> work = work_tile<Rows, true>(p);
  const int row = block_y();
  wait_previous_launch();  // then the splits' States are there
  if (row < work.n_rows && work.live_splits > 1)
    merge_splits<P, Rows, D, Divide, 128>(p, work, row, thread_x() / 32 * 128);
}

}  // namespace lab
