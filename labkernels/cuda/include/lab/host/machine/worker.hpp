// This is a multiprocessor's whole state, which only the runtime uses.
#pragma once
#include <atomic>
#include <string>
#include <vector>

#include "lab/host/memory/barriers.hpp"
#include "lab/host/memory/tma.hpp"
#include "lab/host/arithmetic/wgmma.hpp"

namespace lab::host {

struct Copy {
  unsigned char* dst;
  const unsigned char* src;  // null: zeros
};

// These are the asynchronous copies of one thread in flight, oldest first.
struct CopyQueue {
  std::vector<Copy> copies;
  std::vector<std::size_t> group_ends;  // index in `copies`
};

// at_sync_block: all threads wait together. waits: a word of hopper/mbarrier.cuh says for what.
enum class State : unsigned char { active, at_sync_block, waits, finished };

struct Thread {
  State state;
  Word word;  // the word that it waits in
  Where where;
  int what;  // the number of the barrier, or of registers, that it waits for
  CopyQueue queue;
  StoreQueue stores;
  u32 async_fences;  // fences that it has passed
};

struct Guard;   // of a run with caught faults
struct Shadow;  // of shared memory, in checked builds

struct Worker : Multiprocessor {
  const Launch* launch = nullptr;
  Kernel kernel = nullptr;
  i64 index = 0;                                   // number of the block in the launch
  const std::atomic<i64>* failed_block = nullptr;  // the launch's first that failed
  int n_threads = 0, n_warps = 0;
  int n_arrived = 0, n_alive = 0;  // threads at sync_block; threads that have not finished
  u32 block_epoch = 0;             // counts sync_block and blocks: orders the memory of all threads
  Thread threads[max_threads];
  WgmmaQueue wgmma[max_warps];
  Barriers barriers;
  std::vector<BoxLoad> loads;  // oldest first
  u64 dice = 0;                // random numbers for the order in which the loads land
  u64 steps = 0;               // of all threads of the block, if the kernel counts them

  std::string error;  // empty: none

  char* arena = nullptr;  // guard, shared memory, guard
  char* stacks = nullptr;
  int n_stacks = 0;  // stacks open for use
  Shadow* shadow = nullptr;
  Guard* guard = nullptr;

  Worker();
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  void prepare(const Launch& launch, Kernel kernel, const std::atomic<i64>& failed_block);
  void begin_block(i64 new_index);
};

void start_thread(Worker& m, int thread);  // it will begin in the kernel once it is switched to
// Ends the running thread, in which the kernel has returned. Returns the fiber that continues.
LAB_EXPORT int end_thread();

inline Worker& worker() { return *static_cast<Worker*>(sm); }

}  // namespace lab::host
