// Each rung of the ladder between backward/mma and backward/wgmma adds one idea: wgmma on tiles
// that all threads copy; the TMA, which one thread asks for tiles; and P and dS in registers. Each
// of the two warpgroups has 64 keys of S, dP, dK and dV, and half the channels of dQ. The kernel
// has one tile: head_dim 128, 64 rows, 128 keys.
#pragma once
#include "backward/mma/gradients.cuh"
#include "lab/attention/online_softmax.cuh"
#include "lab/hopper/pipeline.cuh"
#include "lab/hopper/tile.cuh"

namespace backward_rungs {
using namespace lab;

// [rung: names]
enum class Rung { copies, tma, registers };
template <class C> struct Smem;
// [/rung: names]

struct alignas(64) Params {  // the same as backward_wgmma::Params
  TensorMap q, dout, k, v;
  BackwardParams problem;
  int* dq_semaphores;  // of the ordered dq, which no rung has
  const BackwardWork* cleared;
  const int* first_cleared;  // launches of a rung do not overlap
};

template <class T_, int D, int Rows, int Keys, int Warps, int Stages, int BlocksPerSm, Rung Rung_>
struct KernelTraits {
  using T = T_;
  using Variant = Plain;
  static constexpr int dim = D, rows = Rows, keys = Keys, stages = Stages;
  static constexpr int threads = 32 * Warps, blocks_per_sm = BlocksPerSm;
  static constexpr Rung rung = Rung_;
  static constexpr bool transposed = Rung_ == Rung::registers;
  using Rowed = SwizzledTile<T, Rows, D>;  // Q, dO
  using Keyed = SwizzledTile<T, Keys, D>;  // K, V
  // S and dP: [rows, keys], or [keys, rows].
  using Scores = WarpgroupPartition<transposed ? Keys : Rows, transposed ? Rows : Keys, 2>;
  using ScoreTile = SwizzledTile<T, transposed ? Keys : Rows, transposed ? Rows : Keys>;
  using KeyRows = WarpgroupPartition<Keys, D, 2>;    // dK, dV: [keys, dim]
  using QueryRows = WarpgroupPartition<Rows, D, 2>;  // dQ: [rows, dim]
  static_assert(D == 128 && Rows == 64 && Keys == 128 && Stages == 2);
};

// [rung: copies]
// K and V stay; a stage is a tile of query rows with lse2 and delta of each row.
template <class C>
  requires (C::rung == Rung::copies)
struct Smem<C> {
  typename C::Keyed k, v;
  typename C::Rowed q[C::stages], dout[C::stages];
  typename C::ScoreTile p, ds;
  alignas(16) float lse2[C::stages][C::rows], delta[C::stages][C::rows];
};
// [/rung: copies]

// [rung: tma]
// K and V stay; a stage is a tile of query rows with lse2 and delta of each row.
template <class C>
  requires (C::rung == Rung::tma)
struct Smem<C> {
  typename C::Keyed k, v;
  typename C::Rowed q[C::stages], dout[C::stages];
  typename C::ScoreTile p, ds;
  alignas(16) float lse2[C::stages][C::rows], delta[C::stages][C::rows];
  Mbarrier kv_full;
  Pipeline<C::stages> ring;
};
// [/rung: tma]

// [rung: registers]
// K and V stay; a stage is a tile of query rows with lse2 and delta of each row.
template <class C>
  requires (C::rung == Rung::registers)
struct Smem<C> {
  typename C::Keyed k, v;
  typename C::Rowed q[C::stages], dout[C::stages];
  typename C::ScoreTile ds;
  alignas(16) float lse2[C::stages][C::rows], delta[C::stages][C::rows];
  Mbarrier kv_full;
  Pipeline<C::stages> ring;
};
// [/rung: registers]

// [rung: rows by keys]
// Computes the warpgroup's part of S = Q K^T, or of dP = dO V^T.
template <class C>
LAB_DEVICE void multiply_rows(typename C::Scores::Sum& sum, const typename C::Rowed& rows,
                              const typename C::Keyed& keys) {
  wgmma_abt(flat(sum), k_major(rows), k_major(keys, C::Scores::column()));
  wgmma_wait(flat(sum));
}
// [/rung: rows by keys]

// [rung: keys by rows]
// Computes the warpgroup's part of S^T = K Q^T, or of dP^T = V dO^T.
template <class C>
LAB_DEVICE void multiply_keys(typename C::Scores::Sum& sum, const typename C::Keyed& keys,
                              const typename C::Rowed& rows) {
  wgmma_abt(flat(sum), k_major(keys, C::Scores::first_row()), k_major(rows));
  wgmma_wait(flat(sum));
}

// Turns S^T into P^T, and dP^T into dS^T. Both stay in registers, where they are the left operands
// of dV += P^T dO and dK += dS^T Q.
template <class C, class P>
LAB_DEVICE void transposed_gradients(typename C::Scores::Sum& s, typename C::Scores::Sum& dp,
                                     const float* lse2, const float* delta, const BackwardParams& p,
                                     const BackwardRequest& request, const Mask& seen) {
  const int lane = thread_x() & 31;
#pragma unroll
  for (int n = 0; n < C::Scores::columns / 8; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = n * 8 + (lane & 3) * 2 + i;
      const float row_lse2 = lse2[row], row_delta = delta[row];
      const int limit = row_limit(p, request, seen.row + row) - seen.key;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float& score = s[0][n][2 * r + i];
        score = exp2<P>(fma_rn(score, p.scale_log2, -row_lse2));
        if (!seen.whole && C::Scores::row() + lane / 4 + r * 8 >= limit) score = 0.f;
        dp[0][n][2 * r + i] = score * (dp[0][n][2 * r + i] - row_delta);
      }
    }
}

// Stores the warp's 16 keys of dS^T for dQ = dS K, which sums over all keys of the block. ds: [16
// keys, rows].
template <class Tile, int N>
LAB_DEVICE void store_keys(Tile& tile, int key, const u32 (&ds)[N][4]) {
  const int lane = thread_x() & 31;
  const u32 at = shared_address(tile.chunk_at(key + lane % 16, 0, lane / 16));
#pragma unroll
  for (int i = 0; i < N; ++i) stmatrix_x4(at ^ (i * 32), ds[i]);
}
// [/rung: keys by rows]

// [rung: all threads]
template <class C, class P>
  requires (C::rung == Rung::copies)
LAB_KERNEL(C::threads, C::blocks_per_sm) backward(LAB_GRID_CONSTANT Params params) {
  static_assert(sizeof(Smem<C>) == LAB_SMEM_BYTES, "the ledger's bytes are the compiler's");
  auto& smem = shared_memory<Smem<C>>();
  const BackwardParams& p = params.problem;
  const BackwardWork work = backward_work(p);
  const BackwardRequest request = backward_request(p, work.request);
  const int key = work.tile * C::keys, n_keys = request.kv_len - key;

  RowTiles<C> rows(p, request, work.head, key);
  copy_rows<C::threads>(smem.k, p.k,
                        (request.first_kv + key) * p.k_stride_token + work.head * p.k_stride_head,
                        p.k_stride_token, n_keys);
  copy_rows<C::threads>(smem.v, p.v,
                        (request.first_kv + key) * p.v_stride_token + work.head * p.v_stride_head,
                        p.v_stride_token, n_keys);
  allow_next_launch();
  wait_previous_launch();  // lse2, delta and zeros in dq_accum are there
  rows.copy(smem, p, request, 0);

  typename C::KeyRows::Sum dk, dv;
  clear(dk);
  clear(dv);
  for (int stage = 0; rows.more(); rows.next(), stage = stage ^ 1) {
    cp_async_wait<0>();
    fence_async_shared();  // lets wgmma read what cp.async wrote
    sync_block();          // this stage is there; no warp reads the stage before
    rows.ahead().copy(smem, p, request, stage ^ 1);
    const int row = rows.tile * C::rows;
    {
      typename C::Scores::Sum s, dp;
      multiply_rows<C>(s, smem.q[stage], smem.k);
      multiply_rows<C>(dp, smem.dout[stage], smem.v);
      score_gradients<C, P, true>(s, dp, smem.p, smem.ds, smem.lse2[stage], smem.delta[stage], p,
                                  request, mask_of<C>(p, request, row, key), rows.head);
    }
    fence_async_shared();
    sync_block();  // P and dS are there, from all warps
    const int own = C::KeyRows::first_row();
    wgmma_atb(flat(dv), mn_major(smem.p, own), mn_major(smem.dout[stage]), true);
    typename C::QueryRows::Sum dq;
    wgmma_ab(flat(dq), k_major(smem.ds), mn_major(smem.k, C::QueryRows::column()), false);
    wgmma_atb(flat(dk), mn_major(smem.ds, own), mn_major(smem.q[stage]), true);
    wgmma_wait<2>(flat(dv));
    wgmma_wait<1>(flat(dq));
    add_dq<C>(dq, p, rows.head * p.padded_rows + request.first_padded + row);
    wgmma_wait(flat(dk));
  }
  cp_async_wait<0>();  // K and V have arrived, even if no row sees them
  const i64 first = request.first_kv + key;
  store_sum<C, typename C::KeyRows>(p.dk, dk, p.scale, first, p.kv_heads, work.head, n_keys);
  store_sum<C, typename C::KeyRows>(p.dv, dv, 1.f, first, p.kv_heads, work.head, n_keys);
}
// [/rung: all threads]

// [rung: a warp that loads]
constexpr int consumer_threads = 32 * LAB_CONSUMER_WARPS;

// One thread asks for K and V, and for tiles of Q and dO as their stages become free.
template <class C>
LAB_DEVICE void produce(Smem<C>& smem, const Params& params, const BackwardWork& work,
                        const BackwardRequest& request, RowTiles<C> rows) {
  const BackwardParams& p = params.problem;
  constexpr int row_bytes = C::rows * static_cast<int>(sizeof(float));
  constexpr int stage_bytes = 2 * (static_cast<int>(sizeof(typename C::Rowed)) + row_bytes);
  const i64 first_key = request.first_kv + work.tile * C::keys;
  mbarrier_arrive_expect_tx(smem.kv_full, 2 * static_cast<int>(sizeof(typename C::Keyed)));
  load_boxes(smem.k, params.k, smem.kv_full, work.head, first_key);
  load_boxes(smem.v, params.v, smem.kv_full, work.head, first_key);
  wait_previous_launch();  // lse2 and delta are there
  for (u32 n = 0; rows.more(); rows.next(), ++n) {
    const int stage = n % C::stages, row = rows.tile * C::rows;
    const i64 padded = rows.head * p.padded_rows + request.first_padded + row;
    Mbarrier& full = smem.ring.full[stage];
    producer_acquire(smem.ring, n);
    mbarrier_arrive_expect_tx(full, stage_bytes);
    load_boxes(smem.q[stage], params.q, full, rows.head, request.first_token + row);
    load_boxes(smem.dout[stage], params.dout, full, rows.head, request.first_token + row);
    bulk_load(smem.lse2[stage], p.row_lse2 + padded, row_bytes, full);
    bulk_load(smem.delta[stage], p.row_delta + padded, row_bytes, full);
  }
}

// Clears two tiles from row n on: these rows belong to another request or to none.
template <class Tile> LAB_DEVICE void clear_tails(Tile& a, Tile& b, int n) {
  if (n < Tile::rows) {
    clear_rows(a, n, thread_x(), consumer_threads);
    clear_rows(b, n, thread_x(), consumer_threads);
    fence_async_shared();
  }
  named_sync(1, consumer_threads);  // all rows are cleared; no warp reads P and dS any more
}
// [/rung: a warp that loads]

// [rung: consume]
template <class C, class P>
  requires (C::rung == Rung::tma)
LAB_DEVICE void consume(Smem<C>& smem, const BackwardParams& p, const BackwardWork& work,
                        const BackwardRequest& request, RowTiles<C> rows) {
  const int key = work.tile * C::keys, n_keys = request.kv_len - key;
  wait_previous_launch();  // zeros in dq_accum are there
  mbarrier_wait(smem.kv_full, 0);
  clear_tails(smem.k, smem.v, n_keys);

  typename C::KeyRows::Sum dk, dv;
  clear(dk);
  clear(dv);
  for (u32 n = 0; rows.more(); rows.next(), ++n) {
    const int stage = n % C::stages;
    consumer_wait(smem.ring, n);
    clear_tails(smem.q[stage], smem.dout[stage], request.q_len - rows.tile * C::rows);
    const int row = rows.tile * C::rows;
    {
      typename C::Scores::Sum s, dp;
      multiply_rows<C>(s, smem.q[stage], smem.k);
      multiply_rows<C>(dp, smem.dout[stage], smem.v);
      score_gradients<C, P, true>(s, dp, smem.p, smem.ds, smem.lse2[stage], smem.delta[stage], p,
                                  request, mask_of<C>(p, request, row, key), rows.head);
    }
    fence_async_shared();
    named_sync(1, consumer_threads);  // P and dS are there, from all warps
    const int own = C::KeyRows::first_row();
    wgmma_atb(flat(dv), mn_major(smem.p, own), mn_major(smem.dout[stage]), true);
    typename C::QueryRows::Sum dq;
    wgmma_ab(flat(dq), k_major(smem.ds), mn_major(smem.k, C::QueryRows::column()), false);
    wgmma_atb(flat(dk), mn_major(smem.ds, own), mn_major(smem.q[stage]), true);
    wgmma_wait<2>(flat(dv));
    wgmma_wait<1>(flat(dq));
    add_dq<C>(dq, p, rows.head * p.padded_rows + request.first_padded + row);
    wgmma_wait(flat(dk));
    consumer_release(smem.ring, n);
  }
  const i64 first = request.first_kv + key;
  store_sum<C, typename C::KeyRows>(p.dk, dk, p.scale, first, p.kv_heads, work.head, n_keys);
  store_sum<C, typename C::KeyRows>(p.dv, dv, 1.f, first, p.kv_heads, work.head, n_keys);
}
// [/rung: consume]

// [rung: consume from registers]
template <class C, class P>
  requires (C::rung == Rung::registers)
LAB_DEVICE void consume(Smem<C>& smem, const BackwardParams& p, const BackwardWork& work,
                        const BackwardRequest& request, RowTiles<C> rows) {
  using T = typename C::T;
  const int key = work.tile * C::keys, n_keys = request.kv_len - key;
  wait_previous_launch();  // zeros in dq_accum are there
  mbarrier_wait(smem.kv_full, 0);
  clear_tails(smem.k, smem.v, n_keys);

  typename C::KeyRows::Sum dk, dv;
  clear(dk);
  clear(dv);
  for (u32 n = 0; rows.more(); rows.next(), ++n) {
    const int stage = n % C::stages;
    consumer_wait(smem.ring, n);
    clear_tails(smem.q[stage], smem.dout[stage], request.q_len - rows.tile * C::rows);
    const int row = rows.tile * C::rows;
    u32 p_left[C::rows / 16][4], ds_left[C::rows / 16][4];  // [64 keys, rows] in 16 bits
    {
      typename C::Scores::Sum s, dp;
      multiply_keys<C>(s, smem.k, smem.q[stage]);
      multiply_keys<C>(dp, smem.v, smem.dout[stage]);
      transposed_gradients<C, P>(s, dp, smem.lse2[stage], smem.delta[stage], p, request,
                                 mask_of<C>(p, request, row, key));
      round_to_fragments<T>(p_left, flat(s));
      round_to_fragments<T>(ds_left, flat(dp));
    }
    store_keys(smem.ds, C::Scores::row(), ds_left);
    fence_async_shared();
    named_sync(1, consumer_threads);  // dS is there, from all warps
    wgmma_ab(flat(dv), p_left, mn_major(smem.dout[stage]));
    typename C::QueryRows::Sum dq;
    wgmma_atb(flat(dq), mn_major(smem.ds), mn_major(smem.k, C::QueryRows::column()));
    wgmma_ab(flat(dk), ds_left, mn_major(smem.q[stage]));
    wgmma_wait<2>(flat(dv));
    wgmma_wait<1>(flat(dq));
    add_dq<C>(dq, p, rows.head * p.padded_rows + request.first_padded + row);
    wgmma_wait(flat(dk));
    consumer_release(smem.ring, n);
  }
  const i64 first = request.first_kv + key;
  store_sum<C, typename C::KeyRows>(p.dk, dk, p.scale, first, p.kv_heads, work.head, n_keys);
  store_sum<C, typename C::KeyRows>(p.dv, dv, 1.f, first, p.kv_heads, work.head, n_keys);
}
// [/rung: consume from registers]

// [rung: two roles]
template <class C, class P>
  requires (C::rung > Rung::copies)
LAB_KERNEL(C::threads, C::blocks_per_sm) backward(LAB_GRID_CONSTANT Params params) {
  static_assert(sizeof(Smem<C>) == LAB_SMEM_BYTES, "the ledger's bytes are the compiler's");
  auto& smem = shared_memory<Smem<C>>();
  const BackwardParams& p = params.problem;
  const BackwardWork work = backward_work(p);
  const BackwardRequest request = backward_request(p, work.request);
  const RowTiles<C> rows(p, request, work.head, work.tile * C::keys);
  if (thread_x() == 0) {
    mbarrier_init(smem.kv_full, 1);
    smem.ring.init(1, consumer_threads / 32);
    fence_mbarrier_init();
  }
  allow_next_launch();
  sync_block();  // every warp sees the initialized barriers
  if (warp_uniform(thread_x() / 32) >= consumer_threads / 32) {
    setmaxnreg_dec<24>();
    if (thread_x() == consumer_threads) produce(smem, params, work, request, rows);
  } else {
    setmaxnreg_inc<LAB_CONSUMER_REGISTERS>();
    consume<C, P>(smem, p, work, request, rows);
  }
}
// [/rung: two roles]

}  // namespace backward_rungs
