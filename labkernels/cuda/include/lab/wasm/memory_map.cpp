// WebAssembly has no pages to guard: the guards are plain memory, and the checks look at accesses.
#include "lab/host/system/memory_map.hpp"

#include <cstdlib>

namespace lab::host {
namespace {

constexpr std::size_t guard_bytes = 64 * 1024, arena_bytes = max_shared_bytes + 2 * guard_bytes;

}  // namespace

void map_memory(Worker& m) {
  m.arena = static_cast<char*>(std::aligned_alloc(shared_alignment, arena_bytes));
}
void unmap_memory(Worker& m) { std::free(m.arena); }
void open_stacks(Worker&, int) {}

unsigned char* shared_base(const Worker& m, std::size_t shared_bytes) {
  char* end = m.arena + guard_bytes + max_shared_bytes;
  return reinterpret_cast<unsigned char*>(end - (shared_bytes + shared_alignment - 1) /
                                                    shared_alignment * shared_alignment);
}

bool in_arena(const Worker& m, const void* p) { return p >= m.arena && p < m.arena + arena_bytes; }
int stack_owner(const Worker&, const void*) { return -1; }

}  // namespace lab::host
