// wgmma, the tensor core's instruction for a warpgroup (128 threads) of sm_90a: d += a b with tiles
// in shared memory, which 64-bit descriptors name, while the threads go on.
// The order of the words: tiles written, fence_async_shared by the threads that wrote them, a
// barrier; wgmma_fence, wgmma once or often, wgmma_commit; wgmma_wait before d is touched.
#pragma once
#include "lab/formats.cuh"

namespace lab {

// How a tile lies in shared memory. Its elements along `Major` are contiguous, 16 bytes of them a
// chunk. Eight chunks, one below the other in the other direction, are a core matrix: 128 bytes in
// a row without swizzle; with Swizzle::b128 they stand 128 bytes apart, among seven others, and
// address bits 4 to 6 are XORed with bits 7 to 9.
enum class Major { k, mn };
enum class Swizzle { none, b128 };

// Byte distances between core matrices.
// Major::k: `leading` from one 16 bytes of K to the next (b128: not read), `stride` from 8 rows to
// the next. Major::mn: `stride` from 8 elements to the next and `leading` from 8 of K to the next;
// b128: `leading` from 64 elements to the next and `stride` from 8 of K to the next.
LAB_DEVICE u64 wgmma_descriptor(const void* tile, int leading_bytes, int stride_bytes,
                                Swizzle swizzle) {
  return static_cast<u64>(shared_address(tile) >> 4) | static_cast<u64>(leading_bytes >> 4) << 16 |
         static_cast<u64>(stride_bytes >> 4) << 32 | static_cast<u64>(swizzle) << 62;
}

// An instruction takes 32 bytes of K.
template <class T> constexpr int wgmma_k = 32 / static_cast<int>(sizeof(T));

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

// This thread's stores to shared memory are seen by wgmma, after a barrier.
LAB_DEVICE void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Orders what the threads did with d and a's registers before the wgmma that follow.
LAB_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
LAB_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most N of the youngest groups are in flight.
template <int N> LAB_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory");
}

// One overload an instruction; the first argument only chooses it.
#define LAB_EIGHT(c, i)                                                                         \
  c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3]), c(d[i + 4]), c(d[i + 5]), c(d[i + 6]), c(d[i + 7])
#define LAB_FLOATS LAB_EIGHT("+f", 0), LAB_EIGHT("+f", 8), LAB_EIGHT("+f", 16), LAB_EIGHT("+f", 24)
#define LAB_PAIRS LAB_EIGHT("+r", 0), LAB_EIGHT("+r", 8)
#define LAB_OUT16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define LAB_OUT32 LAB_OUT16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define LAB_ASM(d, shape, a, b, p, majors)                                                      \
  asm volatile("{.reg .pred p; setp.ne.b32 p, " p ", 0;\n"                                      \
               "wgmma.mma_async.sync.aligned.m64n64" shape " {" d "}, " a ", " b ", p, 1, 1"    \
               majors ";}"
#define LAB_WGMMA(T, D, n, lists, d_list, shape, a, b, p, majors)                               \
  template <Major A, Major B>                                                                   \
  LAB_DEVICE void wgmma_n64(T, D (&d)[n], u64 a_tile, u64 b_tile, int accumulate) {             \
    LAB_ASM(d_list, shape, a, b, p, majors)                                                     \
        : lists : "l"(a_tile), "l"(b_tile), "r"(accumulate), "n"(static_cast<int>(A)),          \
                  "n"(static_cast<int>(B)));                                                    \
  }
#define LAB_WGMMA_A(T, D, n, lists, d_list, shape, a, b, p, majors)                             \
  template <Major B>                                                                            \
  LAB_DEVICE void wgmma_n64(T, D (&d)[n], const u32 (&rows)[4], u64 b_tile, int accumulate) {   \
    LAB_ASM(d_list, shape, "{" a "}", b, p, majors)                                             \
        : lists : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "l"(b_tile),          \
                  "r"(accumulate), "n"(static_cast<int>(B)));                                   \
  }
#define LAB_WGMMA_F32(T, shape, majors, major)                                                  \
  LAB_WGMMA(T, float, 32, LAB_FLOATS, LAB_OUT32, shape, "%32", "%33", "%34", majors)            \
  LAB_WGMMA_A(T, float, 32, LAB_FLOATS, LAB_OUT32, shape, "%32,%33,%34,%35", "%36", "%37", major)
LAB_WGMMA_F32(f16, "k16.f32.f16.f16", ", %35, %36", ", %38")
LAB_WGMMA_F32(bf16, "k16.f32.bf16.bf16", ", %35, %36", ", %38")
LAB_WGMMA_F32(tf32, "k8.f32.tf32.tf32", "", "")
LAB_WGMMA_F32(e4m3, "k32.f32.e4m3.e4m3", "", "")
LAB_WGMMA_F32(e5m2, "k32.f32.e5m2.e5m2", "", "")
LAB_WGMMA(f16, u32, 16, LAB_PAIRS, LAB_OUT16, "k16.f16.f16.f16", "%16", "%17", "%18", ", %19, %20")
LAB_WGMMA_A(f16, u32, 16, LAB_PAIRS, LAB_OUT16, "k16.f16.f16.f16", "%16,%17,%18,%19", "%20", "%21",
            ", %22")
#undef LAB_EIGHT
#undef LAB_FLOATS
#undef LAB_PAIRS
#undef LAB_OUT16
#undef LAB_OUT32
#undef LAB_ASM
#undef LAB_WGMMA
#undef LAB_WGMMA_A
#undef LAB_WGMMA_F32

// d += a b (d = a b without `accumulate`): a 64 x 32 bytes, b 32 bytes x 64, d in fp32 or fp16.
// Thread t of the warpgroup holds rows g = t / 32 * 16 + t % 32 / 4 and g + 8: d[4 j + i] is column
// 8 j + t % 4 * 2 + i % 2 of row g + i / 2 * 8; in fp16, d[2 j + i] is a pair of columns of row
// g + i * 8. Other than of 16 bits, elements have Major::k alone.
template <class T, Major A = Major::k, Major B = Major::k, class D, int Registers>
LAB_DEVICE void wgmma(D (&d)[Registers], u64 a, u64 b, bool accumulate = true) {
  static_assert(sizeof(T) == 2 || (A == Major::k && B == Major::k));
  wgmma_n64<A, B>(T{}, d, a, b, accumulate);
}
// a in registers: a warp holds its 16 rows as in mma_m16n8.
template <class T, Major B = Major::k, class D, int Registers>
LAB_DEVICE void wgmma(D (&d)[Registers], const u32 (&a)[4], u64 b, bool accumulate = true) {
  static_assert(sizeof(T) == 2 || B == Major::k);
  wgmma_n64<B>(T{}, d, a, b, accumulate);
}
#endif

}  // namespace lab
#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include "lab/host/wgmma_words.hpp"
#endif
