// This file says which accesses of other actors a thread may rely on, because a barrier has made
// them known (LAB_CHECKS). Actors are the threads, the words and the wgmmas of a warp, and the
// copies of an mbarrier; an actor's accesses carry stamps that only grow. A thread knows the
// accesses of each actor that are stamped below a limit; a barrier passes the limits of the threads
// that arrive to the threads that wait.
#pragma once
#include <vector>

#include "lab/host/machine/multiprocessor.hpp"

namespace lab::host {

struct Worker;

#ifdef LAB_CHECKS

using Limits = std::vector<u32>;  // one per actor

constexpr int max_checked_barriers = 64;

struct Order {
  u32 now = 1;  // counts what makes accesses known; the stamp of a thread's accesses
  u32 block_began = 0;
  int n_threads = 0, n_warps = 0, n_barriers = 0, n_actors = 0;
  Limits known;     // [thread][actor]
  Limits everyone;  // [actor]: what every thread knows since the last sync_block
  Limits fenced;    // [thread][thread]: what the first knew of the second at its last fence
  std::vector<Limits> fences;  // [thread][fence]: the stamps of its fences
  Limits gathered[max_checked_barriers + 16], ended[max_checked_barriers + 16];
  u32 wgmma_issued[max_warps] = {}, wgmma_done[max_warps] = {};

  int words_of(int warp) const { return n_threads + warp; }
  int wgmmas_of(int warp) const { return n_threads + n_warps + warp; }
  int copies_of(int barrier) const { return n_threads + 2 * n_warps + barrier; }
  u32* of(int thread) { return known.data() + static_cast<std::ptrdiff_t>(thread) * n_actors; }
  bool knows(const u32* limits, int actor, u32 stamp) const {
    return stamp < limits[actor] || stamp < everyone[static_cast<std::size_t>(actor)];
  }
  bool passed_fence(int thread, u32 n) const {
    return n < fences[static_cast<std::size_t>(thread)].size();
  }
  // Returns whether a thread has passed its fence number n, and the reader knows of it.
  bool knows_fence(int reader, int thread, u32 n) const {
    if (!passed_fence(thread, n)) return false;
    const u32* limits = known.data() + static_cast<std::ptrdiff_t>(reader) * n_actors;
    return reader == thread || knows(limits, thread, fences[static_cast<std::size_t>(thread)][n]);
  }
  const char* missing_fence(int thread, u32 n) const {
    return passed_fence(thread, n)
               ? "no fence_async_shared of that thread lies between, since it comes after the "
                 "barrier that lets the reader go on"
               : "no fence_async_shared of that thread lies between";
  }
};

void begin_launch(Order& order, int n_threads, int n_warps);
void begin_block(Worker& m);
void know_at_sync_block(Worker& m);
void know_at_sync_warp(Worker& m);                    // of the running thread's warp
void know_at_arrival(Worker& m, int barrier);         // of the running thread
void know_at_end(Worker& m, int barrier, u32 phase);  // the phase ends
void know_after_wait(Worker& m, int barrier);
void know_at_named_arrival(Worker& m, int id);  // of the running thread's warp
void know_at_named_end(Worker& m, int id);
void know_after_named_wait(Worker& m, int id);
void know_at_fence(Worker& m);  // fence_async_shared of the running thread

#else
inline void know_at_sync_block(Worker&) {}
inline void know_at_sync_warp(Worker&) {}
inline void know_at_arrival(Worker&, int) {}
inline void know_at_end(Worker&, int, u32) {}
inline void know_after_wait(Worker&, int) {}
inline void know_at_named_arrival(Worker&, int) {}
inline void know_at_named_end(Worker&, int) {}
inline void know_after_named_wait(Worker&, int) {}
inline void know_at_fence(Worker&) {}
#endif

}  // namespace lab::host
