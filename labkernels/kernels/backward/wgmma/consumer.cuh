// For each block of rows the consumers compute S and dP, and then add to dV, dK and dQ.
#pragma once
#include "backward/wgmma/gradients.cuh"
#include "backward/wgmma/scores.cuh"

namespace backward_wgmma {
using namespace lab;

// Starts dV += P^T dO, or dK += dS^T Q, for the warpgroup's keys and channels. P^T or dS^T comes
// from registers, for rows_at_once rows, or from shared memory, where both warpgroups have stored
// it.
template <class C, class Tile, int N>
LAB_DEVICE void add_products(float (&sum)[N], const typename C::Fragments& left, const Tile& rows,
                             int half) {
  wgmma_ab(sum, left, mn_major_rows<C::rows_at_once>(rows, half * C::rows_at_once));
}
template <class C, class Tile, int N>
LAB_DEVICE void add_products(float (&sum)[N], const typename C::Handed& left, const Tile& rows,
                             const Place& place) {
  wgmma_ab(sum, k_major(left), mn_major(rows, place.group * (2 * N)));
}

// Starts dQ = dS K over all keys of the block, for 64 rows and the warpgroup's channels; `ds` is
// dS^T.
template <class C>
LAB_DEVICE void dq_products(typename C::DqSum& sum, const typename C::Handed& ds,
                            const typename C::Keyed& keys, int group) {
  wgmma_atb(sum, mn_major(ds, C::split_rows_of_dq ? group * 64 : 0),
            mn_major(keys, C::split_rows_of_dq ? 0 : group * 64 * C::dq_parts));
}
// Starts the same for the rest of the warpgroup's channels.
template <class C>
LAB_DEVICE void dq_rest_products(typename C::RestSum& sum, const typename C::Handed& ds,
                                 const typename C::Keyed& keys, int group) {
  wgmma_atb(sum, mn_major(ds), further(mn_major(keys, 128), group * C::dq_rest));
}

// Stores the warp's 16 keys of P^T, or of dS^T, in shared memory, for both warpgroups.
template <class C>
LAB_DEVICE void store_p(typename C::Handed& tile, const typename C::Fragments& left, int half,
                        const Place& place) {
  const int key = (C::split_keys ? place.group * 64 : 0) + place.warp * 16 + place.lane % 16;
  const int column = (C::split_keys ? 0 : place.group * (C::own_rows / 8)) + place.lane / 16;
  const int row = half * C::rows_at_once;
  const u32 at = shared_address(tile.chunk_at(key, row, column + row % atom_columns / 8));
#pragma unroll
  for (int i = 0; i < C::rows_at_once / 16; ++i) stmatrix_x4(at ^ (i * 32), left[i]);
}

// Waits for a tile of rows. In the last tile, rows past the request's end are cleared before any
// consumer goes on.
template <int Stages, class Tile>
LAB_DEVICE void await_rows(Pipeline<Stages>& ring, Tile (&tiles)[Stages], int i, int n_rows,
                           int thread) {
  consumer_wait(ring, i);
  if (n_rows >= Tile::rows) return;
  clear_rows(tiles[ring.stage(i)], n_rows, thread, consumer_threads);
  fence_async_shared();
  named_sync(all_consumers, consumer_threads);
}
template <class C>
LAB_DEVICE void await_keys(Smem<C>& smem, const typename C::Params& p, const BackwardKeys& b,
                           int thread) {
  const int n_keys = b.n_keys;
  mbarrier_wait(smem.kv_full, 0);
  if constexpr (C::Variant::window) {
    const int before = keys_before<typename C::Variant>(p.problem, b.request, b.key, C::keys);
    if (before == 0 && n_keys >= C::keys) return;
    clear_rows(smem.k, 0, thread, consumer_threads, before);
    clear_rows(smem.v, 0, thread, consumer_threads, before);
  } else if (n_keys >= C::keys) {
    return;
  }
  clear_rows(smem.k, n_keys, thread, consumer_threads);
  clear_rows(smem.v, n_keys, thread, consumer_threads);
  fence_async_shared();
  named_sync(all_consumers, consumer_threads);
}

constexpr int before_all_rows = -(1 << 30);  // without a causal mask every row sees every key
// Returns the first row that sees the block's first key, or a number below 0.
template <class V, class Problem>
LAB_DEVICE int row_seeing(const Problem& p, const BackwardKeys& b) {
  if constexpr (V::window) return b.key - b.request.past - p.variant.window_right;
  else return p.causal ? b.key - b.request.past : before_all_rows;
}

// This is the work of a consumer warpgroup. Members hold its progress; the operands and results of
// products are arguments. Registers that a wgmma reads stay in use until the wgmma is done.
template <class C, class P> struct Consumer {
  using T = typename C::T;
  using V = typename C::Variant;
  using Params = typename C::Params;
  using Scores = typename C::Scores;                  // [64 keys, rows_of_s]: S^T and P^T
  using HalfScores = typename C::HalfScores;          // [64 keys, rows_at_once]: dP^T and dS^T
  using Fragments = typename C::Fragments;            // P^T or dS^T of a half, in 16 bits
  using ValueFragments = typename C::ValueFragments;  // V: [64 keys, Dv]
  using RowPairs = typename C::RowPairs;
  using DkSum = typename C::DkSum;  // [64 keys, own_dim]
  using DvSum = typename C::DvSum;  // [64 keys, own_dim_v]
  using DqSum = typename C::DqSum;  // [64 rows, own_dim_of_dq], but for the rest
  using RestSum = typename C::RestSum;
  using LateSum = float[32];  // [64 rows, 64 channels], the last of a wide dQ

  Smem<C>& smem;
  const Params& p;
  const BackwardKeys& b;
  const Place place;
  const int line, own_row;  // the warpgroup's first key and row
  const int seen_from;      // the row that sees the block's first key, or before
  RowBlocks<C::rows> rows;
  float* dq_place = nullptr;  // of dq_accum, where the last dQ goes

  LAB_DEVICE Consumer(Smem<C>& s, const Params& params, const BackwardKeys& keys)
      : smem(s), p(params), b(keys), line(C::split_keys ? place.group * 64 : 0),
        own_row(C::split_keys ? 0 : place.group * C::own_rows),
        seen_from(row_seeing<V>(params.problem, keys)), rows(params.problem, keys) {}

  // [lab: consume]
  LAB_DEVICE void run() {
    DkSum dk = {};
    DvSum dv = {};
    LateSum late;
    ValueFragments v;
    RowPairs lse2;
    if (!C::stages_dq) wait_previous_launch();  // dq_accum holds zeros
    if constexpr (C::split_keys) clear_ds_before_the_first();
    await_keys(smem, p, b, place.thread);
    if constexpr (C::v_in_registers) load_values(v);
    if (b.steps > 0) await_q(lse2, 0);
#pragma unroll 1
    for (int i = 0; i < b.steps; ++i) step(dk, dv, late, v, lse2, i);
    if constexpr (C::split_keys) store_own_keys(dk, dv);
    else store_all_keys(dk, dv, late);
  }
  // [/lab: consume]

 private:
  // Adds what a block of rows gives to dV, dK and dQ. (In a function of its own: in the loop's body
  // ptxas finds too few registers, and waits for each wgmma.)
  LAB_DEVICE void step(DkSum& dk, DvSum& dv, LateSum& late, const ValueFragments& v, RowPairs& lse2,
                       int i) {
    const int q = smem.q_ring.stage(i);
    Scores s;
    Fragments ds_left[C::halves];
    wgmma_abt(s, k_major(smem.k, line), k_major(smem.q[q], own_row));  // S^T = K Q^T
    await_rows(smem.dout_ring, smem.dout, i, b.request.q_len - rows.row, place.thread);
    score_gradients_of<0>(s, v, ds_left, dk, dv, late, lse2, i);
    if constexpr (C::halves == 2) score_gradients_of<1>(s, v, ds_left, dk, dv, late, lse2, i);
    fence_async_shared();
    if constexpr (C::split_keys) multiply_own_keys(dk, dv, ds_left, lse2, i);
    else multiply_all_keys(dk, dv, late, lse2, i);
    wgmma_wait(dk);
    consumer_release(smem.q_ring, i);
  }
  // The first step has no dS before it, but a wgmma may not stand in a branch: its dQ is computed
  // from zeros, and is sent nowhere.
  LAB_DEVICE void clear_ds_before_the_first() {
    clear_rows(smem.handed[1][0], 0, place.thread, consumer_threads);
    fence_async_shared();
    named_sync(all_consumers, consumer_threads);
  }
  LAB_DEVICE void load_values(ValueFragments& v) const {
    const int key = line + place.warp * 16 + place.lane % 16;
#pragma unroll
    for (int j = 0; j < C::dim_v / 16; ++j)
      ldmatrix_x4(v[j], smem.v.chunk_at(key, j / 4 * 64, j % 4 * 2 + place.lane / 16));
  }
  // Waits for Q. Where V is in shared memory, the products of two tiles there take its bandwidth;
  // lse2 is then loaded before they start.
  LAB_DEVICE void await_q(RowPairs& lse2, int i) {
    await_rows(smem.q_ring, smem.q, i, b.request.q_len - rows.row, place.thread);
    if constexpr (C::halves == 1) load_rows<C>(lse2, lse2_of(0, i));
  }
  // Says which half of `s` a half of the rows is, and how many rows lie before those of `s`.
  template <int Half> static constexpr int half_of_s = C::wide ? 0 : Half;
  template <int Half>
  static constexpr int rows_before_s = (Half - half_of_s<Half>)*C::rows_at_once;
  LAB_DEVICE const float* lse2_of(int half, int i) const {
    return smem.lse2[smem.q_ring.stage(i)] + own_row + half * C::rows_at_once;
  }
  // Turns half of S into P. Capped scores give P in `left` too, in 16 bits.
  template <int Half>
  LAB_DEVICE void softmax(Scores& s, Fragments& left, const RowPairs& lse2) const {
    if constexpr (V::shapes_scores)
      shaped_probabilities<C, P, half_of_s<Half>>(
          s, left, lse2, p.problem, rows.head,
          b.key + line - b.request.past - rows.row - own_row - Half * C::rows_at_once);
    else probabilities<C, P, half_of_s<Half>>(s, lse2, p.problem.scale_log2);
    const int first_row = seen_from - rows.row - rows_before_s<Half>;
    if constexpr (V::window || V::soft_cap) {
      int width = 0x7fffffff;  // of the window, in rows
      if constexpr (V::window)
        width = p.problem.variant.window_left + p.problem.variant.window_right;
      if (first_row > -C::keys || width < C::rows - 1 - first_row || b.n_keys < C::keys)
        mask<C, half_of_s<Half>>(s, left, first_row - own_row, width, b.n_keys, line);
    } else if (first_row > -C::keys || b.n_keys < C::keys)
      mask<C, half_of_s<Half>>(s, first_row - own_row, b.n_keys, line);
  }

  // Turns half of S into P and half of dP into dS, and stores dS in shared memory. If the
  // warpgroups split the keys, dV += P^T dO runs meanwhile. During the second half, dK += dS^T Q of
  // the first half and the dQ of the step before run too.
  template <int Half>
  LAB_DEVICE void score_gradients_of(Scores& s, const ValueFragments& v,
                                     Fragments (&ds_left)[C::halves], DkSum& dk, DvSum& dv,
                                     const LateSum& late, RowPairs& lse2, int i) {
    const int o = smem.dout_ring.stage(i), row = own_row + Half * C::rows_at_once;
    auto& handed = smem.handed[i & 1];
    HalfScores dp;
    Fragments p_left;
    DqSum dq;
    if constexpr (Half == 1 && C::wide)
      wgmma_abt(s, k_major(smem.k, line), k_major(smem.q[smem.q_ring.stage(i)], row));
    if constexpr (C::v_in_registers) wgmma_abt(dp, v, k_major(smem.dout[o], row));  // dP^T = V dO^T
    else wgmma_abt(dp, k_major(smem.v, line), k_major(smem.dout[o], row));
    if constexpr (Half == 1) {
      add_products<C>(dk, ds_left[0], smem.q[smem.q_ring.stage(i)], 0);
      if constexpr (C::dq_beside_scores)
        dq_products<C>(dq, smem.handed[(i & 1) ^ 1][0], smem.k, place.group);
    }
    if constexpr (C::halves == 2) load_rows<C>(lse2, lse2_of(Half, i));
    if constexpr (Half == 0) wgmma_wait<1>(s);
    else if constexpr (C::wide) wgmma_wait<2>(s);
    softmax<Half>(s, p_left, lse2);
    if constexpr (C::stages_dq) send_late(late, i);
    if constexpr (!V::soft_cap) round_p<C, half_of_s<Half>>(p_left, s);
    if constexpr (C::split_keys) {
      add_products<C>(dv, p_left, smem.dout[o], Half);
      wgmma_wait<1>(dp);
      if constexpr (Half == 1 && C::dq_beside_scores) send_dq_before(dq, i);
    } else {
      wgmma_wait(dp);
      store_p<C>(handed[1], p_left, Half, place);
    }
    score_gradients<C, half_of_s<Half>>(dp, s, smem.delta[o] + own_row + rows_before_s<Half>);
    round_to_fragments<T>(ds_left[Half], dp);
    if constexpr (C::split_keys && Half == 0) await_ds(i - 1);
    store_p<C>(handed[0], ds_left[Half], Half, place);
  }

  // Hands over dS, and starts the rest of dK += dS^T Q. Afterwards the next Q is there. dQ sums
  // over the keys of both warpgroups, so that it needs the other one's dS too. It is computed a
  // step later, and so the warpgroups do not wait for each other: while one computes P and dS, the
  // tensor core has the products of the other. The rest of dQ takes the registers of its first 64
  // channels, once these are on their way.
  LAB_DEVICE void multiply_own_keys(DkSum& dk, DvSum& dv, const Fragments (&ds_left)[C::halves],
                                    RowPairs& lse2, int i) {
    constexpr int half = C::halves - 1;
    DqSum dq;
    constexpr bool after = !C::dq_beside_scores;
    if constexpr (after) dq_products<C>(dq, smem.handed[(i & 1) ^ 1][0], smem.k, place.group);
    wgmma_wait<after ? 1 : 0>(dv);  // dQ, if it has just been started, goes on
    consumer_release(smem.dout_ring, i);
    add_products<C>(dk, ds_left[half], smem.q[smem.q_ring.stage(i)], half);
    if constexpr (after) wgmma_wait<1>(dq);
    if constexpr (C::dq_rest > 0) {
      send_dq_before(dq, i);
      RestSum rest;
      dq_rest_products<C>(rest, smem.handed[(i & 1) ^ 1][0], smem.k, place.group);
      wgmma_wait(rest);
      hand_over_ds();
      send_rest_before(rest, i);
    } else {
      hand_over_ds();
      if constexpr (after) send_dq_before(dq, i);
    }
    rows.next(b);
    if (i + 1 < b.steps) await_q(lse2, i + 1);
  }
  // Hands over P and dS, starts dV += P^T dO and dK += dS^T Q, and computes and sends dQ = dS K.
  // Afterwards the next Q is there.
  LAB_DEVICE void multiply_all_keys(DkSum& dk, DvSum& dv, LateSum& late, RowPairs& lse2, int i) {
    auto& handed = smem.handed[i & 1];
    DqSum dq;
    named_sync(all_consumers, consumer_threads);  // P and dS are handed over
    add_products<C>(dv, handed[1], smem.dout[smem.dout_ring.stage(i)], place);
    // A fence waits until the warp's earlier additions to global memory are done. They are sent
    // right after it and half a step apart, and are done before the next one.
    if constexpr (!C::stages_dq) send_late(late, i);
    dq_products<C>(dq, handed[0], smem.k, place.group);
    wgmma_wait<1>(dv);
    consumer_release(smem.dout_ring, i);
    add_products<C>(dk, handed[0], smem.q[smem.q_ring.stage(i)], place);
    wgmma_wait<1>(dq);
    if (!C::stages_dq) dq_place = dq_rows<C>(p, b, rows, place.group, place.warp);
    send_dq<0>(dq, i);
    // The second half of a wide dQ is sent a step later: where dQ passes through shared memory
    // there is one stage, from which the first half is still being added.
    if constexpr (C::dq_parts == 2)
#pragma unroll
      for (int n = 0; n < 32; ++n) late[n] = dq[32 + n];
    rows.next(b);
    if (i + 1 < b.steps) await_q(lse2, i + 1);
  }

  // Announces the warp's dS of a step, for a dQ a step later, and that the warp's products no
  // longer read the dS of the step before: its place is that of the next step.
  LAB_DEVICE void hand_over_ds() { warp_arrive(smem.ds_full); }
  // Waits until all warps have handed over dS of step i; step -1 has none.
  LAB_DEVICE void await_ds(int i) { mbarrier_wait(smem.ds_full, i & 1); }

  // Sends the first 64 channels of `sum`. Part says which 64 of the warpgroup's channels these are.
  // sum: [64 rows, 2 N].
  template <int Part, int N> LAB_DEVICE void send_dq(const float (&sum)[N], int i) {
    if constexpr (C::stages_dq) pass_dq<C, 0>(smem, sum, C::dq_parts * i + Part, place);
    else add_dq(dq_place + Part * 16 * 64, sum, place);
  }
  // Sends the second half of a wide dQ, of the step before step i.
  LAB_DEVICE void send_late(const LateSum& late, int i) {
    if constexpr (C::dq_parts == 2)
      if (i > 0) send_dq<1>(late, i - 1);
  }
  // Sends the dQ of the step before step i, once its products are done.
  LAB_DEVICE void send_dq_before(DqSum& dq, int i) {
    fence_operand(dq);
    if (i > 0) send_dq<0>(dq, i - 1);
  }
  LAB_DEVICE void send_rest_before(const RestSum& rest, int i) {
    if (i > 0) pass_dq<C, 64>(smem, rest, i - 1, place);
  }

  // Computes and sends the last dQ, and stores dV and dK while dQ is added.
  LAB_DEVICE void store_own_keys(const DkSum& dk, const DvSum& dv) {
    const int i = b.steps - 1;
    DqSum dq;
    await_ds(i);  // so that both have read V too
    dq_products<C>(dq, smem.handed[i & 1][0], smem.k, place.group);
    wgmma_wait(dq);
    send_dq_before(dq, b.steps);
    if constexpr (C::dq_rest > 0) {
      RestSum rest;
      dq_rest_products<C>(rest, smem.handed[i & 1][0], smem.k, place.group);
      wgmma_wait(rest);
      send_rest_before(rest, b.steps);
    }
    store_sum<C>(dv, 1.f, smem.v, p.problem.dv, p, b);
    named_sync(all_consumers, consumer_threads);  // K has been read
    store_sum<C>(dk, p.problem.scale, smem.k, p.problem.dk, p, b);
  }
  LAB_DEVICE void store_all_keys(const DkSum& dk, const DvSum& dv, const LateSum& late) {
    send_late(late, b.steps);
    if constexpr (!C::stages_dq) named_arrive(dq_is_sent, consumer_threads + 32);
    named_sync(all_consumers, consumer_threads);  // K and V have been read
    store_sum<C>(dv, 1.f, smem.v, p.problem.dv, p, b);
    store_sum<C>(dk, p.problem.scale, smem.k, p.problem.dk, p, b);
  }
};

}  // namespace backward_wgmma
