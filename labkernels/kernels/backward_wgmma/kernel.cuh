// Backward on Hopper: a block keeps a tile of keys and walks over the query rows that see it. A
// producer warp brings K, V and tiles of Q and dO by the TMA; two warpgroups compute, on wgmma.
// S and dP are computed transposed, keys by rows: P and dS then lie in registers as the left
// operands of dV += P dO and dK += dS Q. dS goes through shared memory for dQ = dS^T K, where all
// of the block's keys meet, and dQ leaves as fp32 additions to global memory.
// A tile of 64 keys is too few for two warpgroups: they share its rows in S, then its channels in
// dK and dV, and P goes through shared memory as dS does.
#pragma once
#include "lab/backward_walk.cuh"
#include "lab/boxes.cuh"
#include "lab/policy.cuh"

namespace backward_wgmma {
using namespace lab;

struct alignas(64) Params {
  TensorMap q, dout, k, v;  // boxes of tile rows by one head by 64 channels
  BackwardParams problem;
  int* turns;  // [q_heads, padded_rows / 16, 2]: tiles of keys that dq_accum has, if ordered
};

template <class T_, int D, int Rows, int Keys, int Warps, int Stages, int BlocksPerSm, bool Ordered>
struct Tile {
  using T = T_;
  static constexpr int dim = D, rows = Rows, keys = Keys, stages = Stages;
  static constexpr int threads = 32 * Warps, blocks_per_sm = BlocksPerSm, boxes = D / 64;
  static constexpr int dout_stages = Keys == 128 ? Stages : 1;  // what the shared memory leaves
  static constexpr bool ordered = Ordered;
  // How the two warpgroups share the block's work.
  static constexpr bool split_keys = Keys == 128, split_rows_of_dq = Rows == 128;
  static constexpr int own_rows = split_keys ? Rows : Rows / 2;         // of S and dP
  static constexpr int own_dim = split_keys ? D : D / 2;                // of dK and dV
  static constexpr int own_dim_of_dq = split_rows_of_dq ? D : D / 2;
  static constexpr int handed = split_keys ? 1 : 2;                     // dS, and P
  static_assert(Warps == 12 && BlocksPerSm == 1, "a warpgroup that loads, two that compute");
  static_assert((Keys == 64 || Keys == 128) && (Rows == 64 || Rows == 128));
  static_assert(split_keys || !split_rows_of_dq);
  using Scores = float[own_rows / 2];
  using Fragments = u32[own_rows / 16][4];
  using Sum = float[own_dim / 2];
  using DqSum = float[own_dim_of_dq / 2];
  using Keyed = Boxed<T_, boxes, Keys>;
  using Rowed = Boxed<T_, boxes, Rows>;
  using Handed = Boxed<T_, Rows / 64, Keys>;
};

constexpr int consumers = 256, consumer_warps = 8;
constexpr int all_consumers = 1;  // a named barrier

template <class C> struct Smem {
  alignas(1024) typename C::Keyed k, v;
  alignas(1024) typename C::Rowed q[C::stages], dout[C::dout_stages];
  alignas(1024) typename C::Handed handed[2][C::handed];  // dS, then P; by the parity of the step
  alignas(128) float dq[consumer_warps][16 * 64];
  alignas(16) float lse2[C::stages][C::rows], delta[C::dout_stages][C::rows];
  Barrier kv_full, q_full[C::stages], q_empty[C::stages];
  Barrier dout_full[C::dout_stages], dout_empty[C::dout_stages];
};

// ---- the producer

template <class C> LAB_DEVICE void produce(Smem<C>& smem, const Params& p, const BackwardKeys& b) {
  constexpr int row_bytes = C::rows * static_cast<int>(sizeof(float));
  constexpr int tile_bytes = static_cast<int>(sizeof(typename C::Rowed)) + row_bytes;
  const i64 key_token = b.request.first_kv + b.key;
  barrier_arrive_expect(smem.kv_full, 2 * static_cast<int>(sizeof(typename C::Keyed)));
  load_boxes(smem.k, p.k, smem.kv_full, b.kv_head, key_token);
  load_boxes(smem.v, p.v, smem.kv_full, b.kv_head, key_token);
  wait_previous_launch();  // for lse2 and delta
  BackwardWalk<C::rows> walk(p.problem, b);
#pragma unroll 1
  for (int i = 0; i < b.steps; ++i, walk.next(b)) {
    const i64 token = b.request.first_token + walk.row, row = walk.padded_row(p.problem, b);
    const StageUse<C::stages> q(i);
    barrier_wait(smem.q_empty[q.stage], q.parity ^ 1);
    barrier_arrive_expect(smem.q_full[q.stage], tile_bytes);
    load_boxes(smem.q[q.stage], p.q, smem.q_full[q.stage], walk.head, token);
    bulk_load(smem.lse2[q.stage], p.problem.row_lse2 + row, row_bytes, smem.q_full[q.stage]);
    const StageUse<C::dout_stages> o(i);
    barrier_wait(smem.dout_empty[o.stage], o.parity ^ 1);
    barrier_arrive_expect(smem.dout_full[o.stage], tile_bytes);
    load_boxes(smem.dout[o.stage], p.dout, smem.dout_full[o.stage], walk.head, token);
    bulk_load(smem.delta[o.stage], p.problem.row_delta + row, row_bytes, smem.dout_full[o.stage]);
  }
}

// ---- the consumers

// A consumer thread's place.
struct Place {
  int thread, lane, warp, group;  // thread: of all consumers; warp: of the warpgroup
  LAB_DEVICE Place()
      : thread(thread_x() - 128), lane(thread & 31), warp(thread / 32 & 3),
        group(warp_uniform(thread / 128)) {}
};

// S = K Q^T, or dP = V dO^T: 64 keys from `line` on by the warpgroup's rows.
template <class C>
LAB_DEVICE void score_products(typename C::Scores& s, const typename C::Keyed& keys, int line,
                               const typename C::Rowed& rows, int row) {
  wgmma_fence();
#pragma unroll
  for (int d = 0; d < C::dim / 16; ++d)
    wgmma<typename C::T>(s, k_major(&keys[d / 4][line][d % 4 * 16]),
                         k_major(&rows[d / 4][row][d % 4 * 16]), d > 0);
  wgmma_commit();
}

// dV += P dO, or dK += dS Q: the warpgroup's keys and channels. The left operand comes from
// registers, or as both warpgroups have handed it over.
template <class C>
LAB_DEVICE void add_products(typename C::Sum& sum, const typename C::Fragments& left,
                             const typename C::Handed& handed, const typename C::Rowed& rows,
                             int group, bool add) {
  using T = typename C::T;
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < C::rows / 16; ++i)
    if constexpr (C::split_keys)
      wgmma<T, Major::mn>(sum, left[i], mn_major(rows[0][i * 16], C::rows), i > 0 || add);
    else
      wgmma<T, Major::k, Major::mn>(sum, k_major(&handed[i / 4][0][i % 4 * 16]),
                                    mn_major(rows[group * (C::boxes / 2)][i * 16], C::rows),
                                    i > 0 || add);
  wgmma_commit();
}

// dQ = dS^T K over all keys of the block: 64 rows by the warpgroup's channels.
template <class C>
LAB_DEVICE void dq_products(typename C::DqSum& sum, const typename C::Handed& ds,
                            const typename C::Keyed& keys, int group) {
  using T = typename C::T;
  const int row_box = C::split_rows_of_dq ? group : 0;
  const int box = C::split_rows_of_dq ? 0 : group * (C::boxes / 2);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < C::keys / 16; ++i)
    wgmma<T, Major::mn, Major::mn>(sum, mn_major(ds[row_box][i * 16], C::keys),
                                   mn_major(keys[box][i * 16], C::keys), i > 0);
  wgmma_commit();
}

// P of the scores, in place.
template <class C, class P>
LAB_DEVICE void probabilities(typename C::Scores& s, const float* lse2, float scale_log2) {
#pragma unroll
  for (int j = 0; j < C::own_rows / 8; ++j) {
    const f32x2 row = *reinterpret_cast<const f32x2*>(lse2 + j * 8 + (thread_x() & 3) * 2);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      s[4 * j + i] = exp2<P>(fma_rn(s[4 * j + i], scale_log2, i % 2 ? -row.y : -row.x));
  }
}
// Where the lane's keys, `key` and the eighth after it, are not seen. first_row: the first of the
// warpgroup's rows that sees the block's first key. Only steps at the boundary come here.
template <class C>
LAB_DEVICE void mask(typename C::Scores& p, int first_row, int n_keys, int key) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int mine = key + 8 * r;
    const int first = (mine < n_keys ? first_row + mine : C::rows) - (thread_x() & 3) * 2;
#pragma unroll
    for (int j = 0; j < C::own_rows / 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (j * 8 + i < first) p[4 * j + 2 * r + i] = 0.f;
  }
}
// dS = P (dP - delta), in the place of dP.
template <class C>
LAB_DEVICE void score_gradients(typename C::Scores& dp, const typename C::Scores& p,
                                const float* delta) {
#pragma unroll
  for (int j = 0; j < C::own_rows / 8; ++j) {
    const f32x2 row = *reinterpret_cast<const f32x2*>(delta + j * 8 + (thread_x() & 3) * 2);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      dp[4 * j + i] = p[4 * j + i] * (dp[4 * j + i] - (i % 2 ? row.y : row.x));
  }
}
template <class C>
LAB_DEVICE void round_scores(typename C::Fragments& left, const typename C::Scores& s) {
#pragma unroll
  for (int i = 0; i < C::own_rows / 16; ++i)
#pragma unroll
    for (int r = 0; r < 4; ++r)
      left[i][r] = pack2<typename C::T>(s[8 * i + 2 * r], s[8 * i + 2 * r + 1]);
}

// The warp's 16 keys into shared memory, for both warpgroups.
template <class C>
LAB_DEVICE void hand_over(typename C::Handed& tile, const typename C::Fragments& left,
                          const Place& place) {
  const int key = (C::split_keys ? place.group * 64 : 0) + place.warp * 16 + place.lane % 16;
  const int column = (C::split_keys ? 0 : place.group * (C::own_rows / 8)) + place.lane / 16;
  const u32 at = shared_address(chunk<64>(tile[0], key, column));
#pragma unroll
  for (int i = 0; i < C::own_rows / 16; ++i)
    stmatrix_x4((at ^ (i % 4 * 32)) + i / 4 * static_cast<int>(sizeof(tile[0])), left[i]);
}

// ---- gradients on their way to global memory

// Which part of dq_accum the warp adds to: 16 rows by the warpgroup's channels, or half of all.
template <class C>
LAB_DEVICE int dq_part(const Params& p, const BackwardKeys& b, const BackwardWalk<C::rows>& walk,
                       const Place& place) {
  const i64 row = walk.padded_row(p.problem, b) + place.warp * 16;
  return C::split_rows_of_dq ? static_cast<int>(row / 16 + place.group * 4) * 2
                             : static_cast<int>(row / 16) * 2 + place.group;
}

// Adds 64 channels of the part, which lie in dq_index's order as they lie in registers.
template <class C, int First>
LAB_DEVICE void add_dq(Smem<C>& smem, const Params& p, int part, const typename C::DqSum& sum,
                       const Place& place) {
  float(&stage)[16 * 64] = smem.dq[place.group * 4 + place.warp];
  if (place.lane == 0) bulk_wait_read<0>();
  sync_warp();                         // the stage has been read
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float* octet = sum + First / 2 + 4 * j;
    *reinterpret_cast<f32x4*>(&stage[j * 128 + place.lane * 4]) =
        {octet[0], octet[1], octet[2], octet[3]};
  }
  fence_async_shared();
  sync_warp();                         // the stage is written
  if (place.lane == 0) {
    bulk_add(p.problem.dq_accum + i64{part} * (8 * C::dim) + First * 16, stage,
             static_cast<int>(sizeof(stage)));
    bulk_commit();
  }
}

// The warp's 16 keys to global memory, by way of lines that nobody reads any more.
template <class C>
LAB_DEVICE void store_sum(const typename C::Sum& sum, float scale, typename C::Keyed& stage,
                          void* out, const Params& p, const BackwardKeys& b, const Place& place) {
  using T = typename C::T;
  const int line = (C::split_keys ? place.group * 64 : 0) + place.warp * 16;
  const int box = C::split_keys ? 0 : place.group * (C::boxes / 2);
#pragma unroll
  for (int j = 0; j < C::own_dim / 16; ++j) {
    u32 rounded[4];
#pragma unroll
    for (int r = 0; r < 4; ++r)
      rounded[r] = pack2<T>(sum[8 * j + 2 * r] * scale, sum[8 * j + 2 * r + 1] * scale);
    stmatrix_x4(shared_address(chunk<64>(stage[box + j / 4], line + place.lane % 16,
                                         j % 4 * 2 + place.lane / 16)),
                rounded);
  }
  sync_warp();
  constexpr int chunks = C::own_dim / 8;
#pragma unroll 4
  for (int i = place.lane; i < 16 * chunks; i += 32) {
    const int key = line + i / chunks, c = i % chunks;
    const i64 token = b.request.first_kv + b.key + key;
    T* place_of = static_cast<T*>(out) + (token * p.problem.kv_heads + b.kv_head) * C::dim +
                  box * 64 + c * 8;
    if (key < b.n_keys)
      store_global(reinterpret_cast<u32x4*>(place_of), load_chunk(stage[box + c / 8], key, c % 8));
  }
}

// ---- the walk

// Waits for Q, and clears what is beyond the request in the rows of its last tile.
template <class C> LAB_DEVICE void await_rows(Smem<C>& smem, int i, int n_rows, int thread) {
  const StageUse<C::stages> q(i);
  barrier_wait(smem.q_full[q.stage], q.parity);
  if (n_rows >= C::rows) return;
  const StageUse<C::dout_stages> o(i);
  barrier_wait(smem.dout_full[o.stage], o.parity);
  clear_lines_of_both(smem.q[q.stage], smem.dout[o.stage], n_rows, thread, all_consumers,
                      consumers);
}
template <class C> LAB_DEVICE void await_keys(Smem<C>& smem, int n_keys, int thread) {
  barrier_wait(smem.kv_full, 0);
  if (n_keys < C::keys)
    clear_lines_of_both(smem.k, smem.v, n_keys, thread, all_consumers, consumers);
}
// This warp has read a stage.
LAB_DEVICE void release(Barrier& empty, const Place& place) {
  sync_warp();
  if (place.lane == 0) barrier_arrive(empty);
}

// [lab: walk]
template <class C, class P>
LAB_DEVICE void consume(Smem<C>& smem, const Params& p, const BackwardKeys& b) {
  const Place place;
  const int group = place.group, line = C::split_keys ? group * 64 : 0;
  const int own_row = C::split_keys ? 0 : group * C::own_rows;
  const int lane_key = line + place.warp * 16 + place.lane / 4;
  typename C::Sum dk, dv;
  typename C::DqSum dq;
  int part = 0;
  if (b.steps == 0)
#pragma unroll
    for (int i = 0; i < C::own_dim / 2; ++i) dk[i] = dv[i] = 0.f;
  Additions additions;
  wait_previous_launch();  // for zeros in dq_accum
  await_keys(smem, b.n_keys, place.thread);
  BackwardWalk<C::rows> walk(p.problem, b);
#pragma unroll 1
  for (int i = 0; i < b.steps; ++i, walk.next(b)) {
    const StageUse<C::stages> q(i);
    const StageUse<C::dout_stages> o(i);
    auto& handed = smem.handed[i & 1];
    typename C::Scores s, dp;
    typename C::Fragments p_left, ds_left;
    await_rows(smem, i, b.request.q_len - walk.row, place.thread);
    score_products<C>(s, smem.k, line, smem.q[q.stage], own_row);
    barrier_wait(smem.dout_full[o.stage], o.parity);
    score_products<C>(dp, smem.v, line, smem.dout[o.stage], own_row);
    if constexpr (C::ordered && C::own_dim_of_dq == 64)
      if (place.lane == 0) additions.pass_on(b);  // early: the next tile waits
    wgmma_wait<1>();
    wgmma_hold(s);
    probabilities<C, P>(s, smem.lse2[q.stage] + own_row, p.problem.scale_log2);
    const int seen_from = p.problem.causal ? b.key - b.request.past - walk.row : -C::keys;
    if (seen_from > -C::keys || b.n_keys < C::keys)
      mask<C>(s, seen_from - own_row, b.n_keys, lane_key);
    // The stage of dQ takes a step to be read: the channels that it had no room for come now.
    if constexpr (C::own_dim_of_dq > 64)
      if (i > 0) add_dq<C, 64>(smem, p, part, dq, place);
    wgmma_wait<0>();
    wgmma_hold(dp);
    score_gradients<C>(dp, s, smem.delta[o.stage] + own_row);
    round_scores<C>(ds_left, dp);
    round_scores<C>(p_left, s);
    // Registers that a wgmma reads stay taken until it is done: P and dS are rounded before.
    if constexpr (C::split_keys)
      add_products<C>(dv, p_left, handed[0], smem.dout[o.stage], group, i > 0);
    else
      hand_over<C>(handed[1], p_left, place);
    hand_over<C>(handed[0], ds_left, place);
    fence_async_shared();
    named_sync(all_consumers, consumers);
    if constexpr (!C::split_keys)
      add_products<C>(dv, p_left, handed[1], smem.dout[o.stage], group, i > 0);
    dq_products<C>(dq, handed[0], smem.k, group);
    wgmma_wait<1>();
    wgmma_hold(dv);
    release(smem.dout_empty[o.stage], place);
    add_products<C>(dk, ds_left, handed[0], smem.q[q.stage], group, i > 0);
    wgmma_wait<1>();
    wgmma_hold(dq);
    part = dq_part<C>(p, b, walk, place);
    if constexpr (C::ordered)
      if (place.lane == 0)
        additions.take(b, p.turns + part, tiles_before<C::rows, C::keys>(p.problem, b, walk.row));
    add_dq<C, 0>(smem, p, part, dq, place);  // while dK is computed
    wgmma_wait<0>();
    wgmma_hold(dk);
    release(smem.q_empty[q.stage], place);
  }
  if constexpr (C::own_dim_of_dq > 64)
    if (b.steps > 0) add_dq<C, 64>(smem, p, part, dq, place);
  if (C::ordered && place.lane == 0) additions.pass_on(b);
  named_sync(all_consumers, consumers);  // K and V have been read
  store_sum<C>(dv, 1.f, smem.v, p.problem.dv, p, b, place);
  store_sum<C>(dk, p.problem.scale, smem.k, p.problem.dk, p, b, place);
  if (place.lane == 0) bulk_wait<0>();   // before the block's shared memory is another's
}
// [/lab: walk]

template <class C> LAB_DEVICE void init_barriers(Smem<C>& smem) {
  barrier_init(smem.kv_full, 1);
  for (int i = 0; i < C::stages; ++i) {
    barrier_init(smem.q_full[i], 1);
    barrier_init(smem.q_empty[i], consumer_warps);
  }
  for (int i = 0; i < C::dout_stages; ++i) {
    barrier_init(smem.dout_full[i], 1);
    barrier_init(smem.dout_empty[i], consumer_warps);
  }
  fence_barrier_init();
}

// [lab: kernel]
template <class C, class P>
LAB_KERNEL(C::threads, C::blocks_per_sm) backward(LAB_GRID_CONSTANT Params p) {
  static_assert(sizeof(Smem<C>) == LAB_SMEM_BYTES, "the ledger's bytes are the compiler's");
  auto& smem = shared_memory<Smem<C>>();
  const BackwardKeys b = backward_keys<C::rows, C::keys>(p.problem);
  if (thread_x() == 0) init_barriers(smem);
  allow_next_launch();
  sync_block();
  if (const int warp = warp_uniform(thread_x() / 32); warp >= 4) {
    raise_registers<240>();
    consume<C, P>(smem, p, b);
  } else {
    lower_registers<24>();
    if (thread_x() == 0) produce(smem, p, b);
  }
}
// [/lab: kernel]

}  // namespace backward_wgmma
