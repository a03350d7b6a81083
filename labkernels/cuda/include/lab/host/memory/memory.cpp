#include "lab/host/memory/memory.hpp"

#include <cmath>
#include <cstring>
#include <span>
#include <string>

#include "lab/host/arithmetic/numbers.hpp"
#include "lab/host/machine/report.hpp"
#include "lab/host/races/shadow.hpp"
#include "lab/host/system/memory_map.hpp"

namespace lab::host {
namespace {

u64 distance(const GlobalRange& range, u64 address) {
  if (address < range.address) return range.address - address;
  const u64 offset = address - range.address;
  return offset < range.n_bytes ? 0 : offset - range.n_bytes;
}

std::string bytes_of(std::size_t bytes, Word word, Where where) {
  return std::string(name_of(word)) + " of " + std::to_string(bytes) + " bytes at " + place(where);
}

[[noreturn]] void report_global(u64 address, std::size_t bytes, Access access, Word word,
                                Where where) {
  const Launch& launch = *worker().launch;
  const std::string what = bytes_of(bytes, word, where);
  const GlobalRange* nearest = nullptr;
  for (int i = 0; i < launch.n_ranges; ++i) {
    const GlobalRange& r = launch.ranges[i];
    if (allowed(r, address, bytes, Access::read) && access == Access::write)
      fail(what + " writes to the read-only " + r.name + ", byte " +
           std::to_string(address - r.address));
    if (allowed(r, address, bytes, Access::read))
      fail(what + " reads " + r.name + ", which this launch may write: use load_global");
    if (nearest == nullptr || distance(r, address) < distance(*nearest, address)) nearest = &r;
  }
  if (nearest == nullptr || address < 4096)
    fail(what + " is out of bounds: address " +
         hexadecimal(reinterpret_cast<const void*>(address)) + " is in no tensor");
  fail(what + " is out of bounds: byte " +
       std::to_string(static_cast<i64>(address - nearest->address)) + " of " + nearest->name +
       ", which has " + std::to_string(nearest->n_bytes) + " bytes");
}

[[gnu::noinline, gnu::cold]] void report_shared(const void* p, std::size_t bytes, Word word,
                                                Where where) {
  fail(bytes_of(bytes, word, where) + ": shared memory out of bounds: byte " +
       std::to_string(static_cast<const unsigned char*>(p) - sm->shared) + " of " +
       std::to_string(sm->shared_bytes));
}

bool in_shared(const void* p, std::size_t bytes) {
  const auto offset = static_cast<std::size_t>(static_cast<const unsigned char*>(p) - sm->shared);
  return offset < sm->shared_bytes && sm->shared_bytes - offset >= bytes;
}

}  // namespace

[[gnu::noinline]] const GlobalRange* find_range(const void* p, std::size_t bytes, Access access,
                                                Word word, Where where) {
  const Launch& launch = *worker().launch;
  const auto address = reinterpret_cast<u64>(p);
  for (int i = 0; i < launch.n_ranges; ++i)
    if (allowed(launch.ranges[i], address, bytes, access)) return &launch.ranges[i];
  report_global(address, bytes, access, word, where);
}

[[gnu::noinline, gnu::cold]] void report_misaligned(const void* p, std::size_t alignment, Word word,
                                                    Where where) {
  const bool shared = in_arena(worker(), p);
  fail(std::string(name_of(word)) + " at " + place(where) + ": the " +
       (shared ? "shared" : "global") + " address " + hexadecimal(p) + " is not a multiple of " +
       std::to_string(alignment) + " bytes");
}

int atomic_add_global(int* p, int value, Where where) {
  leave_if_pointless();
  check_global(p, sizeof(int), alignof(int), Access::write, Word::atomic_add_global, where);
  return __atomic_fetch_add(p, value, __ATOMIC_SEQ_CST);
}
// Adds as red.add.f32 on global memory does: subnormal inputs and sums are zeros of their sign.
void add_global(float* p, const float (&x)[4], Where where) {
  const auto flushed = [](float value) {
    return std::abs(value) < 0x1p-126f ? std::copysign(0.f, value) : value;
  };
  check_global(p, 16, 16, Access::write, Word::add_global, where);
  for (int i = 0; i < 4; ++i) {
    u32* const bits = reinterpret_cast<u32*>(p + i);
    u32 before = __atomic_load_n(bits, __ATOMIC_RELAXED), after;
    do {
      after = as_bits(flushed(flushed(as_float(before)) + flushed(x[i])));
    } while (!__atomic_compare_exchange_n(bits, &before, after, true, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
  }
}
// The fence is real, because blocks run on several host threads at once.
void fence_global() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

void check_shared(const void* p, std::size_t bytes, std::size_t alignment, Word word, Where where) {
  if (reinterpret_cast<u64>(p) % alignment != 0) report_misaligned(p, alignment, word, where);
  if (!in_shared(p, bytes)) report_shared(p, bytes, word, where);
}

void check_shared_row(const void* row, Word word, Where where) {
  check_shared(row, 16, 16, word, where);
  touch_row(row, where);
}

void cp_async_16(void* dst, const void* src, bool valid, Where where) {
  check_shared(dst, 16, 16, Word::cp_async_16, where);
  if (valid) check_global(src, 16, 16, Access::read, Word::cp_async_16, where);
  touch_issued(dst, where);
  std::memset(dst, 0xff, 16);  // until the wait, a reader sees NaN
  worker().threads[sm->thread].queue.copies.push_back(
      {static_cast<unsigned char*>(dst), valid ? static_cast<const unsigned char*>(src) : nullptr});
}

void cp_async_commit() {
  CopyQueue& queue = worker().threads[sm->thread].queue;
  queue.group_ends.push_back(queue.copies.size());
}

// Lands the oldest groups of the queue.
static void land(CopyQueue& queue, std::size_t n_groups) {
  if (n_groups == 0) return;
  const auto n = static_cast<std::ptrdiff_t>(queue.group_ends[n_groups - 1]);
  for (const Copy& copy : std::span(queue.copies).first(queue.group_ends[n_groups - 1])) {
    touch_landed(copy.dst);
    if (copy.src != nullptr) std::memcpy(copy.dst, copy.src, 16);
    else std::memset(copy.dst, 0, 16);
  }
  queue.copies.erase(queue.copies.begin(), queue.copies.begin() + n);
  queue.group_ends.erase(queue.group_ends.begin(),
                         queue.group_ends.begin() + static_cast<std::ptrdiff_t>(n_groups));
  for (std::size_t& end : queue.group_ends) end -= static_cast<std::size_t>(n);
}

void cp_async_wait(std::size_t n_in_flight) {
  leave_if_pointless();
  CopyQueue& queue = worker().threads[sm->thread].queue;
  if (queue.group_ends.size() > n_in_flight) land(queue, queue.group_ends.size() - n_in_flight);
}

void cp_async_land() {
  cp_async_commit();
  cp_async_wait(0);
}

}  // namespace lab::host
