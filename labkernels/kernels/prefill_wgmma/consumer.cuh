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

template <class C> struct ConsumerSync {
  LAB_DEVICE void operator()() const { named_sync(1 + C::consumers, 128 * C::consumers); }
};

// The i-th item's O is complete.
template <class C, class P>
LAB_DEVICE void finish_item(const Output<C>& o, float factor, Smem<C>& smem,
                            const PrefillParams& p, int i, int row) {
  const typename C::Block& block = smem.items[stage_of<item_stages>(i)].block;
  store<C, P>(o, factor, p, block, row);
  if (block.live_splits > 1 && arrives_last(smem.is_last, p, block, ConsumerSync<C>{}, 128))
    merge_splits<P, 4 * C::consumers, C::dim_vo>(p, block, thread_x() / 32 - 4);
  release(smem.item_empty[stage_of<item_stages>(i)]);
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
  Probabilities<C> probabilities, spare;
  float factor = 0.f;         // of the item before, whose O is not yet complete
  int i = 0, k = 0, v = 0;
  int unread = 0;             // V of skipped steps, behind the products under way
  bool has_ended = false;     // an item, with the products under way
  Ahead ahead = receive(smem, i).ahead[warpgroup];
  if (ahead.steps == 0) return;
  if (warpgroup == C::consumers - 1) pass_turn<C>(warpgroup);

  // A skipped step's K, V and turn are let go, each where it is due: warpgroups that skip more
  // steps than others stay abreast of them.
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
  const auto finish_output = [&] {
    wgmma_wait<0>();
    wgmma_hold(o);
    release(smem.v_empty[stage_of<C::stages>(v)]);
    ++v;
  };
  const auto finish_scores = [&] {
    wgmma_hold(s);
    release(smem.k_empty[stage_of<C::stages>(k)]);
    ++k;
    // no branch, which would end the block of instructions that the compiler orders
    if ((ahead.steps == 1) & ((thread_x() & 31) == 0))
      barrier_arrive(smem.q_empty[stage_of<C::q_stages>(i)]);
  };

  // The end of an item's rows, and the start of the next one's.
  const auto close = [&] {
    factor = close_rows<C, P>(rows, p, smem.items[stage_of<item_stages>(i - 1)].block, row);
    open_rows(rows);
  };

  // The next step's scores, beside the products of this one's P; an item may end beside both.
  const auto advance = [&](const Probabilities<C>& ready, bool closes) {
    if constexpr (C::overlap == Overlap::none) {
      wait_v<C>(smem, v);
      begin_output<C>(o, ready, smem, v);
      if (closes) close();
      finish_output();
      wait_k<C>(smem, k);
      begin_scores<C>(s, smem, warpgroup, i, k);
      wgmma_wait<0>();
    } else {
      wait_k<C>(smem, k);
      wait_turn<C>(warpgroup);
      begin_scores<C>(s, smem, warpgroup, i, k);
      wait_v<C>(smem, v);
      begin_output<C>(o, ready, smem, v);
      pass_turn<C>(warpgroup);
      if (closes) close();
      wgmma_wait<1>();
    }
    finish_scores();
  };
  const auto softmax = [&] {
    update<C, P>(rows, s, p.scale_log2);
    --ahead.steps;
  };
  const auto masked_softmax = [&] {
    const Item<C>& item = smem.items[stage_of<item_stages>(i)];
    const auto key = [&] { return item.last_key - (item.steps - ahead.steps) * C::keys; };
    if (ahead.masked > 0) mask_future<C>(s, p, item.block, row, key());
    if (ahead.steps == ahead.cut) mask_past<C>(s, item.block.first_key - key());
    softmax();
    --ahead.masked;
  };

  // O has the products that ran beside the scores; P and O follow the new maxima.
  const auto fold = [&] {
    if constexpr (C::overlap != Overlap::none) finish_output();
    skip_values();            // before the branch: after it, ptxas doubts that all lanes have one v
    round_scores<C>(probabilities, s);
    if (has_ended) {
      finish_item<C, P>(o, factor, smem, p, i - 1, row);
      clear<C>(o);
      skip_turns();           // after a barrier of all consumers, of whom some have no turn before
    }
    rescale_output<C>(o, rows);
  };

  // A step of the steady state: no row's last key, and no end of an item. In a roomy tile P is
  // `ready` already, and the next step's is rounded as its exponentials come.
  const auto steady = [&](Probabilities<C>& ready, Probabilities<C>& next) {
    if constexpr (C::overlap != Overlap::none) finish_output();
    if constexpr (!C::is_roomy) round_scores<C>(ready, s);
    rescale_output<C>(o, rows);
    advance(ready, false);
    softmax();
    if constexpr (C::is_roomy) round_scores<C>(next, s);
    wgmma_hold(s);
    wgmma_hold(rows.l);
  };

  open_rows(rows);
  clear<C>(o);
  skip_keys();
  skip_values();
  skip_turns();
  wait_q<C>(smem, i);
  wait_k<C>(smem, k);
  begin_scores<C>(s, smem, warpgroup, i, k);
  wgmma_wait<0>();
  finish_scores();
  masked_softmax();
  round_scores<C>(probabilities, s);
  for (bool multiplies = false;; multiplies = true) {
    // ptxas moves a wait up to the start of its basic block: here, at the start of the loop, it
    // comes after the exponentials that overlap the products, and not before them.
    if (multiplies) fold();
    has_ended = ahead.steps == 0;
    if (has_ended) {
      ++i;
      ahead = receive(smem, i).ahead[warpgroup];
      if (ahead.steps == 0) break;
      if (!C::is_roomy) close();
      skip_keys();
      wait_q<C>(smem, i);
    }
    advance(probabilities, has_ended && C::is_roomy);
    masked_softmax();
    wgmma_hold(s);
    wgmma_hold(rows.l);
    if (has_ended || ahead.masked > 0 || ahead.steps <= ahead.cut) continue;
    // The steady state has a loop of its own, in which none of this is asked.
    if constexpr (C::is_roomy) round_scores<C>(spare, s);
    while (true) {
      if constexpr (C::is_roomy) {
        steady(spare, probabilities);
        if (ahead.steps == ahead.cut) break;
        steady(probabilities, spare);
      } else {
        steady(probabilities, probabilities);
      }
      if (ahead.steps == ahead.cut) break;
    }
  }
  wait_v<C>(smem, v);
  begin_output<C>(o, probabilities, smem, v);
  close();
  finish_output();
  finish_item<C, P>(o, factor, smem, p, i - 1, row);
  if (warpgroup == 0) wait_turn<C>(warpgroup);   // the last turn passed on is taken
}
// [/lab: consume]

}  // namespace prefill_wgmma
