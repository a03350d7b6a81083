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

// What of an item a warpgroup has before it, and where its scores need a mask.
struct Ahead {
  int skipped;                // first steps, whose keys none of its rows sees
  int steps, key;             // left after them; the first key of the next
  int first_key, seen_by_all;
};

template <class C>
LAB_DEVICE Ahead open_item(Smem<C>& smem, const PrefillParams& p, int i, int warpgroup) {
  const Item<C>& item = receive(smem, i);
  if (item.steps == 0) return {};
  const int row = warpgroup * 64;
  const int end = least(row_limit(p, item.block, row + 63), item.block.end_key);
  const int unseen = row < item.block.n_rows ? (item.last_key - end + C::keys) / C::keys
                                             : item.steps;
  // a step is left to open the rows, and a stage for the V that the item before still wants
  const int skipped = least(unseen, least(item.steps, C::stages) - 1);
  return {skipped, item.steps - skipped, item.last_key - skipped * C::keys,
          item.block.first_key, least(row_limit(p, item.block, row), item.block.end_key)};
}

template <class C> struct ConsumerSync {
  LAB_DEVICE void operator()() const { named_sync(1 + C::consumers, 128 * C::consumers); }
};

// The i-th item's O is complete.
template <class C, class P>
LAB_DEVICE void finish_item(const Output<C>& o, const float (&factor)[2], Smem<C>& smem,
                            const PrefillParams& p, int i, int row) {
  const typename C::Block& block = smem.items[stage_of<2>(i)].block;
  store<C, P>(o, factor, p, block, row);
  if (block.live_splits > 1 && arrives_last(smem.is_last, p, block, ConsumerSync<C>{}, 128))
    merge_splits<P, 4 * C::consumers, C::dim_vo>(p, block, thread_x() / 32 - 4);
  release(smem.item_empty[stage_of<2>(i)]);
}

// [lab: consume]
// The whole work of a consumer warpgroup. i, k, v: the item and step whose scores come next, and
// the step whose products do. The first scores of an item are computed beside the last products of
// the item before, and exponentiated too: the end of an item is a step as any other, and a store.
template <class C, class P> LAB_DEVICE void consume(Smem<C>& smem, const PrefillParams& p) {
  const int warpgroup = warp_uniform(thread_x() / 128) - 1, row = lane_row(warpgroup);
  Softmax rows;
  Output<C> o;
  Scores<C> s;
  Probabilities<C> probabilities;
  float factor[2];            // of the item before, whose O is not yet complete
  int i = 0, k = 0, v = 0;
  int unread = 0;             // V of skipped steps, behind the products under way
  bool has_ended = false;     // an item, with the products under way
  Ahead ahead = open_item<C>(smem, p, i, warpgroup);
  if (ahead.steps == 0) return;
  if (warpgroup == C::consumers - 1) pass_turn<C>(warpgroup);

  // A skipped step's K, V and turn are let go, each where it is due.
  const auto skip_keys = [&] {
    for (int j = 0; j < ahead.skipped; ++j, ++k) {
      wait_k<C>(smem, k);
      release(smem.k_empty[stage_of<C::stages>(k)]);
    }
    unread = ahead.skipped;
  };
  const auto skip_values = [&] {
    for (; unread > 0; --unread, ++v) {
      wait_v<C>(smem, v);
      release(smem.v_empty[stage_of<C::stages>(v)]);
    }
  };
  const auto skip_turns = [&] {
    for (int j = 0; j < ahead.skipped; ++j) {
      wait_turn<C>(warpgroup);
      pass_turn<C>(warpgroup);
    }
  };
  const auto finish_scores = [&] {
    wgmma_hold(s);
    release(smem.k_empty[stage_of<C::stages>(k)]);
    ++k;
    if (ahead.steps == 1) release(smem.q_empty[stage_of<C::q_stages>(i)]);
  };
  const auto finish_output = [&] {
    wgmma_wait<0>();
    wgmma_hold(o);
    release(smem.v_empty[stage_of<C::stages>(v)]);
    ++v;
    skip_values();
  };
  const auto softmax = [&] {
    const typename C::Block& block = smem.items[stage_of<2>(i)].block;
    if (ahead.key + C::keys > ahead.seen_by_all) mask_future<C>(s, p, block, row, ahead.key);
    if (ahead.key < ahead.first_key) mask_past<C>(s, ahead.first_key - ahead.key);
    update<C, P>(rows, s, p.scale_log2);
    ahead.key = ahead.key - C::keys;
    ahead.steps = ahead.steps - 1;
  };

  // The end of an item's rows, and the start of the next one's: where there are registers for it,
  // beside the products that end its O.
  const auto close = [&](bool here) {
    if (!here || !has_ended) return;
    close_rows<C, P>(factor, rows, p, smem.items[stage_of<2>(i - 1)].block, row);
    open_rows(rows);
  };

  // The next step's scores, beside the products of this one's P.
  const auto advance = [&] {
    if constexpr (C::overlap == Overlap::none) {
      wait_v<C>(smem, v);
      begin_output<C>(o, probabilities, smem, v);
      close(C::closes_beside);
      finish_output();
      wait_k<C>(smem, k);
      begin_scores<C>(s, smem, warpgroup, i, k);
      wgmma_wait<0>();
    } else {
      wait_k<C>(smem, k);
      wait_turn<C>(warpgroup);
      begin_scores<C>(s, smem, warpgroup, i, k);
      wait_v<C>(smem, v);
      begin_output<C>(o, probabilities, smem, v);
      pass_turn<C>(warpgroup);
      close(C::closes_beside);
      wgmma_wait<1>();
    }
    finish_scores();
  };

  // O has the products that ran beside the scores; P and O follow the new maxima.
  const auto fold = [&] {
    if constexpr (C::overlap != Overlap::none) finish_output();
    round_scores<C>(probabilities, s);
    if (has_ended) {
      finish_item<C, P>(o, factor, smem, p, i - 1, row);
      clear<C>(o);
    }
    rescale_output<C>(o, rows);
  };

  open_rows(rows);
  clear<C>(o);
  skip_keys();
  skip_values();
  wait_q<C>(smem, i);
  wait_k<C>(smem, k);
  begin_scores<C>(s, smem, warpgroup, i, k);
  wgmma_wait<0>();
  finish_scores();
  softmax();
  round_scores<C>(probabilities, s);
  for (bool multiplies = false;; multiplies = true) {
    // ptxas moves a wait up to the start of its basic block: here, at the start of the loop, it
    // comes after the exponentials that overlap the products, and not before them.
    if (multiplies) fold();
    has_ended = ahead.steps == 0;
    if (has_ended) {
      skip_turns();
      ++i;
      ahead = open_item<C>(smem, p, i, warpgroup);
      if (ahead.steps == 0) break;
      close(!C::closes_beside);
      skip_keys();
      wait_q<C>(smem, i);
    }
    advance();
    softmax();
    wgmma_hold(s);
    wgmma_hold(rows.l);
  }
  wait_v<C>(smem, v);
  begin_output<C>(o, probabilities, smem, v);
  close_rows<C, P>(factor, rows, p, smem.items[stage_of<2>(i - 1)].block, row);
  finish_output();
  finish_item<C, P>(o, factor, smem, p, i - 1, row);
  if (warpgroup == 0) wait_turn<C>(warpgroup);   // the last turn passed on is taken
}
// [/lab: consume]

}  // namespace prefill_wgmma
