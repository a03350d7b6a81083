// What the compiler calls at each access (-fsanitize=thread), for the end of a file that has
// lab::host::touch(address, bytes, whether they are written, where).
#pragma once
#include <cstring>

#ifdef __wasm__
extern "C" std::uint32_t lab_here = 0;  // WebAssembly has no return address: a number replaces it
#define LAB_CALLER reinterpret_cast<const void*>(lab_here)
#else
#define LAB_CALLER __builtin_return_address(0)
#endif
#define LAB_PLAIN(name, bytes)                                                                \
  LAB_EXPORT void __tsan_##name##read##bytes(void* p) { touch(p, bytes, false, LAB_CALLER); } \
  LAB_EXPORT void __tsan_##name##write##bytes(void* p) { touch(p, bytes, true, LAB_CALLER); }

extern "C" {
using lab::host::touch;
// clang-format off
LAB_PLAIN(, 1) LAB_PLAIN(, 2) LAB_PLAIN(, 4) LAB_PLAIN(, 8) LAB_PLAIN(, 16)
LAB_PLAIN(unaligned_, 2) LAB_PLAIN(unaligned_, 4) LAB_PLAIN(unaligned_, 8) LAB_PLAIN(unaligned_, 16)
// clang-format on
LAB_EXPORT void __tsan_read_range(void* p, unsigned long n) { touch(p, n, false, LAB_CALLER); }
LAB_EXPORT void __tsan_write_range(void* p, unsigned long n) { touch(p, n, true, LAB_CALLER); }
LAB_EXPORT void* __tsan_memcpy(void* dst, const void* src, unsigned long n) {
  touch(src, n, false, LAB_CALLER);
  touch(dst, n, true, LAB_CALLER);
  return std::memcpy(dst, src, n);
}
LAB_EXPORT void* __tsan_memmove(void* dst, const void* src, unsigned long n) {
  touch(src, n, false, LAB_CALLER);
  touch(dst, n, true, LAB_CALLER);
  return std::memmove(dst, src, n);
}
LAB_EXPORT void* __tsan_memset(void* dst, int value, unsigned long n) {
  touch(dst, n, true, LAB_CALLER);
  return std::memset(dst, value, n);
}
LAB_EXPORT void __tsan_func_entry(void*) {}
LAB_EXPORT void __tsan_func_exit(void) {}
LAB_EXPORT void __tsan_init(void) {}
}
