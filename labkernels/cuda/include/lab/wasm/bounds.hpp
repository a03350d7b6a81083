// In a page, -fsanitize=bounds calls this where an index leaves its own dimension, be it inside of
// the array. lab/host/system/fault.cpp has the same for a CPU build.
#pragma once
#include "lab/core/ptx.cuh"

namespace lab::wasm {
struct Type {
  u16 kind, info;
  char name[1];
};  // as clang describes one; the name ends with a 0
struct Index {
  const char* file;
  u32 line, column;
  const Type *array, *type;
};
}  // namespace lab::wasm

extern "C" __attribute__((import_module("lab"), import_name("index"))) void lab_index(
    const char* file, unsigned line, const char* array, int index, int x, int y, int z, int thread);

extern "C" __attribute__((noinline, no_sanitize("thread"))) void __ubsan_handle_out_of_bounds_abort(
    const lab::wasm::Index* at, int index) {
  lab_index(at->file, at->line, at->array->name, index, lab::block_x(), lab::block_y(),
            lab::block_z(), lab::thread_x());
}
