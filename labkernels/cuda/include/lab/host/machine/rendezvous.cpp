#include "lab/host/machine/rendezvous.hpp"

#include <string>

#include "lab/host/races/order.hpp"
#include "lab/host/machine/report.hpp"

namespace lab::host {
namespace {

// This says what a thread is doing once no fiber of the block can run.
struct Standing {
  Word word;  // the word that it waits in; none if it has returned
  Where where;
  std::string what;  // what it waits for
  bool operator==(const Standing& o) const {
    return word == o.word && what == o.what && (word == Word::none || same_place(where, o.where));
  }
};

Standing standing(const Worker& m, int thread) {
  const Thread& t = m.threads[thread];
  if (t.state == State::finished) return {Word::none, {}, {}};
  if (t.state == State::at_sync_block) return {Word::sync_block, t.where, {}};
  if (t.state == State::waits) return {t.word, t.where, wait_in_words(m, thread)};
  const Warp& warp = m.warps[thread / warp_size];
  return {warp.word, warp.where, {}};
}

std::string in_words(const Standing& s, bool several) {
  if (s.word == Word::none) return several ? "have returned" : "has returned";
  return std::string(several ? "wait in " : "waits in ") + name_of(s.word) + " at " +
         place(s.where) + s.what;
}

// Returns one line per run of threads that do the same.
std::string list_threads(const Worker& m) {
  std::string lines;
  for (int first = 0; first < m.n_threads;) {
    const Standing s = standing(m, first);
    int last = first;
    while (last + 1 < m.n_threads && standing(m, last + 1) == s) ++last;
    const bool several = last > first;
    lines += (several ? "\n  threads " : "\n  thread ") + std::to_string(first) +
             (several ? " to " + std::to_string(last) : "") + ": " + in_words(s, several);
    first = last + 1;
  }
  return lines;
}

// Returns a warp whose lanes stand in different places, or -1.
int diverged_warp(const Worker& m) {
  for (int t = 1; t < m.n_threads; ++t)
    if (t % warp_size != 0 && !(standing(m, t) == standing(m, t - 1))) return t / warp_size;
  return -1;
}

[[noreturn]] [[gnu::noinline, gnu::cold]] void report_stuck() {
  const Worker& m = worker();
  Standing barrier{Word::none, {}, {}};
  bool at_other_barrier = false;
  for (int t = 0; t < m.n_threads; ++t) {
    if (m.threads[t].state == State::at_sync_block) barrier = standing(m, t);
    at_other_barrier |= m.threads[t].state == State::waits;
  }
  const int warp = diverged_warp(m);
  std::string message = this_block() + ": ";
  if (at_other_barrier) {
    message += "deadlock";
  } else if (barrier.word != Word::none) {
    message += "not all threads reach sync_block at " + place(barrier.where);
  } else if (warp >= 0) {
    message += "warp " + std::to_string(warp) + " diverged";
  } else {
    message += "deadlock";
  }
  fail_block(message + list_threads(m));
}

// The hardware's barrier is one instruction for the whole warp.
[[noreturn]] [[gnu::noinline, gnu::cold]] void report_split_barrier(int thread) {
  const Worker& m = worker();
  fail_block(this_block() + ": warp " + std::to_string(thread / warp_size) + " diverged: thread " +
             std::to_string(thread - 1) + " is in sync_block at " +
             place(m.threads[thread - 1].where) + ", thread " + std::to_string(thread) + " at " +
             place(m.threads[thread].where));
}

}  // namespace

[[gnu::noinline]] int other_warp() {
  leave_if_pointless();
  Worker& m = worker();
  const int mine = m.thread / warp_size;
  do {
    for (int i = 1; i <= m.n_warps; ++i) {
      const int w = (mine + i) % m.n_warps;
      if (m.warps[w].runnable != 0) return w * warp_size + __builtin_ctz(m.warps[w].runnable);
    }
  } while (land_a_load(m));
  report_stuck();
}

[[gnu::noinline, gnu::cold]] void report_divergence(Word word, Where where) {
  const Warp& warp = my_warp();
  fail("warp " + std::to_string(sm->thread / warp_size) + " diverged: this lane is in " +
       name_of(word) + " at " + place(where) + ", others wait in " + name_of(warp.word) + " at " +
       place(warp.where));
}

[[gnu::noinline]] void sync_block(Where where) {
  leave_if_pointless();
  Worker& m = worker();
  Warp& warp = my_warp();
  if (warp.arrived != 0) report_divergence(Word::sync_block, where);
  m.threads[m.thread].where = where;
  if (++m.n_arrived == m.n_threads) {
    m.n_arrived = 0;
    ++m.block_epoch;
    know_at_sync_block(m);
    for (int w = 0; w < m.n_warps; ++w) m.warps[w].runnable = m.warps[w].present;
    for (int t = 0; t < m.n_threads; ++t) {
      m.threads[t].state = State::active;
      const int neighbour = t % warp_size == 0 ? t : t - 1;
      if (!same_place(m.threads[t].where, m.threads[neighbour].where)) report_split_barrier(t);
    }
    trace(Word::sync_block, where);
    return;
  }
  m.threads[m.thread].state = State::at_sync_block;
  warp.runnable &= ~(1u << my_lane_index());
  yield();
}

}  // namespace lab::host
