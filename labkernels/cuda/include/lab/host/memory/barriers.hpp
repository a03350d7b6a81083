// This file has a block's mbarriers, named barriers and registers, and the threads that wait.
#pragma once
#include <deque>
#include <string>
#include <vector>

#include "lab/host/machine/multiprocessor.hpp"

namespace lab::host {

struct MBarrier {
  int number;          // number within the block
  u32 byte;            // its byte of shared memory
  int count, pending;  // arrivals: of a whole phase; those that this phase still waits for
  i64 bytes;           // announced and not yet there; negative if a copy came before its notice
  u32 phase;
  short owner;  // who initialised it
  bool fenced;  // whether its owner has called the fence, and in which epoch:
  u32 fence_epoch;
  std::vector<short> waiting;
};

struct NamedBarrier {
  int threads = 0, arrived = 0;   // threads: set by the first warp that comes
  u32 generation = 0, warps = 0;  // one bit per warp that has come
  Where where;                    // where the first arrived
};

constexpr int n_named = 16;

struct Barriers {
  std::deque<MBarrier> shared;  // a deque, since threads that wait refer to its elements
  NamedBarrier named[n_named];
  int registers[max_warps];  // per thread of a warp; at launch, the most that it may have
  int free_registers;        // per thread: what warps have given up and no warp has taken
  u32 changed;               // one bit per warp that has chosen its number of registers
  void clear(int n_warps, int registers_per_thread);
};

struct Worker;

// Returns the registers per thread at launch, if a block has a multiprocessor to itself.
int registers_at_launch(int n_threads);

// Returns the barrier in shared memory that a word names. It must be initialised and known to the
// running thread.
MBarrier& find_barrier(const void* b, Word word, Where where);
// Counts bytes that a copy has brought, which the thread `issuer` asked for in a phase.
void bring_bytes(MBarrier& b, i64 bytes, u32 phase, int issuer, Word word, Where where);
// Says what a thread waits for in one of the words of lab/hopper/mbarrier.cuh.
std::string wait_in_words(const Worker& m, int thread);
// At the end of a block all warps of a warpgroup must hold equally many registers.
void check_registers(const Worker& m);
void require_sm90(Word word, Where where);
// Stops the running thread until wake(); another thread goes on.
void sleep(Word word, Where where, int what);
void wake(int thread);
std::string at(Word word, Where where);  // "mbarrier_wait at kernel.cuh:31"

}  // namespace lab::host
