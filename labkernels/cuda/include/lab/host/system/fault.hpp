// A fault inside a kernel (a guard page, a division by zero) becomes an error of its block.
#pragma once
#include <signal.h>

#include <atomic>
#include <memory>

#include "lab/host/machine/worker.hpp"

namespace lab::host {

void run_guarded(Worker& m);  // runs the block that m has begun, to its end or first error

// While an object of this type lives, faults of kernels are caught; other faults go to the previous
// handler.
class FaultHandlers {
 public:
  FaultHandlers();
  ~FaultHandlers();
  FaultHandlers(const FaultHandlers&) = delete;
  FaultHandlers& operator=(const FaultHandlers&) = delete;
};

// If `failed_block` has this value, which is before the first block, no block continues.
constexpr long long all_blocks = -1;

// While an object of this type lives, SIGINT ends the blocks of a launch and then goes to the
// previous handler; without `failed_block` nothing changes. Only one exists at a time, for a launch
// by the main thread.
class InterruptHandler {
 public:
  explicit InterruptHandler(std::atomic<long long>* failed_block);
  ~InterruptHandler();
  InterruptHandler(const InterruptHandler&) = delete;
  InterruptHandler& operator=(const InterruptHandler&) = delete;

 private:
  bool installed_ = false;
};

// The handler has this stack, because it cannot run on a stack that overflowed. Each host thread
// has one.
class SignalStack {
 public:
  SignalStack();
  ~SignalStack();
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  std::unique_ptr<char[]> memory_;
  stack_t before_;
};

}  // namespace lab::host
