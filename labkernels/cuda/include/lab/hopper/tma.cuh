// The tensor memory accelerator (TMA) of sm_90 copies: one thread asks for a box of a tensor, which
// a TensorMap describes, or for a run of bytes. An Mbarrier counts the bytes of loads; additions
// end in groups, as copies of cp_async do. A box lands with its innermost dimension contiguous. In
// a swizzle of 128 bytes that dimension is 128 bytes wide, and address bits 4 to 6 are XORed with
// bits 7 to 9, as wgmma.cuh has it. The part of a box outside the tensor arrives as zeros.
#pragma once
#include "lab/hopper/mbarrier.cuh"

namespace lab {

// cuda/gpu/tensor_map.py makes a TensorMap, and a kernel has it in its parameters.
struct alignas(64) TensorMap { u64 words[16]; };

// A hint says how long the L2 cache should keep the loaded data. The values are the encodings that
// createpolicy.fractional gives for the whole of an access on sm_90.
enum class CacheHint : u64 {
  evict_normal = 0x1000000000000000,
  evict_first = 0x12f0000000000000,
  evict_last = 0x14f0000000000000
};

}  // namespace lab
#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include "lab/host/instructions/tma_words.hpp"
#else

namespace lab {

LAB_DEVICE void prefetch_tensormap(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" : : "l"(&map) : "memory");
}

// Loads the box at (x, y, ...), innermost coordinate first. x counts elements, is a multiple of 16
// bytes and may be negative; with another x, an H200 stops with an illegal instruction. dst is
// aligned to 128 bytes.
#define LAB_LOAD(rank, at)                                                                 \
  "cp.async.bulk.tensor." rank ".shared::cluster.global.tile.mbarrier::complete_tx::bytes" \
  ".L2::cache_hint [%0], [%1, " at "], [%2], %3;" ::"r"(shared_address(dst)),              \
      "l"(&map), "r"(shared_address(&b)), "l"(hint)
LAB_DEVICE void tma_load(void* dst, const TensorMap& map, Mbarrier& b, int x, int y,
                         CacheHint hint = CacheHint::evict_normal) {
  asm volatile(LAB_LOAD("2d", "{%4, %5}"), "r"(x), "r"(y) : "memory");
}
LAB_DEVICE void tma_load(void* dst, const TensorMap& map, Mbarrier& b, int x, int y, int z,
                         CacheHint hint = CacheHint::evict_normal) {
  asm volatile(LAB_LOAD("3d", "{%4, %5, %6}"), "r"(x), "r"(y), "r"(z) : "memory");
}
LAB_DEVICE void tma_load(void* dst, const TensorMap& map, Mbarrier& b, int x, int y, int z, int w,
                         CacheHint hint = CacheHint::evict_normal) {
  asm volatile(LAB_LOAD("4d", "{%4, %5, %6, %7}"), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
LAB_DEVICE void tma_load(void* dst, const TensorMap& map, Mbarrier& b, int x, int y, int z, int w,
                         int v, CacheHint hint = CacheHint::evict_normal) {
  asm volatile(LAB_LOAD("5d", "{%4, %5, %6, %7, %8}"), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v)
               : "memory");
}
#undef LAB_LOAD

// Loads a run of bytes, a multiple of 16; source and destination are aligned to 16.
LAB_DEVICE void bulk_load(void* dst, const void* src, int bytes, Mbarrier& b) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
               "[%0], [%1], %2, [%3];"
               :
               : "r"(shared_address(dst)), "l"(src), "r"(bytes), "r"(shared_address(&b))
               : "memory");
}
// Adds floats of shared memory to global memory. The threads that wrote the floats first meet this
// thread at a barrier. They call fence_async_shared before it, or this thread calls it after it.
LAB_DEVICE void bulk_add(float* dst, const float* src, int bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
               :
               : "l"(dst), "r"(shared_address(src)), "r"(bytes)
               : "memory");
}

// bulk_commit makes a group of this thread's additions. bulk_wait_read waits until at most N groups
// still read shared memory, and bulk_wait until at most N groups are still on their way.
LAB_DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int N> LAB_DEVICE void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" : : "n"(N) : "memory");
}
template <int N> LAB_DEVICE void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" : : "n"(N) : "memory");
}

}  // namespace lab
#endif
