#include "lab/host/system/memory_map.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace lab::host {
namespace {

std::size_t round_up(std::size_t n, std::size_t unit) { return (n + unit - 1) / unit * unit; }
std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}
std::size_t arena_bytes() { return round_up(max_shared_bytes, page_bytes()); }
std::size_t stack_stride() { return page_bytes() + round_up(stack_bytes, page_bytes()); }

char* reserve(std::size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  return static_cast<char*>(p);
}
void open_for_use(char* p, std::size_t bytes) {
  if (mprotect(p, bytes, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
}
// Returns -1 if the address is not in [start, start + bytes).
i64 offset_in(const char* start, std::size_t bytes, const void* address) {
  const u64 offset = reinterpret_cast<u64>(address) - reinterpret_cast<u64>(start);
  return offset < bytes ? static_cast<i64>(offset) : -1;
}

}  // namespace

void map_memory(Worker& m) {
  m.arena = reserve(arena_bytes() + 2 * arena_guard_bytes);
  open_for_use(m.arena + arena_guard_bytes, arena_bytes());
  m.stacks = reserve(max_threads * stack_stride());
}

void unmap_memory(Worker& m) {
  munmap(m.arena, arena_bytes() + 2 * arena_guard_bytes);
  munmap(m.stacks, max_threads * stack_stride());
}

char* stack_bottom(const Worker& m, int thread) {
  return m.stacks + static_cast<std::size_t>(thread) * stack_stride() + page_bytes();
}

void open_stacks(Worker& m, int n_threads) {
  for (; m.n_stacks < n_threads; ++m.n_stacks)
    open_for_use(stack_bottom(m, m.n_stacks), stack_stride() - page_bytes());
}

unsigned char* shared_base(const Worker& m, std::size_t shared_bytes) {
  char* end = m.arena + arena_guard_bytes + arena_bytes();
  return reinterpret_cast<unsigned char*>(end - round_up(shared_bytes, shared_alignment));
}

bool in_arena(const Worker& m, const void* address) {
  return offset_in(m.arena, arena_bytes() + 2 * arena_guard_bytes, address) >= 0;
}

int stack_owner(const Worker& m, const void* address) {
  const i64 offset = offset_in(m.stacks, max_threads * stack_stride(), address);
  return offset < 0 ? -1 : static_cast<int>(offset / static_cast<i64>(stack_stride()));
}

}  // namespace lab::host
