// Fibers meet: the lanes of a warp in a warp-wide word, all threads of a block in sync_block.
#pragma once
#include "lab/host/machine/multiprocessor.hpp"
#include "lab/host/machine/trace.hpp"

namespace lab::host {

// Returns a fiber of another warp that can run. If none can, loads land until one can. If no load
// is left either, reports that the block is stuck.
LAB_EXPORT int other_warp();
[[noreturn]] LAB_EXPORT void report_divergence(Word word, Where where);
LAB_EXPORT void sync_block(Where where);

[[gnu::always_inline]] inline Warp& my_warp() { return sm->warps[sm->thread / warp_size]; }
[[gnu::always_inline]] inline int my_lane_index() { return sm->thread % warp_size; }
[[gnu::always_inline]] inline Lane& my_lane() { return my_warp().lane[my_lane_index()]; }

[[gnu::always_inline]] inline void switch_to(int thread) {
  Multiprocessor& m = *sm;
  Fiber& from = m.fibers[m.thread];
  m.thread = thread;
  switch_fiber(from, m.fibers[thread]);
}

// Returns the fiber that continues when the running fiber has to wait: the warp's next lane that
// can run, or else a fiber of another warp.
LAB_BEFORE_SWITCH inline int next_thread() {
  const int me = sm->thread;
  const Warp& warp = my_warp();
  const u32 after_me = warp.runnable & (~0u << (me % warp_size));
  const u32 choice = after_me != 0 ? after_me : warp.runnable;
  return choice != 0 ? me / warp_size * warp_size + __builtin_ctz(choice) : other_warp();
}
[[gnu::always_inline]] inline void yield() { switch_to(next_thread()); }

inline bool same_place(Where a, Where b) {
  return a.line() == b.line() && a.column() == b.column();
}

// Returns whether this lane is the last to arrive; if it is, it has acted for all lanes. my_lane()
// holds what a lane brought. An `aligned` word is one instruction for the whole warp, so that its
// lanes must come from one place in the source.
template <bool aligned>
LAB_BEFORE_SWITCH inline bool comes_last(Word word, Where where, void (*act)(Warp&)) {
  Warp& warp = my_warp();
  const int me = my_lane_index();
  if (warp.arrived == 0) {
    warp.word = word;
    warp.where = where;
  } else if (warp.word != word || (aligned && !same_place(warp.where, where))) [[unlikely]] {
    report_divergence(word, where);
  }
  warp.runnable &= ~(1u << me);
  if (++warp.arrived < warp.n_lanes) return false;
  act(warp);
  trace(word, warp.where);
  ++warp.meet_epoch;
  warp.arrived = 0;
  warp.runnable = warp.present;
  return true;
}
template <bool aligned>
[[gnu::always_inline]] inline void meet(Word word, Where where, void (*act)(Warp&)) {
  if (!comes_last<aligned>(word, where, act)) yield();
}

}  // namespace lab::host
