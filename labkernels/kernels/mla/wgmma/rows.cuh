// This file copies Q to shared memory, and stores the rows of O.
#pragma once
#include "mla/wgmma/tile.cuh"

namespace mla_wgmma {

// Copies Q to shared memory. Rows past the request's end are zero.
template <class C> LAB_DEVICE void load_q(Smem<C>& smem, const MlaParams& p, const Work& work) {
  using T = typename C::T;
  const int c = thread_x() % 8;  // eight threads copy a row
#pragma unroll 1
  for (int row = thread_x() / 8; row < C::rows; row += C::consumer_threads / 8) {
    const bool valid = row < work.n_rows;
    const int packed = work.first_row + (valid ? row : 0), token = token_of(p, packed);
    const i64 at = work.first_token + token, head = packed - token * p.group;
    const T* nope = static_cast<const T*>(p.q_nope) + at * p.q_nope_stride_token +
                    head * p.q_nope_stride_head + c * chunk_elements;
    const T* pe = static_cast<const T*>(p.q_pe) + at * p.q_pe_stride_token +
                  head * p.q_pe_stride_head + c * chunk_elements;
#pragma unroll
    for (int column = 0; column < C::Q::columns; column += atom_columns)
      cp_async_16(smem.q.chunk_at(row, column, c), column < C::d_v ? nope + column : pe, valid);
  }
  cp_async_commit();
  cp_async_wait<0>();
  fence_async_shared();
  named_sync(consumers_done, C::consumer_threads);
}

// Stores a consumer warpgroup's half of O. A warp has 16 rows of 256 channels, which pass through
// its part of shared memory, so that whole lines are stored.
template <class C, class P> struct RowsOut {
  using Out = typename P::Out;
  Smem<C>& smem;
  const MlaParams& p;
  const Work& work;
  const int group, row;  // row: the lane's first row; the other is row + 8

  // Writes out and lse2, or the split's partial State. o: [64 rows, the warpgroup's 256 channels].
  LAB_DEVICE void store(const float (&o)[128], OnlineSoftmax& softmax) const {
    softmax.reduce();
    if (thread_x() % 4 == 0)
#pragma unroll
      for (int h = 0; h < 2; ++h) smem.l[group][row + 8 * h] = softmax.l[h];
    named_sync(consumers_done, C::consumer_threads);  // both parts of l are there; K was read
    const bool whole = work.live_splits <= 1;
    float by[2];  // [2 rows], with one division each
#pragma unroll
    for (int h = 0; h < 2; ++h) by[h] = whole ? inverse_of(whole_l(row + 8 * h)) : 1.f;
    const i64 first = head_index(p, work, 0);  // the tile's other rows follow it
    const i64 slots = p.splits, first_slot = first * slots + work.split;
    Out* out = static_cast<Out*>(p.out) + first * C::d_v;
    if (!whole) store_wide(p.partial_o + first_slot * C::d_v, slots * C::d_v, o, by);
    else if constexpr (sizeof(Out) == 2) store_rounded(out, o, by);
    else store_wide(out, C::d_v, o, by);
    store_sums(first, first_slot);
  }

 private:
  LAB_DEVICE float whole_l(int r) const { return smem.l[0][r] + smem.l[1][r]; }

  // A thread writes a row's lse2, or its split's m and l.
  LAB_DEVICE void store_sums(i64 first, i64 first_slot) const {
    const int r = thread_x(), n = key_blocks<C>(work);
    if (r >= work.n_rows) return;
    const float m = n > 0 ? smem.m[(n - 1) % 2][r] : lowest_score();  // set last
    if (work.live_splits <= 1) store_lse2(p, first + r, m, whole_l(r));
    else store_partial(p, first_slot + r * p.splits, m, whole_l(r));
  }
  // Writes the warp's rows in 16 bits; `to` is where the tile's first row goes. o: [64 rows, 256
  // channels]; by: [2 rows].
  LAB_DEVICE void store_rounded(Out* to, const float (&o)[128], const float (&by)[2]) const {
    const int lane = thread_x() % 32, first_row = row / 16 * 16;
    typename C::T(&rows)[16][C::half_v] = smem.out[thread_x() / 32];
#pragma unroll
    for (int k = 0; k < C::half_v / 16; ++k) {
      u32 pairs[4];  // [16 rows, 16 channels]
#pragma unroll
      for (int i = 0; i < 4; ++i)
        pairs[i] = pack2<Out>(o[k * 8 + i * 2] * by[i % 2], o[k * 8 + i * 2 + 1] * by[i % 2]);
      stmatrix_x4(shared_address(chunk<C::half_v>(rows, lane % 16, 2 * k + lane / 16)), pairs);
    }
    sync_warp();
    to = to + first_row * C::d_v + group * C::half_v + lane * chunk_elements;
#pragma unroll 4
    for (int r = 0; r < least(16, work.n_rows - first_row); ++r)
      store_global(reinterpret_cast<u32x4*>(to + r * C::d_v), load_chunk(rows, r, lane));
  }
  // Does the same in fp32; rows lie `step` numbers apart. o: [64 rows, 256 channels]; by: [2 rows].
  LAB_DEVICE void store_wide(float* to, i64 step, const float (&o)[128],
                             const float (&by)[2]) const {
    const int lane = thread_x() % 32, first_row = row / 16 * 16;
    auto& rows = smem.o[thread_x() / 32];
#pragma unroll
    for (int i = 0; i < 128; i += 2) {
      const int h = i / 2 % 2;
      *reinterpret_cast<u32x2*>(&rows[lane / 4 + 8 * h][i / 4 * 8 + lane % 4 * 2]) = {
          {float_to_bits(o[i] * by[h]), float_to_bits(o[i + 1] * by[h])}};
    }
    sync_warp();
    to = to + first_row * step + group * C::half_v + lane * 4;
#pragma unroll 2
    for (int r = 0; r < least(16, work.n_rows - first_row); ++r)
#pragma unroll
      for (int c = 0; c < C::half_v; c += 128)
        store4(to + r * step + c, *reinterpret_cast<const f32x4*>(&rows[r][lane * 4 + c]));
  }
};

}  // namespace mla_wgmma
