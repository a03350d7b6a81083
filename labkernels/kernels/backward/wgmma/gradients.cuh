// This file adds and stores the gradients in global memory.
#pragma once
#include "backward/wgmma/tile.cuh"

namespace backward_wgmma {
using namespace lab;

// Returns the lane's four values of the j-th eight of the first 64 channels, in dq_index's order.
// dq: [64 rows, 2 N channels].
template <int N> LAB_DEVICE f32x4 octet(const float (&dq)[N], int j) {
  return {dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]};
}

// Adds the first 64 channels to dq_accum, directly from registers. dq: [64 rows, 2 N channels].
template <int N>
LAB_DEVICE void add_dq(float* to, const float (&dq)[N], const Place& place) {
#pragma unroll
  for (int j = 0; j < 8; ++j) add_global(to + j * 128 + place.lane * 4, octet(dq, j).v);
}

// Passes at most 64 channels to the thread that adds them, as use n of the stage: those from the
// warpgroup's channel `First` on. Before the first the warp waits until the use before this one has
// been read; after the last it says that all are there. dq: [64 rows, 2 N channels].
template <class C, int First, int N>
LAB_DEVICE void pass_dq(Smem<C>& smem, const float (&dq)[N], int n, const Place& place) {
  auto& ring = smem.dq_ring;
  float* stage = smem.dq[place.group][place.warp] + First * 16;
  if constexpr (First == 0)
    if (n > 0) mbarrier_wait(ring.empty[ring.stage(n - 1)], ring.phase(n - 1));
#pragma unroll
  for (int j = 0; j < (N < 32 ? N / 4 : 8); ++j)
    *reinterpret_cast<f32x4*>(&stage[j * 128 + place.lane * 4]) = octet(dq, j);
  if constexpr (First > 0 || C::dq_rest == 0) warp_arrive(ring.full[ring.stage(n)]);
}

// Returns the place in dq_accum of the first of the 16 rows to which a warp adds, at the first of
// its channels.
template <class C>
LAB_DEVICE float* dq_rows(const typename C::Params& p, const BackwardKeys& b,
                          const RowBlocks<C::rows>& rows, int group, int warp) {
  const i64 row = rows.padded_row(p.problem, b) + warp * 16;
  return p.problem.dq_accum + (C::split_rows_of_dq ? (row + group * 64) * C::dim
                                                   : row * C::dim + group * 16 * 64 * C::dq_parts);
}

// Adds use n of the stage, 64 channels of each warpgroup and the rest. If the order of blocks is
// fixed, a block waits for its turn here, while its consumers go on.
template <class C>
LAB_DEVICE void add_use_of_dq(Smem<C>& smem, const typename C::Params& p, const BackwardKeys& b,
                              const RowBlocks<C::rows>& rows, int n) {
  using V = typename C::Variant;
  auto& ring = smem.dq_ring;
  const int part = n % C::dq_parts;
  DqSemaphore semaphore;
  if constexpr (C::ordered)
    semaphore.wait(
        p.dq_semaphores + rows.padded_row(p.problem, b) / LAB_TURN_ROWS * LAB_TURN_PARTS + part,
        tiles_before<C::rows, C::keys, V>(p.problem, b, rows.row));
  consumer_wait(ring, n);
  fence_async_shared();  // what the warps wrote, before the copies read
#pragma unroll
  for (int i = 0; i < consumer_warps; ++i) {
    float* to = dq_rows<C>(p, b, rows, i / 4, i % 4) + part * 16 * 64;
    const float* from = smem.dq[i / 4][i % 4];
    bulk_add(to, from, 16 * 64 * static_cast<int>(sizeof(float)));
    if constexpr (C::dq_rest > 0)  // behind the 64 channels of both
      bulk_add(to + 16 * (64 * (2 - i / 4) + C::dq_rest * (i / 4)), from + 16 * 64,
               16 * C::dq_rest * static_cast<int>(sizeof(float)));
  }
  bulk_commit();
  bulk_wait_read<0>();
  mbarrier_arrive(ring.empty[ring.stage(n)]);
  if constexpr (C::ordered && V::window)
    semaphore.release(b.key <= row_begin<V>(p.problem, b.request, rows.row));
  else if constexpr (C::ordered) semaphore.release(b.key == 0);
}

// Adds every other part of dQ that the warpgroups pass on. Two threads do this in turn: while the
// additions of one thread are on their way to global memory, the other thread goes on.
template <class C>
LAB_DEVICE void add_passed_dq(Smem<C>& smem, const typename C::Params& p, const BackwardKeys& b,
                              int which) {
  RowBlocks<C::rows> rows(p.problem, b);
  wait_previous_launch();
  await_cleared(p.problem);
#pragma unroll 1
  for (int i = 0; i < b.steps; ++i, rows.next(b)) {
    const int first = C::dq_parts * i;
    const int n = C::dq_parts == 2 ? first + which : first;
    if (n % 2 == which) add_use_of_dq(smem, p, b, rows, n);
  }
  bulk_wait<0>();  // all additions are done before the block ends
  count_added(p.problem);
}

// Writes the warp's 16 keys to global memory, through rows of shared memory that are free. What
// only this function uses is computed here: earlier it would take registers from the steps.
template <class C, class Tile, int N>
LAB_DEVICE void store_sum(const float (&sum)[N], float scale, Tile& stage, void* out,
                          const typename C::Params& p, const BackwardKeys& b) {
  using T = typename C::T;
  const Place place;
  const int line = (C::split_keys ? place.group * 64 : 0) + place.warp * 16;
  constexpr int own = 2 * N, dim = Tile::columns;           // channels
  const int first = C::split_keys ? 0 : place.group * own;  // channel
  const i64 first_kv = load_constant(p.problem.cu_seqlens_k + backward_work(p.problem).request);
#pragma unroll
  for (int j = 0; j < own / 16; ++j) {
    u32 rounded[4];  // [16 keys, 16 channels]
#pragma unroll
    for (int r = 0; r < 4; ++r)
      rounded[r] = pack2<T>(sum[8 * j + 2 * r] * scale, sum[8 * j + 2 * r + 1] * scale);
    stmatrix_x4(shared_address(stage.chunk_at(line + place.lane % 16, first + j / 4 * 64,
                                              j % 4 * 2 + place.lane / 16)),
                rounded);
  }
  sync_warp();
  constexpr int chunks = own / 8;
#pragma unroll 4
  for (int i = place.lane; i < 16 * chunks; i += 32) {
    const int key = line + i / chunks, c = i % chunks;
    const i64 token = first_kv + b.key + key;
    T* place_of = static_cast<T*>(out) +
                  (token * p.problem.kv_heads + b.kv_head) * head_channels<dim> + first + c * 8;
    if (key < b.n_keys && in_head<dim>(first + c * 8))
      store_global(reinterpret_cast<u32x4*>(place_of),
                   *reinterpret_cast<const u32x4*>(stage.chunk_at(key, first + c / 8 * 64, c % 8)));
  }
}

}  // namespace backward_wgmma
