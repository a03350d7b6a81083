// This file has the named barriers, and the registers that move between warpgroups.
#include <algorithm>

#include "lab/host/memory/barriers.hpp"
#include "lab/host/races/order.hpp"
#include "lab/host/machine/report.hpp"
#include "lab/host/instructions/warp_words.hpp"
#include "lab/hopper/mbarrier.cuh"

namespace lab::host {
namespace {

constexpr int registers_of_a_multiprocessor = 65536, registers_unit = 8, most_registers = 255;

bool same_in_all_lanes(const Warp& warp) {
  return std::all_of(warp.lane, warp.lane + warp.n_lanes, [&](const Lane& lane) {
    return lane.value == warp.lane[0].value && lane.source == warp.lane[0].source;
  });
}

void act_named(Warp& warp) {
  if (!same_in_all_lanes(warp))
    fail(at(warp.word, warp.where) + ": the lanes name different barriers or counts");
  const int id = static_cast<int>(warp.lane[0].value), threads = warp.lane[0].source;
  Worker& m = worker();
  const auto complain = [&](const std::string& what) {
    fail(at(warp.word, warp.where) + ": " + what);
  };
  if (id < 1 || id >= n_named)
    complain("id = " + std::to_string(id) + ", allowed: 1 to " + std::to_string(n_named - 1));
  if (threads < warp_size || threads > m.n_threads || threads % warp_size != 0)
    complain("threads = " + std::to_string(threads) + ", allowed: multiples of 32 up to the " +
             std::to_string(m.n_threads) + " of the block");
  NamedBarrier& b = m.barriers.named[id];
  const int w = m.thread / warp_size;
  if (b.arrived == 0) {
    b.threads = threads;
    b.where = warp.where;
  } else if (b.threads != threads) {
    complain("barrier " + std::to_string(id) + " of " + std::to_string(threads) + " threads; at " +
             place(b.where) + " it is of " + std::to_string(b.threads));
  }
  if ((b.warps >> w & 1) != 0)
    complain("warp " + std::to_string(w) + " comes to barrier " + std::to_string(id) +
             " again, before the others have come");
  for (Lane& lane : warp.lane) lane.value = b.generation;
  b.warps |= 1u << w;
  b.arrived += warp_size;
  know_at_named_arrival(m, id);
  if (b.arrived < b.threads) return;
  b.arrived = 0;
  b.warps = 0;
  ++b.generation;
  know_at_named_end(m, id);
  for (int t = 0; t < m.n_threads; ++t) {
    const Thread& thread = m.threads[t];
    if (thread.state == State::waits && thread.word == Word::named_sync && thread.what == id)
      wake(t);
  }
}

void come(Word word, int id, int threads, Where where) {
  require_sm90(word, where);
  Lane& mine = my_lane();
  mine.value = static_cast<u64>(id);
  mine.source = threads;
  meet_whole_warp(word, where, act_named);
}

}  // namespace

void named_arrive(int id, int threads, Where where) {
  come(Word::named_arrive, id, threads, where);
}

void named_sync(int id, int threads, Where where) {
  come(Word::named_sync, id, threads, where);
  // The warp's lanes get here one after the other, and the last warp may come between two of them.
  if (my_lane().value == worker().barriers.named[id].generation) sleep(Word::named_sync, where, id);
  know_after_named_wait(worker(), id);
}

// ---- registers

int registers_at_launch(int n_threads) {
  const int whole_warps = (n_threads + warp_size - 1) / warp_size * warp_size;
  return std::min(most_registers, registers_of_a_multiprocessor / whole_warps) / registers_unit *
         registers_unit;
}

namespace {

void act_raise(Warp& warp) {
  Barriers& b = worker().barriers;
  const int w = sm->thread / warp_size, n = warp.lane[0].source;
  if (n < b.registers[w] && (b.changed >> w & 1) != 0)
    fail(at(warp.word, warp.where) + ": " + std::to_string(n) + " registers are fewer than the " +
         std::to_string(b.registers[w]) + " that the warp has");
}

void act_lower(Warp& warp) {
  Worker& m = worker();
  Barriers& b = m.barriers;
  const int w = m.thread / warp_size, n = warp.lane[0].source;
  if (n > b.registers[w])
    fail(at(warp.word, warp.where) + ": " + std::to_string(n) + " registers are more than the " +
         std::to_string(b.registers[w]) + " that the warp has");
  b.free_registers += b.registers[w] - n;
  b.registers[w] = n;
  b.changed |= 1u << w;
  for (int t = 0; t < m.n_threads; ++t)
    if (m.threads[t].state == State::waits && m.threads[t].word == Word::setmaxnreg_inc) wake(t);
}

void check_warpgroup(Word word, Where where) {
  require_sm90(word, where);
  const Worker& m = worker();
  if (m.n_threads % (warps_of_group * warp_size) != 0)
    fail(at(word, where) + " needs whole warpgroups; the block has " + std::to_string(m.n_threads) +
         " threads");
}

}  // namespace

void setmaxnreg_inc(int n, Where where) {
  check_warpgroup(Word::setmaxnreg_inc, where);
  my_lane().source = n;
  meet_whole_warp(Word::setmaxnreg_inc, where, act_raise);
  Barriers& b = worker().barriers;
  const int w = sm->thread / warp_size;
  while (b.registers[w] < n) {  // until the warp's first lane finds enough
    if (b.free_registers >= n - b.registers[w]) {
      b.free_registers -= n - b.registers[w];
      b.registers[w] = n;
      b.changed |= 1u << w;
    } else {
      sleep(Word::setmaxnreg_inc, where, n);
    }
  }
}

void setmaxnreg_dec(int n, Where where) {
  check_warpgroup(Word::setmaxnreg_dec, where);
  my_lane().source = n;
  meet_whole_warp(Word::setmaxnreg_dec, where, act_lower);
}

void check_registers(const Worker& m) {
  for (int first = 0; first + warps_of_group <= m.n_warps; first += warps_of_group)
    for (int w = first + 1; w < first + warps_of_group; ++w)
      if (m.barriers.registers[w] != m.barriers.registers[first])
        fail_block(this_block() + ": warps " + std::to_string(first) + " and " + std::to_string(w) +
                   " of a warpgroup end with " + std::to_string(m.barriers.registers[first]) +
                   " and " + std::to_string(m.barriers.registers[w]) +
                   " registers per thread: setmaxnreg_inc and setmaxnreg_dec take all four warps");
}

void act_warp_uniform(Warp& warp) {
  if (!same_in_all_lanes(warp)) fail(at(warp.word, warp.where) + ": the lanes' values differ");
  act_shfl(warp);
}

}  // namespace lab::host
