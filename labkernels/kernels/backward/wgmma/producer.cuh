// One thread loads K, V and tiles of Q and dO.
#pragma once
#include "backward/wgmma/tile.cuh"

namespace backward_wgmma {
using namespace lab;

template <class C>
LAB_DEVICE void produce(Smem<C>& smem, const typename C::Params& p, const BackwardKeys& b) {
  constexpr int row_bytes = C::rows * static_cast<int>(sizeof(float));
  constexpr int q_bytes = static_cast<int>(sizeof(typename C::Rowed)) + row_bytes;
  constexpr int dout_bytes = static_cast<int>(sizeof(typename C::RowedV)) + row_bytes;
  const i64 key_token = b.request.first_kv + b.key;
  if (keys_before<typename C::Variant>(p.problem, b.request, b.key, C::keys) < C::keys) {
    mbarrier_arrive_expect_tx(smem.kv_full, static_cast<int>(sizeof(smem.k) + sizeof(smem.v)));
    load_boxes(smem.k, p.k, smem.kv_full, b.kv_head, key_token);
    load_boxes(smem.v, p.v, smem.kv_full, b.kv_head, key_token);
  } else {
    mbarrier_arrive(smem.kv_full);  // no row sees these keys
  }
  wait_previous_launch();  // then lse2 and delta are there
  RowBlocks<C::rows> rows(p.problem, b);
#pragma unroll 1
  for (int i = 0; i < b.steps; ++i, rows.next(b)) {
    const i64 token = b.request.first_token + rows.row, row = rows.padded_row(p.problem, b);
    const int q = smem.q_ring.stage(i), o = smem.dout_ring.stage(i);
    Mbarrier &q_full = smem.q_ring.full[q], &dout_full = smem.dout_ring.full[o];
    producer_acquire(smem.q_ring, i);
    mbarrier_arrive_expect_tx(q_full, q_bytes);
    load_boxes(smem.q[q], p.q, q_full, rows.head, token);
    bulk_load(smem.lse2[q], p.problem.row_lse2 + row, row_bytes, q_full);
    // The consumers add dQ to cleared memory after they have dO.
    if (!C::stages_dq && i == 0) await_cleared(p.problem);
    producer_acquire(smem.dout_ring, i);
    mbarrier_arrive_expect_tx(dout_full, dout_bytes);
    load_boxes(smem.dout[o], p.dout, dout_full, rows.head, token);
    bulk_load(smem.delta[o], p.problem.row_delta + row, row_bytes, dout_full);
  }
}

}  // namespace backward_wgmma
