// A host thread stands for a multiprocessor of the GPU, and runs one block at a time. Every compile
// of a kernel reads this file, so it includes little.
#pragma once
#include <cstddef>
#include <cstdint>
#include <source_location>

#include "lab/host/system/fiber.hpp"

// With this TLS model one load finds the host thread's state. Mach-O does not have the model.
#ifdef __ELF__
#define LAB_TLS [[gnu::tls_model("initial-exec")]]
#else
#define LAB_TLS
#endif
#define LAB_EXPORT [[gnu::visibility("default")]]

namespace lab {

using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i64 = long long;  // as on the GPU: int64_t is another type on Linux

namespace host {

using Where = std::source_location;  // one pointer

constexpr int warp_size = 32, warps_of_group = 4;
constexpr int max_threads = 1024;
constexpr int max_warps = max_threads / warp_size;
constexpr int scheduler = max_threads;  // the fiber of the worker itself, not a CUDA thread
constexpr unsigned char poison = 0xff;  // NaN in any format
constexpr std::size_t max_shared_bytes = 227 * 1024;

// The words of the vocabulary, as errors and a stepper name them.
// clang-format off
#define LAB_WORDS(word) \
  word(sync_block) word(sync_warp) word(shfl) word(warp_any) word(warp_uniform) word(ldmatrix_x4) \
  word(ldmatrix_x4_trans) word(stmatrix_x4) word(movmatrix_trans) word(mma_f16) word(mma_bf16) \
  word(wgmma) word(wgmma_fence) word(wgmma_commit) word(wgmma_wait) word(load_constant) \
  word(load_global) word(store_global) word(atomic_add_global) word(add_global) word(cp_async_16) \
  word(mbarrier_init) word(mbarrier_arrive) word(mbarrier_arrive_expect_tx) \
  word(mbarrier_arrive_copied) word(mbarrier_wait) word(named_sync) word(named_arrive) \
  word(setmaxnreg_inc) word(setmaxnreg_dec) word(tma_load) word(bulk_load) word(bulk_add)
// clang-format on
#define LAB_NAME(word) word,
enum class Word : unsigned char { none, LAB_WORDS(LAB_NAME) };
#undef LAB_NAME
const char* name_of(Word word);

// A lane brings this to a warp-wide word.
struct Lane {
  const void* in;
  void* out;
  u64 value;
  int source;
};

struct Warp {
  u32 present;  // one bit per lane that the block has
  u32 runnable;
  int n_lanes, arrived;
  Word word;  // the word that the arrived lanes wait in
  Where where;
  u32 meet_epoch = 0;  // counts warp-wide words, over all blocks and launches
  Lane lane[warp_size];
};

// This is a tensor of the launch. cuda/host/build.py fills it in, with this layout.
struct GlobalRange {
  const char* name;
  u64 address, n_bytes;
  int writable;
};

// cuda/host/build.py fills this in, with this layout.
struct Launch {
  int grid[3];
  int threads;
  u64 smem_bytes;
  const void* params;
  const GlobalRange* ranges;
  int n_ranges;
  int host_threads;
  int interruptible;  // by SIGINT, which only a process's main thread handles
};
using Kernel = void (*)(const void* params);

// This part of a multiprocessor's state is what the words need; worker.hpp has the rest.
struct Multiprocessor {
  int thread = scheduler;  // the running fiber
  int block[3] = {};
  unsigned char* shared = nullptr;
  std::size_t shared_bytes = 0;
  const GlobalRange* last_range[16] = {};  // by source line: most lines access one tensor
  Warp warps[max_warps];
  Fiber fibers[max_threads + 1];
};

LAB_EXPORT LAB_TLS extern constinit thread_local Multiprocessor* sm;

}  // namespace host
}  // namespace lab
