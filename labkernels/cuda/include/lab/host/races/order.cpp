#include "lab/host/races/order.hpp"

#ifdef LAB_CHECKS
#include <algorithm>

#include "lab/host/machine/report.hpp"
#include "lab/host/races/shadow.hpp"

namespace lab::host {
namespace {

void join(u32* a, const u32* b, int n) {
  for (int i = 0; i < n; ++i) a[i] = std::max(a[i], b[i]);
}

// Adds to `limits` what `thread` has done until now, and what the thread knows.
void publish(Worker& m, Order& order, int thread, u32* limits) {
  const int w = thread / warp_size;
  join(limits, order.of(thread), order.n_actors);
  limits[thread] = order.now;
  limits[order.words_of(w)] = m.warps[w].meet_epoch + 1;
  limits[order.wgmmas_of(w)] = order.wgmma_done[w] + 1;
}

u32* limits_of(Order& order, Limits& limits) {
  limits.resize(static_cast<std::size_t>(order.n_actors));
  return limits.data();
}

void know_everything_done(Worker& m, Order& order) {
  ++order.now;
  u32* all = order.everyone.data();
  std::fill(all, all + order.n_threads, order.now);
  for (int w = 0; w < order.n_warps; ++w) {
    all[order.words_of(w)] = m.warps[w].meet_epoch + 1;
    all[order.wgmmas_of(w)] = order.wgmma_done[w] + 1;
  }
}

}  // namespace

void begin_launch(Order& order, int n_threads, int n_warps) {
  order.n_threads = n_threads;
  order.n_warps = n_warps;
  order.n_actors = order.copies_of(max_checked_barriers);
  const auto n = static_cast<std::size_t>(order.n_actors);
  order.known.resize(n * static_cast<std::size_t>(n_threads));
  order.everyone.resize(n);
  order.fenced.resize(static_cast<std::size_t>(n_threads) * static_cast<std::size_t>(n_threads));
  order.fences.resize(static_cast<std::size_t>(n_threads));
}

void begin_block(Worker& m) {
  Order& order = order_of(m);
  std::fill(order.known.begin(), order.known.end(), 0);
  std::fill(order.everyone.begin(), order.everyone.end(), 0);
  std::fill(order.fenced.begin(), order.fenced.end(), 0);
  for (Limits& stamps : order.fences) stamps.clear();
  for (Limits& limits : order.gathered) limits.clear();
  for (Limits& limits : order.ended) limits.clear();
  std::copy_n(order.wgmma_issued, max_warps, order.wgmma_done);
  order.n_barriers = 0;
  know_everything_done(m, order);
  order.block_began = order.now;
}

void know_at_sync_block(Worker& m) {
  Order& order = order_of(m);
  know_everything_done(m, order);
  const int first = order.copies_of(0);
  for (int t = 0; t < order.n_threads; ++t)
    join(order.everyone.data() + first, order.of(t) + first, order.n_barriers);
}

void know_at_sync_warp(Worker& m) {
  Order& order = order_of(m);
  ++order.now;
  const int first = m.thread / warp_size * warp_size;
  const int last = first + m.warps[m.thread / warp_size].n_lanes;
  u32* together = order.of(first);
  for (int t = first + 1; t < last; ++t) join(together, order.of(t), order.n_actors);
  std::fill(together + first, together + last, order.now);
  for (int t = first + 1; t < last; ++t) std::copy_n(together, order.n_actors, order.of(t));
}

void know_at_arrival(Worker& m, int barrier) {
  Order& order = order_of(m);
  if (barrier >= max_checked_barriers)
    fail("the checks know at most " + std::to_string(max_checked_barriers) + " barriers per block");
  ++order.now;
  order.n_barriers = std::max(order.n_barriers, barrier + 1);
  publish(m, order, m.thread, limits_of(order, order.gathered[barrier]));
}

void know_at_end(Worker& m, int barrier, u32 phase) {
  Order& order = order_of(m);
  limits_of(order, order.gathered[barrier])[order.copies_of(barrier)] = phase + 1;
  order.ended[barrier] = order.gathered[barrier];
}

void know_after_wait(Worker& m, int barrier) {
  Order& order = order_of(m);
  join(order.of(m.thread), limits_of(order, order.ended[barrier]), order.n_actors);
}

void know_at_named_arrival(Worker& m, int id) {
  Order& order = order_of(m);
  ++order.now;
  u32* limits = limits_of(order, order.gathered[max_checked_barriers + id]);
  const int first = m.thread / warp_size * warp_size;
  for (int t = first; t < first + warp_size; ++t) publish(m, order, t, limits);
}

void know_at_named_end(Worker& m, int id) {
  Order& order = order_of(m);
  order.ended[max_checked_barriers + id] = order.gathered[max_checked_barriers + id];
}

void know_after_named_wait(Worker& m, int id) { know_after_wait(m, max_checked_barriers + id); }

void know_at_fence(Worker& m) {
  Order& order = order_of(m);
  order.fences[static_cast<std::size_t>(m.thread)].push_back(order.now);
  const u32* known = order.of(m.thread);
  u32* at = order.fenced.data() + static_cast<std::ptrdiff_t>(m.thread) * order.n_threads;
  for (int t = 0; t < order.n_threads; ++t)
    at[t] = std::max(known[t], order.everyone[static_cast<std::size_t>(t)]);
}

}  // namespace lab::host
#endif
