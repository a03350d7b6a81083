// A multiprocessor's stacks and shared memory lie between pages that must not be accessed.
#pragma once
#include "lab/host/machine/worker.hpp"

namespace lab::host {

constexpr std::size_t stack_bytes = 64 * 1024;
// An index up to this many bytes beyond shared memory is still reported as out of bounds.
constexpr std::size_t arena_guard_bytes = 16 << 20;
constexpr std::size_t shared_alignment = 1024;

void map_memory(Worker& m);
void unmap_memory(Worker& m);
void open_stacks(Worker& m, int n_threads);  // makes at least n_threads usable
char* stack_bottom(const Worker& m, int thread);

// The end of shared memory, rounded up to its alignment, is where the upper guard begins.
unsigned char* shared_base(const Worker& m, std::size_t shared_bytes);

bool in_arena(const Worker& m, const void* address);    // or in a guard beside it
int stack_owner(const Worker& m, const void* address);  // also by its guard; -1: none

}  // namespace lab::host
