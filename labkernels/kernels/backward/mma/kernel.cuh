// This backward pass uses the tensor cores by mma.sync, in FlashAttention-2's order of work. A
// block keeps a tile of keys, with its dK and dV in registers, and goes through the query rows that
// see the tile. P and dS go through shared memory: they are operands of three products, in two of
// them transposed. Where dq must always add up in the same order, a second kernel keeps rows and
// goes through keys. Of a fragment, lane 4 g + t holds rows g and g + 8 of each 16, and columns 2t
// and 2t + 1 of each 8.
#pragma once
#include "backward/mma/gradients.cuh"
#include "lab/ampere/warp_mma.cuh"

namespace backward_mma {
using namespace lab;

template <class T_, int D, int Dv, int Rows, int Keys, int Warps, int Stages, int BlocksPerSm,
          bool Ordered, class Variant_ = Plain>
struct KernelTraits {
  using T = T_;
  using Variant = Variant_;
  using Params = ParamsOf<BackwardParams, Variant>;
  static constexpr int dim = D, dim_v = Dv, rows = Rows, keys = Keys, stages = Stages;
  static constexpr int threads = 32 * Warps, blocks_per_sm = BlocksPerSm;
  static constexpr int score_width = Keys < 64 ? 64 : Keys;  // of P's rows: whole 128 bytes
  static constexpr bool ordered = Ordered;
  using Scores = WarpPartition<Rows, Keys, Warps>;   // S, dP: [rows, keys]
  using KeyRows = WarpPartition<Keys, D, Warps>;     // dK: [keys, dim]
  using ValueRows = WarpPartition<Keys, Dv, Warps>;  // dV: [keys, dim_v]
  using QueryRows = WarpPartition<Rows, D, Warps>;   // dQ: [rows, dim]
  using ScoreTile = T[Rows][score_width];            // P or dS of all warps
  static_assert(Stages == 1 || Stages == 2, "copies run at most a step ahead");
};

// K and V stay; a stage is a tile of query rows with lse2 and delta of each row.
template <class C> struct Smem {
  alignas(128) typename C::T k[C::keys][C::dim], v[C::keys][C::dim_v];
  alignas(128) typename C::T q[C::stages][C::rows][C::dim], dout[C::stages][C::rows][C::dim_v];
  alignas(128) typename C::ScoreTile p, ds;
  float lse2[C::stages][C::rows], delta[C::stages][C::rows];
};
// Here the rows stay, and a stage is a tile of keys.
template <class C> struct QuerySmem {
  alignas(128) typename C::T q[C::rows][C::dim], dout[C::rows][C::dim_v];
  alignas(128) typename C::T k[C::stages][C::keys][C::dim], v[C::stages][C::keys][C::dim_v];
  alignas(128) typename C::ScoreTile ds;
  float lse2[C::rows], delta[C::rows];
};

// Computes the warp's part of S = Q K^T, or of dP = dO V^T.
template <class C, int D>
LAB_DEVICE void multiply_rows(typename C::Scores::Sum& sum, const typename C::T (&rows)[C::rows][D],
                              const typename C::T (&keys)[C::keys][D]) {
  clear(sum);
  multiply<typename C::T, D>(sum, left<false>(rows, C::Scores::row()),
                             right<false>(keys, C::Scores::column()));
}

// [lab: kernel]
template <class C, class P>
LAB_KERNEL(C::threads, C::blocks_per_sm) backward(LAB_GRID_CONSTANT typename C::Params p) {
  static_assert(sizeof(Smem<C>) == LAB_SMEM_BYTES, "the ledger's bytes are the compiler's");
  using T = typename C::T;
  using V = typename C::Variant;
  auto& smem = shared_memory<Smem<C>>();
  const BackwardWork work = backward_work(p);
  const BackwardRequest request = backward_request(p, work.request);
  const int key = work.tile * C::keys, n_keys = request.kv_len - key;

  const i64 first = request.first_kv + key;
  RowTiles<C> rows(p, request, work.head, key);
  const int live = keys_before<V>(p, request, key, C::keys);
  copy_rows<C::threads>(smem.k, p.k, first * p.k_stride_token + work.head * p.k_stride_head,
                        p.k_stride_token, n_keys, live);
  copy_rows<C::threads>(smem.v, p.v, first * p.v_stride_token + work.head * p.v_stride_head,
                        p.v_stride_token, n_keys, live);
  allow_next_launch();
  wait_previous_launch();  // lse2, delta and zeros in dq_accum are there
  rows.copy(smem, p, request, 0);

  typename C::KeyRows::Sum dk;
  typename C::ValueRows::Sum dv;
  clear(dk);
  clear(dv);
  for (int stage = 0; rows.more(); rows.next()) {
    cp_async_wait<0>();
    sync_block();  // this stage is there; no warp reads the stage before
    if constexpr (C::stages == 2) rows.ahead().copy(smem, p, request, stage ^ 1);
    const int row = rows.tile * C::rows;
    {
      typename C::Scores::Sum s, dp;
      multiply_rows<C>(s, smem.q[stage], smem.k);
      multiply_rows<C>(dp, smem.dout[stage], smem.v);
      score_gradients<C, P, true>(s, dp, smem.p, smem.ds, smem.lse2[stage], smem.delta[stage], p,
                                  request, mask_of<C>(p, request, row, key), rows.head);
    }
    sync_block();  // P and dS are there, from all warps
    multiply<T, C::rows>(
        dv, left<true>(smem.p, C::ValueRows::row()),
        right<true, C::ValueRows::pitch>(smem.dout[stage], C::ValueRows::column()));
    if constexpr (!C::ordered) {
      typename C::QueryRows::Sum dq;
      clear(dq);
      multiply<T, C::keys>(dq, left<false>(smem.ds, C::QueryRows::row()),
                           right<true, C::QueryRows::pitch>(smem.k, C::QueryRows::column()));
      add_dq<C>(dq, p, rows.head * p.padded_rows + request.first_padded + row);
    }
    multiply<T, C::rows>(dk, left<true>(smem.ds, C::KeyRows::row()),
                         right<true, C::KeyRows::pitch>(smem.q[stage], C::KeyRows::column()));
    if constexpr (C::stages == 1) {
      sync_block();  // no warp reads the stage any more
      rows.ahead().copy(smem, p, request, 0);
    } else {
      stage = stage ^ 1;
    }
  }
  cp_async_wait<0>();  // K and V have arrived, even if no row sees them
  store_sum<C, typename C::KeyRows>(p.dk, dk, p.scale, first, p.kv_heads, work.head, n_keys);
  store_sum<C, typename C::ValueRows>(p.dv, dv, 1.f, first, p.kv_heads, work.head, n_keys);
}
// [/lab: kernel]

// [lab: ordered dq]
// This is the kernel of dq alone, with keys in ascending order: it computes S and dP once more.
template <class C, class P>
LAB_KERNEL(C::threads, C::blocks_per_sm) ordered_dq(LAB_GRID_CONSTANT typename C::Params p) {
  static_assert(sizeof(QuerySmem<C>) == LAB_SMEM_BYTES, "the ledger's bytes are the compiler's");
  using T = typename C::T;
  using V = typename C::Variant;
  auto& smem = shared_memory<QuerySmem<C>>();
  const BackwardWork work = backward_work(p);
  const BackwardRequest request = backward_request(p, work.request);
  const int row = work.tile * C::rows, n_rows = least(C::rows, request.q_len - row);
  const int kv_head = work.head / p.group, end_key = row_limit<V>(p, request, row + n_rows - 1);
  const int begin = row_begin<V>(p, request, row), first_key = begin / C::keys * C::keys;
  const auto copy_keys = [&](int key, int stage) {
    const i64 token = request.first_kv + key;
    copy_rows<C::threads>(smem.k[stage], p.k, token * p.k_stride_token + kv_head * p.k_stride_head,
                          p.k_stride_token, request.kv_len - key, V::window ? begin - key : 0);
    copy_rows<C::threads>(smem.v[stage], p.v, token * p.v_stride_token + kv_head * p.v_stride_head,
                          p.v_stride_token, request.kv_len - key, V::window ? begin - key : 0);
  };

  const i64 token = request.first_token + row;
  copy_rows<C::threads>(smem.q, p.q, token * p.q_stride_token + work.head * p.q_stride_head,
                        p.q_stride_token, n_rows);
  copy_rows<C::threads>(smem.dout, p.dout,
                        token * p.dout_stride_token + work.head * p.dout_stride_head,
                        p.dout_stride_token, n_rows);
  wait_previous_launch();  // lse2 and delta, of the first launch, are there
  copy_row_facts(smem.lse2, smem.delta, p, work.head * p.padded_rows + request.first_padded + row);
  if (end_key > first_key) copy_keys(first_key, 0);
  cp_async_commit();

  typename C::QueryRows::Sum dq;
  clear(dq);
  int stage = 0;
  for (int key = first_key; key < end_key; key += C::keys) {
    cp_async_wait<0>();
    sync_block();  // this stage is there; no warp reads the stage before
    if (C::stages == 2 && key + C::keys < end_key) copy_keys(key + C::keys, stage ^ 1);
    cp_async_commit();
    {
      typename C::Scores::Sum s, dp;
      multiply_rows<C>(s, smem.q, smem.k[stage]);
      multiply_rows<C>(dp, smem.dout, smem.v[stage]);
      score_gradients<C, P, false>(s, dp, smem.ds, smem.ds, smem.lse2, smem.delta, p, request,
                                   mask_of<C>(p, request, row, key), work.head);
    }
    sync_block();  // dS is there, from all warps
    multiply<T, C::keys>(dq, left<false>(smem.ds, C::QueryRows::row()),
                         right<true, C::QueryRows::pitch>(smem.k[stage], C::QueryRows::column()));
    if constexpr (C::stages == 1) {
      sync_block();  // no warp reads the stage any more
      if (key + C::keys < end_key) copy_keys(key + C::keys, 0);
      cp_async_commit();
    } else {
      stage = stage ^ 1;
    }
  }
  cp_async_wait<0>();  // Q has arrived, even if there was no step
  store_sum<C, typename C::QueryRows>(p.dq, dq, p.scale, token, p.q_heads, work.head, n_rows);
}
// [/lab: ordered dq]

}  // namespace backward_mma
