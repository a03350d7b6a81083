// Global accesses are checked against the launch's tensors; asynchronous copies land at their wait.
#pragma once
#include "lab/host/machine/rendezvous.hpp"

namespace lab::host {

enum class Access : unsigned char { read, read_constant, write };

// Finds the tensor of the access, or reports that there is none.
LAB_EXPORT const GlobalRange* find_range(const void* p, std::size_t bytes, Access access, Word word,
                                         Where where);
[[noreturn]] LAB_EXPORT void report_misaligned(const void* p, std::size_t alignment, Word word,
                                               Where where);

inline bool allowed(const GlobalRange& range, u64 address, std::size_t bytes, Access access) {
  const u64 offset = address - range.address;  // huge if it lies below
  return offset < range.n_bytes && range.n_bytes - offset >= bytes &&
         (access == Access::read || (access == Access::write) == (range.writable != 0));
}

[[gnu::always_inline]] inline void check_global(const void* p, std::size_t bytes,
                                                std::size_t alignment, Access access, Word word,
                                                Where where) {
  const auto address = reinterpret_cast<u64>(p);
  if (address % alignment != 0) [[unlikely]]
    report_misaligned(p, alignment, word, where);
  const GlobalRange*& last = sm->last_range[where.line() % 16];
  if (!allowed(*last, address, bytes, access)) [[unlikely]]
    last = find_range(p, bytes, access, word, where);
}

LAB_EXPORT int atomic_add_global(int* p, int value, Where where);
LAB_EXPORT void add_global(float* p, const float (&x)[4], Where where);
LAB_EXPORT void fence_global();
void check_shared(const void* p, std::size_t bytes, std::size_t alignment, Word word, Where where);
LAB_EXPORT void check_shared_row(const void* row, Word word, Where where);
LAB_EXPORT void cp_async_16(void* dst, const void* src, bool valid, Where where);
LAB_EXPORT void cp_async_commit();
LAB_EXPORT void cp_async_wait(std::size_t n_in_flight);
// Lands all copies of the running thread, in groups or not.
void cp_async_land();

}  // namespace lab::host
