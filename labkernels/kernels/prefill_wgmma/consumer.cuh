// The consumers: warpgroups that multiply, exponentiate and multiply again, item after item.
#pragma once
#include "prefill_wgmma/softmax.cuh"

namespace prefill_wgmma {
using namespace lab;

// The n-th step's K and V, and the i-th item's Q, as the consumers see them.
template <class C> LAB_DEVICE void wait_k(Smem<C>& smem, int n) {
  barrier_wait(smem.k_full[stage_of<C::stages>(n)], parity_of<C::stages>(n));
}
template <class C> LAB_DEVICE void wait_v(Smem<C>& smem, int n) {
  barrier_wait(smem.v_full[stage_of<C::stages>(n)], parity_of<C::stages>(n));
}
template <class C> LAB_DEVICE void wait_q(Smem<C>& smem, int i) {
  barrier_wait(smem.q_full[stage_of<C::q_stages>(i)], parity_of<C::q_stages>(i));
}

// What of an item is still to come, and where its scores need a mask.
struct Ahead {
  int steps, key;             // left; the first key of the next
  int first_key, seen_by_all;
};

template <class C>
LAB_DEVICE Ahead open_item(Smem<C>& smem, const PrefillParams& p, int i, int warpgroup) {
  barrier_wait(smem.item_full[stage_of<2>(i)], parity_of<2>(i));
  const Item<C>& item = smem.items[stage_of<2>(i)];
  return {item.steps, item.last_key, item.block.first_key,
          least(row_limit(p, item.block, warpgroup * 64), item.block.end_key)};
}

template <class C> LAB_DEVICE void reset(State<C>& state) {
#pragma unroll
  for (int r = 0; r < 2; ++r) { state.m[r] = least_score(); state.l[r] = 0.f; }
#pragma unroll
  for (int i = 0; i < C::dim_vo / 2; ++i) state.o[i] = 0.f;
}

template <class C> struct ConsumerSync {
  LAB_DEVICE void operator()() const { named_sync(1 + C::consumers, 128 * C::consumers); }
};

// The i-th item's O is complete.
template <class C, class P>
LAB_DEVICE void finish_item(const State<C>& state, Smem<C>& smem, const PrefillParams& p, int i,
                            int row) {
  const typename C::Block& block = smem.items[stage_of<2>(i)].block;
  store<C, P>(state, p, block, row);
  if (block.live_splits > 1 && arrives_last(smem.is_last, p, block, ConsumerSync<C>{}, 128))
    merge_splits<P, 4 * C::consumers, C::dim_vo>(p, block, thread_x() / 32 - 4);
  release(smem.item_empty[stage_of<2>(i)]);
}

// [lab: consume]
// The whole work of a consumer warpgroup. i, n: the items and steps whose P is complete. The first
// scores of an item are computed beside the last products of the item before.
template <class C, class P> LAB_DEVICE void consume(Smem<C>& smem, const PrefillParams& p) {
  const int warpgroup = warp_uniform(thread_x() / 128) - 1, row = lane_row(warpgroup);
  State<C> state;
  Scores<C> s;
  Probabilities<C> probabilities;
  float rescale[2];
  int i = 0, n = 0;
  Ahead ahead = open_item<C>(smem, p, i, warpgroup);
  if (ahead.steps == 0) return;
  if (warpgroup == C::consumers - 1) pass_turn<C>(warpgroup);

  const auto finish_scores = [&] {
    wgmma_hold(s);
    release(smem.k_empty[stage_of<C::stages>(n)]);
    if (ahead.steps == 1) release(smem.q_empty[stage_of<C::q_stages>(i)]);
  };
  const auto finish_output = [&](int step) {
    wgmma_wait<0>();
    wgmma_hold(state.o);
    release(smem.v_empty[stage_of<C::stages>(step)]);
  };
  const auto softmax = [&] {
    if (ahead.key + C::keys > ahead.seen_by_all || ahead.key < ahead.first_key)
      mask<C>(s, p, smem.items[stage_of<2>(i)].block, row, ahead.key);
    update<C, P>(state, rescale, s, p.scale_log2);
    ahead.key = ahead.key - C::keys;
    ahead.steps = ahead.steps - 1;
  };

  // The next step's scores, beside the products of this one's P.
  const auto advance = [&] {
    ++n;
    if constexpr (C::overlap == Overlap::none) {
      wait_v<C>(smem, n - 1);
      begin_output<C>(state.o, probabilities, smem, n - 1);
      finish_output(n - 1);
      wait_k<C>(smem, n);
      begin_scores<C>(s, smem, warpgroup, i, n);
      wgmma_wait<0>();
    } else {
      wait_k<C>(smem, n);
      wait_turn<C>(warpgroup);
      begin_scores<C>(s, smem, warpgroup, i, n);
      wait_v<C>(smem, n - 1);
      begin_output<C>(state.o, probabilities, smem, n - 1);
      pass_turn<C>(warpgroup);
      wgmma_wait<1>();
    }
    finish_scores();
  };

  // O has the products that ran beside the scores; P and O follow the new maxima.
  const auto fold = [&] {
    if constexpr (C::overlap != Overlap::none) finish_output(n - 1);
    round_scores<C>(probabilities, s);
    rescale_output<C>(state, rescale);
  };

  reset<C>(state);
  wait_q<C>(smem, i);
  wait_k<C>(smem, n);
  begin_scores<C>(s, smem, warpgroup, i, n);
  wgmma_wait<0>();
  finish_scores();
  softmax();
  round_scores<C>(probabilities, s);
  while (true) {
    // ptxas moves a wait up to the start of its basic block: in the next turn of the loop it comes
    // after the exponentials that overlap the products, and not before them.
    bool unfolded = false;
    for (; ahead.steps > 0; unfolded = true) {
      if (unfolded) fold();
      advance();
      softmax();
      wgmma_hold(s);
      wgmma_hold(state.l);
    }
    if (unfolded) fold();
    ++i;
    ahead = open_item<C>(smem, p, i, warpgroup);
    if (ahead.steps == 0) break;
    wait_q<C>(smem, i);
    advance();
    if constexpr (C::overlap != Overlap::none) finish_output(n - 1);
    finish_item<C, P>(state, smem, p, i - 1, row);
    reset<C>(state);
    softmax();
    round_scores<C>(probabilities, s);
  }
  wait_v<C>(smem, n);
  begin_output<C>(state.o, probabilities, smem, n);
  finish_output(n);
  finish_item<C, P>(state, smem, p, i - 1, row);
  if (warpgroup == 0) wait_turn<C>(warpgroup);   // the last turn passed on is taken
}
// [/lab: consume]

}  // namespace prefill_wgmma
