// This file has the mbarriers, and how a thread waits for them.
#include "lab/host/memory/barriers.hpp"

#include <algorithm>

#include "lab/host/races/order.hpp"
#include "lab/host/machine/report.hpp"
#include "lab/host/instructions/warp_words.hpp"
#include "lab/hopper/mbarrier.cuh"

namespace lab::host {
namespace {

constexpr u64 mark = 0x426172726965;  // stands above the barrier's number in its 8 bytes
constexpr int mark_shift = 16;
constexpr int max_arrivals = (1 << 20) - 1;

std::string barrier_at(u32 byte) { return "the barrier at shared byte " + std::to_string(byte); }

void end_phase(MBarrier& b) {
  know_at_end(worker(), b.number, b.phase);
  ++b.phase;
  b.pending = b.count;
  for (const short thread : b.waiting) wake(thread);
  b.waiting.clear();
}
void end_phase_if_complete(MBarrier& b) {
  if (b.pending == 0 && b.bytes == 0) end_phase(b);
}

std::string missing(const MBarrier& b) {
  return std::to_string(b.pending) + " of " + std::to_string(b.count) + " arrivals and " +
         std::to_string(b.bytes) + " bytes are missing";
}

// A stepper is told once per warp, because all lanes of a warp wait for the same phase.
void trace_wait(const MBarrier& b, Where where) {
  if (my_lane_index() != 0) return;
  worker().threads[sm->thread].what = b.number;
  trace(Word::mbarrier_wait, where);
}

}  // namespace

std::string at(Word word, Where where) {
  return std::string(name_of(word)) + " at " + place(where);
}
void sleep(Word word, Where where, int what) {
  Worker& m = worker();
  const int me = m.thread;
  Thread& thread = m.threads[me];
  thread.state = State::waits;
  thread.word = word;
  thread.where = where;
  thread.what = what;
  my_warp().runnable &= ~(1u << my_lane_index());
  const int next = next_thread();
  if (next != me) switch_to(next);
}
void wake(int thread) {
  Worker& m = worker();
  m.threads[thread].state = State::active;
  m.warps[thread / warp_size].runnable |= 1u << thread % warp_size;
}

void require_sm90(Word word, Where where) {
#if LAB_ARCH < 90
  fail(at(word, where) + " needs sm_90");
#else
  (void)word, (void)where;
#endif
}

void Barriers::clear(int n_warps, int registers_per_thread) {
  shared.clear();
  for (NamedBarrier& b : named) b = {};
  std::fill(registers, registers + n_warps, registers_per_thread);
  free_registers = 0;
  changed = 0;
}

// ---- mbarriers

void mbarrier_init(Mbarrier& b, int arrivals, Where where) {
  require_sm90(Word::mbarrier_init, where);
  Worker& m = worker();
  check_shared(&b, sizeof b, alignof(Mbarrier), Word::mbarrier_init, where);
  if (arrivals < 1 || arrivals > max_arrivals)
    fail(at(Word::mbarrier_init, where) + ": arrivals = " + std::to_string(arrivals) +
         ", allowed: 1 to " + std::to_string(max_arrivals));
  const auto byte = static_cast<u32>(reinterpret_cast<unsigned char*>(&b) - m.shared);
  for (const MBarrier& known : m.barriers.shared)
    if (known.byte == byte)
      fail(at(Word::mbarrier_init, where) + ": " + barrier_at(byte) +
           " has been initialised before");
  b.state = mark << mark_shift | m.barriers.shared.size();
  const auto number = static_cast<int>(m.barriers.shared.size());
  m.barriers.shared.push_back(
      {number, byte, arrivals, arrivals, 0, 0, static_cast<short>(m.thread), false, 0, {}});
}

void fence_mbarrier_init() {
  Worker& m = worker();
  for (MBarrier& b : m.barriers.shared)
    if (b.owner == m.thread && !b.fenced) {
      b.fenced = true;
      b.fence_epoch = m.block_epoch;
    }
}

MBarrier& find_barrier(const void* b, Word word, Where where) {
  require_sm90(word, where);
  Worker& m = worker();
  check_shared(b, sizeof(Mbarrier), alignof(Mbarrier), word, where);
  const u64 state = static_cast<const Mbarrier*>(b)->state;
  const auto byte = static_cast<u32>(static_cast<const unsigned char*>(b) - m.shared);
  const std::size_t index = state & ((1 << mark_shift) - 1);
  if (state >> mark_shift != mark || index >= m.barriers.shared.size() ||
      m.barriers.shared[index].byte != byte) [[unlikely]]
    fail(at(word, where) + ": " + barrier_at(byte) + " is not initialised, or was written over");
  MBarrier& known = m.barriers.shared[index];
  if (!known.fenced) [[unlikely]]
    fail(at(word, where) + ": no fence_mbarrier_init of thread " + std::to_string(known.owner) +
         " follows its mbarrier_init of " + barrier_at(byte));
  if (known.owner != m.thread && known.fence_epoch == m.block_epoch) [[unlikely]]
    fail(at(word, where) + ": no sync_block lies between the fence_mbarrier_init of thread " +
         std::to_string(known.owner) + " and this use of " + barrier_at(byte));
  return known;
}

void mbarrier_arrive(Mbarrier& shared, Word word, int bytes, Where where) {
  MBarrier& b = find_barrier(&shared, word, where);
  if (bytes < 0 || b.bytes + bytes > max_arrivals)
    fail(at(word, where) + ": bytes = " + std::to_string(bytes) + ", allowed: 0 to " +
         std::to_string(max_arrivals) + " in a phase");
  if (b.pending == 0)
    fail(at(word, where) + ": " + barrier_at(b.byte) + " takes " + std::to_string(b.count) +
         " arrivals per phase, and this is one more, while " + std::to_string(b.bytes) +
         " bytes are missing");
  know_at_arrival(worker(), b.number);
  --b.pending;
  b.bytes += bytes;
  if (b.pending == 0 && b.bytes < 0)
    fail(at(word, where) + ": " + std::to_string(-b.bytes) + " more bytes came to " +
         barrier_at(b.byte) + " than were announced");
  end_phase_if_complete(b);
}

// On the GPU the copies land later, and nobody but who waits at the barrier may rely on them. Here
// they land at once: the checks report a reader that does not wait.
void mbarrier_arrive_copied(Mbarrier& shared, Where where) {
  cp_async_land();
  mbarrier_arrive(shared, Word::mbarrier_arrive_copied, 0, where);
}

void bring_bytes(MBarrier& b, i64 bytes, u32 phase, int issuer, Word word, Where where) {
  const auto complain = [&](const std::string& what) {
    fail_block(this_block() + ", thread " + std::to_string(issuer) + ": " + at(word, where) +
               " brings " + std::to_string(bytes) + " bytes to " + barrier_at(b.byte) + what);
  };
  if (b.phase != phase) complain(", whose phase ended without them: they were not announced");
  b.bytes -= bytes;
  if (b.pending == 0 && b.bytes < 0)
    complain(", " + std::to_string(-b.bytes) + " more than were announced");
  end_phase_if_complete(b);
}

void mbarrier_wait(Mbarrier& shared, int parity, Where where) {
  MBarrier& b = find_barrier(&shared, Word::mbarrier_wait, where);
  if (parity != 0 && parity != 1)
    fail(at(Word::mbarrier_wait, where) + ": parity = " + std::to_string(parity) +
         ", allowed: 0, 1");
  const u32 phase = b.phase;
  if (static_cast<int>(phase & 1) != parity) {  // the phase before has ended
    know_after_wait(worker(), b.number);
    trace_wait(b, where);
    return;
  }
  b.waiting.push_back(static_cast<short>(sm->thread));
  sleep(Word::mbarrier_wait, where, b.number);
  know_after_wait(worker(), b.number);
  if (b.phase != phase + 1)
    fail(at(Word::mbarrier_wait, where) + ": the phase after the awaited one of " +
         barrier_at(b.byte) + " ended too before this thread could go on: it may wait forever");
  trace_wait(b, where);
}

std::string wait_in_words(const Worker& m, int t) {
  const Thread& thread = m.threads[t];
  switch (thread.word) {
    case Word::mbarrier_wait: {
      const MBarrier& b = m.barriers.shared[static_cast<std::size_t>(thread.what)];
      return " for parity " + std::to_string(b.phase & 1) + " of " + barrier_at(b.byte) + ": " +
             missing(b);
    }
    case Word::named_sync: {
      const NamedBarrier& b = m.barriers.named[thread.what];
      return " for barrier " + std::to_string(thread.what) + ": " + std::to_string(b.arrived) +
             " of " + std::to_string(b.threads) + " threads have come";
    }
    case Word::setmaxnreg_inc:
      return " for " + std::to_string(thread.what) + " registers: a warp's " +
             std::to_string(m.barriers.registers[t / warp_size]) + " and " +
             std::to_string(m.barriers.free_registers) + " that were given up are too few";
    default: return "";
  }
}

}  // namespace lab::host
