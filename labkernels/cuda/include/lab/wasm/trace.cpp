// A run tells the page of each word in which threads meet, and of loads; the page reads the memory.
#ifdef LAB_TRACE
#include "lab/host/machine/trace.hpp"

#include <cstring>

#include "lab/host/races/shadow.hpp"

#define LAB_RUNS(name) __attribute__((export_name(#name)))

extern "C" __attribute__((import_module("lab"), import_name("trace"))) void lab_traced(
    const char* word, std::size_t word_bytes, const char* file, std::size_t file_bytes, int line,
    int thread);

namespace lab::host {
namespace {

// This is the softmax of a thread's rows, as the kernel has announced it. labkernels.widgets.steps
// says which numbers belong to which row.
struct Softmax {
  float m[2], l[2], o[8];
  int updates;
};
Softmax softmaxes[max_threads];
u32 seen[max_shared_bytes / 16];
// An mbarrier, as a stepper shows it.
struct Standing {
  u32 byte, phase;
  int pending, count, bytes;
};
Standing standings[max_shared_bytes / sizeof(u64)];

}  // namespace

void trace(Word word, Where where) {
  const char *name = name_of(word), *file = where.file_name();
  lab_traced(name, std::strlen(name), file, std::strlen(file), static_cast<int>(where.line()),
             sm->thread);
}

// The kernel of a page calls this; labkernels.widgets.steps inserts the call.
extern "C" void lab_softmax(const float* m, const float* l, const float* o) {
  Softmax& mine = softmaxes[sm->thread];
  std::memcpy(mine.m, m, sizeof mine.m);
  std::memcpy(mine.l, l, sizeof mine.l);
  std::memcpy(mine.o, o, sizeof mine.o);
  ++mine.updates;
}
extern "C" LAB_RUNS(lab_softmaxes) const Softmax* lab_softmaxes() { return softmaxes; }

extern "C" LAB_RUNS(lab_shared) const unsigned char* lab_shared() { return sm->shared; }
extern "C" LAB_RUNS(lab_seen) const u32* lab_seen() {
  for (std::size_t row = 0; row < sm->shared_bytes / 16; ++row) seen[row] = seen_of(worker(), row);
  return seen;
}
// Returns the block's mbarriers, in the order in which they were initialised.
extern "C" LAB_RUNS(lab_barriers) const Standing* lab_barriers() {
  Standing* to = standings;
  for (const MBarrier& b : worker().barriers.shared)
    *to++ = {b.byte, b.phase, b.pending, b.count, static_cast<int>(b.bytes)};
  return standings;
}
extern "C" LAB_RUNS(lab_barrier_count) int lab_barrier_count() {
  return static_cast<int>(worker().barriers.shared.size());
}
// Returns the number of the mbarrier for which a thread has waited last.
extern "C" LAB_RUNS(lab_awaited) int lab_awaited(int thread) {
  return worker().threads[thread].what;
}
extern "C" LAB_RUNS(lab_lanes) const Lane* lab_lanes(int warp) { return sm->warps[warp].lane; }

}  // namespace lab::host
#endif
