// This file begins a block and its threads, and ends a thread that has run the kernel.
#include <algorithm>
#include <cstring>
#include <string>

#include "lab/host/machine/rendezvous.hpp"
#include "lab/host/machine/report.hpp"
#include "lab/host/races/shadow.hpp"
#include "lab/host/system/memory_map.hpp"

namespace lab::host {

constinit thread_local Multiprocessor* sm = nullptr;

namespace {

constexpr GlobalRange no_range{"", 0, 0, 0};

}  // namespace

int end_thread() {
  Worker& m = worker();
  Thread& thread = m.threads[m.thread];
  if (!thread.queue.copies.empty())
    fail("returns with " + std::to_string(thread.queue.copies.size()) +
         " cp_async_16 in flight: cp_async_commit and cp_async_wait<0> are missing");
  if (!m.wgmma[m.thread / warp_size].operands.empty())
    fail("returns with a wgmma in flight: wgmma_commit and wgmma_wait<0> are missing");
  end_stores(m, m.thread);
  thread.state = State::finished;
  Warp& warp = my_warp();
  warp.runnable &= ~(1u << my_lane_index());
  if (--m.n_alive == 0) {
    check_warpgroups(m);
    check_registers(m);
    check_loads(m);
    return scheduler;
  }
  return next_thread();
}

Worker::Worker() { map_memory(*this); }
Worker::~Worker() {
  unmap_memory(*this);
  free_shadow(*this);
}

void Worker::prepare(const Launch& new_launch, Kernel new_kernel,
                     const std::atomic<i64>& new_failed_block) {
  launch = &new_launch;
  kernel = new_kernel;
  failed_block = &new_failed_block;
  n_threads = launch->threads;
  n_warps = (n_threads + warp_size - 1) / warp_size;
  shared_bytes = launch->smem_bytes;
  shared = shared_base(*this, shared_bytes);
  std::fill(std::begin(last_range), std::end(last_range), &no_range);
  open_stacks(*this, n_threads);
  prepare_shadow(*this);
}

// Sets the state before a block: no thread has begun, shared memory holds NaN, and nothing remains
// of the block before.
void Worker::begin_block(i64 new_index) {
  index = new_index;
  const i64 gx = launch->grid[0], gy = launch->grid[1];
  block[0] = static_cast<int>(index % gx);
  block[1] = static_cast<int>(index / gx % gy);
  block[2] = static_cast<int>(index / gx / gy);
  dice = static_cast<u64>(index);
  steps = 0;
  const auto* end = shared_base(*this, 0);
  std::memset(shared, 0xff, static_cast<std::size_t>(end - shared));
  error.clear();
  n_arrived = 0;
  n_alive = n_threads;
  ++block_epoch;
  begin_shadow(*this);
  barriers.clear(n_warps, registers_at_launch(n_threads));
  loads.clear();
  for (int w = 0; w < n_warps; ++w) {
    Warp& warp = warps[w];
    warp.n_lanes = std::min(warp_size, n_threads - w * warp_size);
    warp.present = warp.runnable = ~0u >> (warp_size - warp.n_lanes);
    warp.arrived = 0;
    warp.word = Word::none;
    wgmma[w].clear();
  }
  for (int t = 0; t < n_threads; ++t) {
    threads[t].state = State::active;
    threads[t].async_fences = 0;
    CopyQueue& queue = threads[t].queue;
    queue.copies.clear();
    queue.group_ends.clear();
    threads[t].stores.clear();
    start_thread(*this, t);
  }
}

}  // namespace lab::host
