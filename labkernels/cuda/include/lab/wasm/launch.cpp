// A launch in WebAssembly has one host thread, which resumes the coroutine of one CUDA thread after
// the other. A block that fails leaves by an exception of the host language, which ends its module
// too: objects in the module's memory are not destroyed.
#include <atomic>
#include <cstdlib>
#include <limits>

#include "lab/host/machine/rendezvous.hpp"
#include "lab/host/machine/report.hpp"
#include "lab/host/system/memory_map.hpp"

#define LAB_IMPORT(name) __attribute__((import_module("lab"), import_name(#name)))
#define LAB_RUNS(name) __attribute__((export_name(#name)))

extern "C" {
[[noreturn]] LAB_IMPORT(fail) void lab_fail(const char* text, std::size_t bytes);
void* lab_begin(const void* params);  // the coroutine of a CUDA thread, which has not begun yet
void lab_resume(void* frame);
void __wasm_call_ctors();
}

namespace lab::host {
namespace {

constexpr std::size_t frame_alignment = 64;
char* frames = nullptr;
int starting = 0;

Worker* the_worker = nullptr;
const std::atomic<i64> no_block = std::numeric_limits<i64>::max();  // no earlier block has failed

}  // namespace

void start_thread(Worker& m, int thread) {
  starting = thread;
  m.fibers[thread] = lab_begin(m.launch->params);
}

void leave_block() {
  lab_fail(worker().error.data(), worker().error.size());
  __builtin_unreachable();
}

// Returns the place where a coroutine keeps what it needs once it is resumed.
extern "C" void* lab_frame(std::size_t bytes) {
  const std::size_t stride = (bytes + frame_alignment - 1) / frame_alignment * frame_alignment;
  if (frames == nullptr)
    frames = static_cast<char*>(std::aligned_alloc(frame_alignment, stride * max_threads));
  return frames + stride * static_cast<std::size_t>(starting);
}

extern "C" void lab_end_thread() { sm->thread = end_thread(); }

extern "C" LAB_RUNS(lab_prepare) void lab_prepare(const Launch* launch) {
  if (the_worker == nullptr) the_worker = new Worker;
  sm = the_worker;
  the_worker->prepare(*launch, nullptr, no_block);
}

extern "C" LAB_RUNS(lab_run_block) void lab_run_block(int index) {
  Worker& m = *the_worker;
  m.begin_block(index);
  m.thread = 0;
  while (m.thread != scheduler) lab_resume(m.fibers[m.thread]);
}

extern "C" LAB_RUNS(_initialize) void lab_initialize() { __wasm_call_ctors(); }

extern "C" LAB_RUNS(lab_malloc) void* lab_malloc(std::size_t bytes) {
  return std::aligned_alloc(256, (bytes + 255) / 256 * 256);  // as torch aligns
}

}  // namespace lab::host
