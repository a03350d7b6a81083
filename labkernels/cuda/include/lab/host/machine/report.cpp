#include "lab/host/machine/report.hpp"

#include <charconv>
#include <iterator>
#include <utility>

#include "lab/host/machine/rendezvous.hpp"

namespace lab::host {

const char* name_of(Word word) {
  static constexpr const char* names[] = {"nothing",
                                          "sync_block",
                                          "sync_warp",
                                          "shfl",
                                          "warp_any",
                                          "warp_uniform",
                                          "ldmatrix_x4",
                                          "ldmatrix_x4_trans",
                                          "stmatrix_x4",
                                          "movmatrix_trans",
                                          "mma_m16n8k16<f16>",
                                          "mma_m16n8k16<bf16>",
                                          "wgmma",
                                          "wgmma_fence",
                                          "wgmma_commit",
                                          "wgmma_wait",
                                          "load_constant",
                                          "load_global",
                                          "store_global",
                                          "atomic_add_global",
                                          "add_global",
                                          "cp_async_16",
                                          "mbarrier_init",
                                          "mbarrier_arrive",
                                          "mbarrier_arrive_expect_tx",
                                          "mbarrier_arrive_copied",
                                          "mbarrier_wait",
                                          "named_sync",
                                          "named_arrive",
                                          "setmaxnreg_inc",
                                          "setmaxnreg_dec",
                                          "tma_load",
                                          "bulk_load",
                                          "bulk_add"};
  static_assert(std::size(names) == static_cast<int>(Word::bulk_add) + 1);
  return names[static_cast<int>(word)];
}

std::string place(Where where) {
  std::string file = where.file_name();
  const auto slash = file.rfind('/');
  if (slash != std::string::npos && slash > 0) {  // the folder tells the kernels apart
    const auto folder = file.rfind('/', slash - 1);
    if (folder != std::string::npos) file.erase(0, folder + 1);
  }
  return file + ":" + std::to_string(where.line());
}

std::string hexadecimal(const void* address) {
  char digits[16];
  const auto end =
      std::to_chars(digits, digits + sizeof digits, reinterpret_cast<std::uintptr_t>(address), 16);
  return "0x" + std::string(digits, end.ptr);
}

std::string this_block() {
  const auto& b = sm->block;
  return "block (" + std::to_string(b[0]) + ", " + std::to_string(b[1]) + ", " +
         std::to_string(b[2]) + ")";
}

std::string this_thread() { return this_block() + ", thread " + std::to_string(sm->thread); }

void fail_block(std::string&& message) {
  worker().error = std::move(message);
  leave_block();
}

void fail(std::string&& what) { fail_block(this_thread() + ": " + std::move(what)); }

}  // namespace lab::host
