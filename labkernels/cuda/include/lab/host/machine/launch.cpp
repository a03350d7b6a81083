// In a launch, host threads take blocks, and each host thread runs one block at a time.
#include <algorithm>
#include <atomic>
#include <cfenv>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "lab/host/machine/rendezvous.hpp"
#include "lab/host/machine/report.hpp"
#include "lab/host/races/shadow.hpp"
#include "lab/host/system/fault.hpp"
#include "lab/host/system/memory_map.hpp"

namespace lab::host {

namespace {

void run_thread() {
  Worker& m = worker();
  m.kernel(m.launch->params);
  switch_to(end_thread());
  __builtin_unreachable();
}

// Fibers step through the same code in turn: if their stacks were equally aligned, all would use
// the same few sets of the cache.
char* staggered_top(const Worker& m, int thread) {
  return stack_bottom(m, thread) + stack_bytes - (192 * thread) % 4096;
}

// The pool holds the idle workers, which keep their stacks.
class Pool {
 public:
  std::unique_ptr<Worker> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<Worker>();
    auto m = std::move(free_.back());
    free_.pop_back();
    return m;
  }
  void give_back(std::unique_ptr<Worker> m) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(m));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Worker>> free_;
};

// The pool is never destroyed: the library may be unloaded before its last launch returns.
Pool& pool() {
  static Pool* the_pool = new Pool;
  return *the_pool;
}

struct Work {
  const Launch& launch;
  Kernel kernel;
  i64 n_blocks;
  std::atomic<i64> next{0};
  std::mutex mutex;
  std::atomic<i64> failed_block;  // the first block that failed; n_blocks if none has
  std::string error;
};

// Blocks start in order, and every earlier block finishes before an error is reported. The first
// block that fails is therefore the same for any number of host threads.
void run_blocks(Work& work, Worker& m) {
  const SignalStack signal_stack;
  std::fenv_t caller;
  std::fegetenv(&caller);
  std::fesetenv(FE_DFL_ENV);  // a library in this process may flush subnormals; a GPU does not
  Multiprocessor* const outer = sm;
  sm = &m;
  for (;;) {
    const i64 block = work.next++;
    if (block >= work.failed_block) break;
    m.begin_block(block);
    run_guarded(m);
    if (m.error.empty()) continue;
    const std::lock_guard lock(work.mutex);
    if (block < work.failed_block) {
      work.failed_block = block;
      work.error = m.error;
    }
  }
  sm = outer;
  std::fesetenv(&caller);
}

}  // namespace

void start_thread(Worker& m, int thread) {
  start_fiber(m.fibers[thread], stack_bottom(m, thread), staggered_top(m, thread), run_thread);
}

void leave_block() {
  switch_to(scheduler);
  __builtin_unreachable();
}

// Runs a launch. Returns 0 on success, 2 after SIGINT, and else 1 with the error, cut to
// `capacity`.
extern "C" LAB_EXPORT int lab_launch(const Launch* launch, Kernel kernel, char* error,
                                     std::size_t capacity) {
  const i64 n_blocks = static_cast<i64>(launch->grid[0]) * launch->grid[1] * launch->grid[2];
  Work work{*launch, kernel, n_blocks, {}, {}, n_blocks, {}};
  const FaultHandlers handlers;
  const InterruptHandler interrupt(launch->interruptible != 0 ? &work.failed_block : nullptr);
  try {
    const auto n = static_cast<std::size_t>(
        std::clamp<i64>(launch->host_threads, 1, std::max<i64>(n_blocks, 1)));
    std::vector<std::unique_ptr<Worker>> used;
    while (used.size() < n) {
      used.push_back(pool().take());
      used.back()->prepare(*launch, kernel, work.failed_block);
    }
    std::vector<std::thread> others;
    others.reserve(n);
    try {
      for (std::size_t i = 1; i < n; ++i)
        others.emplace_back(run_blocks, std::ref(work), std::ref(*used[i]));
    } catch (const std::system_error&) {  // the threads that did start take all blocks
    }
    run_blocks(work, *used[0]);
    for (std::thread& other : others) other.join();
    for (auto& m : used) pool().give_back(std::move(m));
  } catch (const std::bad_alloc&) {
    work.error = "not enough memory for the stacks of the launch";
  }
  if (work.failed_block == all_blocks) return 2;
  if (work.error.empty()) return 0;
  const std::size_t length = std::min(work.error.size(), capacity - 1);
  std::memcpy(error, work.error.data(), length);
  error[length] = '\0';
  return 1;
}

}  // namespace lab::host
