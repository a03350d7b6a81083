// A block's mbarriers, named barriers and registers, and the threads that wait for them.
#pragma once
#include <deque>
#include <string>
#include <vector>

#include "lab/host/machine/multiprocessor.hpp"

namespace lab::host {

struct MBarrier {
  int number;            // number within the block
  u32 byte;              // its byte of shared memory
  int count, pending;    // arrivals: of every phase, of this one still to come
  i64 bytes;             // announced and not there; below zero if copies came before their notice
  u32 phase;
  short owner;           // who initialised it
  bool fenced;           // by its owner, in this epoch of the block:
  u32 fence_epoch;
  std::vector<short> waiting;
};

struct NamedBarrier {
  int threads = 0, arrived = 0;  // threads: 0 while nobody has come
  u32 generation = 0, warps = 0; // one bit per warp that has come
  Where where;                   // where the first arrived
};

constexpr int n_named = 16;

struct Barriers {
  std::deque<MBarrier> shared;  // they stay where they are: threads that wait refer to them
  NamedBarrier named[n_named];
  int registers[max_warps];  // a thread; at launch, the most that it may have
  int free_registers;        // given up, a warp's
  u32 changed;               // one bit per warp that chose its own
  void clear(int n_warps, int registers_a_thread);
};

struct Worker;

// What a kernel that has a multiprocessor to itself is launched with.
int registers_at_launch(int n_threads);

// The barrier in shared memory that a word names: initialised, and known to the running thread.
MBarrier& find_barrier(const void* b, Word word, Where where);
// A copy has brought bytes, which the thread `issuer` asked for in a phase.
void bring_bytes(MBarrier& b, i64 bytes, u32 phase, int issuer, Word word, Where where);
// What a thread waits for in one of the words of lab/hopper/mbarrier.cuh.
std::string wait_in_words(const Worker& m, int thread);
void check_registers(const Worker& m);  // the block ends: warpgroups hold as many throughout
void require_sm90(Word word, Where where);
// The running thread stops until wake(); another goes on.
void sleep(Word word, Where where, int what);
void wake(int thread);
std::string at(Word word, Where where);  // "mbarrier_wait at kernel.cuh:31"

}  // namespace lab::host
