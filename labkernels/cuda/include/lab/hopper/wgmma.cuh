// wgmma is the tensor core's instruction for a warpgroup (128 threads) of sm_90a. It computes d +=
// a b while the threads go on. a and b are tiles in shared memory, which 64-bit descriptors name; a
// may be in registers instead.
// The words come in this order: threads write the tiles, call fence_async_shared and meet at a
// barrier; then they call wgmma_fence, wgmma once or several times, and wgmma_commit. d may be used
// after wgmma_wait.
#pragma once
#include "lab/core/formats.cuh"

namespace lab {

// This says how a tile lies in shared memory. Its elements along `Major` are contiguous, and 16
// bytes of them are a chunk. Eight chunks, which follow each other in the other direction, are a
// core matrix. In the swizzle of 128 bytes the chunks of a core matrix lie 128 bytes apart, among
// the chunks of seven others, and address bits 4 to 6 are XORed with bits 7 to 9.
enum class Major { k, mn };

// Returns the descriptor of a swizzled tile. For Major::k, `stride_bytes` goes from 8 rows to the
// next, and `leading_bytes` is not read. For Major::mn, `leading_bytes` goes from 64 elements to
// the next, and `stride_bytes` from 8 of K to the next.
LAB_DEVICE u64 wgmma_descriptor(const void* tile, int leading_bytes, int stride_bytes) {
  constexpr u64 swizzled = 1;
  return static_cast<u64>(shared_address(tile) >> 4) | static_cast<u64>(leading_bytes >> 4) << 16 |
         static_cast<u64>(stride_bytes >> 4) << 32 | swizzled << 62;
}

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

// Makes this thread's earlier stores to shared memory visible to wgmma and the TMA of all threads
// that a later barrier orders after it. Stores of other threads, which an earlier barrier has
// ordered before it, become visible to the copies that this thread asks for, and to a wgmma for
// which all threads of the warpgroup call this.
LAB_DEVICE void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Orders the threads' earlier accesses to the registers of d and a before the wgmma that follow.
LAB_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
LAB_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most the N youngest groups are in flight.
template <int N> LAB_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(N) : "memory");
}

// Keeps the compiler from moving a use of d's registers over this point. Without this fence the
// compiler may read them between a wgmma and its wait.
template <int Registers> LAB_DEVICE void fence_operand(float (&d)[Registers]) {
#pragma unroll
  for (int i = 0; i < Registers; ++i) asm volatile("" : "+f"(d[i]) : : "memory");
}

// There is one overload per instruction; the first argument only chooses the overload. The text of
// the instruction names its operands by number: first d's registers, and then r0 to r6.
#define LAB_8(c, i) \
  c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3]), c(d[i + 4]), c(d[i + 5]), c(d[i + 6]), c(d[i + 7])
#define LAB_16(c, i) LAB_8(c, i), LAB_8(c, i + 8)
#define LAB_32(c, i) LAB_16(c, i), LAB_16(c, i + 16)
#define LAB_64(c, i) LAB_32(c, i), LAB_32(c, i + 32)
#define LAB_D16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define LAB_D32 LAB_D16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define LAB_D40 LAB_D32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define LAB_D48 LAB_D40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define LAB_D64 LAB_D48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define LAB_D80 LAB_D64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define LAB_D88 LAB_D80 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define LAB_D96 LAB_D88 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define LAB_D128                                                                         \
  LAB_D96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111" \
          ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
// clang-format off
#define LAB_ASM(shape, d, a, b, p, majors)                                                      \
  asm volatile("{.reg .pred p; setp.ne.b32 p, " p ", 0;\n"                                      \
               "wgmma.mma_async.sync.aligned.m64n" shape " {" d "}, " a ", " b ", p, 1, 1"      \
               majors ";}"
#define LAB_WGMMA_SS(T, n, registers, shape, d_list, a, b, p, majors)                           \
  template <Major A, Major B>                                                                   \
  LAB_DEVICE void wgmma_overload(T, float (&d)[n], u64 a_tile, u64 b_tile, int accumulate) {    \
    LAB_ASM(shape, d_list, a, b, p, majors)                                                     \
        : LAB_##registers                                                                       \
        : "l"(a_tile), "l"(b_tile), "r"(accumulate), "n"(static_cast<int>(A)),\
                  "n"(static_cast<int>(B)));                                                    \
  }
#define LAB_WGMMA_RS(T, n, registers, shape, d_list, a, b, p, majors)                           \
  template <Major B>                                                                            \
  LAB_DEVICE void wgmma_overload(T, float (&d)[n], const u32 (&rows)[4], u64 b_tile,            \
                                 int accumulate) {                                              \
    LAB_ASM(shape, d_list, "{" a "}", b, p, majors)                                             \
        : LAB_##registers                                                                       \
        : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "l"(b_tile),\
                  "r"(accumulate), "n"(static_cast<int>(B)));                                   \
  }
#define LAB_WGMMA_OF(T, name, columns, n, registers, d, r0, r1, r2, r3, r4, r5, r6)             \
  LAB_WGMMA_SS(T, n, registers, columns "k16.f32." name, d, r0, r1, r2, ", " r3 ", " r4)        \
  LAB_WGMMA_RS(T, n, registers, columns "k16.f32." name, d, r0 "," r1 "," r2 "," r3, r4, r5,  \
               ", " r6)
// clang-format on
#define LAB_F16 LAB_16("+f", 0)
#define LAB_F32 LAB_32("+f", 0)
#define LAB_F40 LAB_32("+f", 0), LAB_8("+f", 32)
#define LAB_F48 LAB_32("+f", 0), LAB_16("+f", 32)
#define LAB_F64 LAB_64("+f", 0)
#define LAB_F80 LAB_64("+f", 0), LAB_16("+f", 64)
#define LAB_F88 LAB_64("+f", 0), LAB_16("+f", 64), LAB_8("+f", 80)
#define LAB_F96 LAB_64("+f", 0), LAB_32("+f", 64)
#define LAB_F128 LAB_64("+f", 0), LAB_64("+f", 64)
#define LAB_WGMMA(columns, n, ...)                                      \
  LAB_WGMMA_OF(f16, "f16.f16", columns, n, F##n, LAB_D##n, __VA_ARGS__) \
  LAB_WGMMA_OF(bf16, "bf16.bf16", columns, n, F##n, LAB_D##n, __VA_ARGS__)
LAB_WGMMA("32", 16, "%16", "%17", "%18", "%19", "%20", "%21", "%22")
LAB_WGMMA("64", 32, "%32", "%33", "%34", "%35", "%36", "%37", "%38")
LAB_WGMMA("80", 40, "%40", "%41", "%42", "%43", "%44", "%45", "%46")
LAB_WGMMA("96", 48, "%48", "%49", "%50", "%51", "%52", "%53", "%54")
LAB_WGMMA("128", 64, "%64", "%65", "%66", "%67", "%68", "%69", "%70")
LAB_WGMMA("160", 80, "%80", "%81", "%82", "%83", "%84", "%85", "%86")
LAB_WGMMA("176", 88, "%88", "%89", "%90", "%91", "%92", "%93", "%94")
LAB_WGMMA("192", 96, "%96", "%97", "%98", "%99", "%100", "%101", "%102")
LAB_WGMMA("256", 128, "%128", "%129", "%130", "%131", "%132", "%133", "%134")
#define LAB_E4M3 "k32.f32.e4m3.e4m3"
#define LAB_WGMMA_E4M3(columns, n, r0, r1, r2, r3, r4, r5)                \
  LAB_WGMMA_SS(e4m3, n, F##n, columns LAB_E4M3, LAB_D##n, r0, r1, r2, "") \
  LAB_WGMMA_RS(e4m3, n, F##n, columns LAB_E4M3, LAB_D##n, r0 "," r1 "," r2 "," r3, r4, r5, "")
LAB_WGMMA_E4M3("128", 64, "%64", "%65", "%66", "%67", "%68", "%69")
LAB_WGMMA_E4M3("160", 80, "%80", "%81", "%82", "%83", "%84", "%85")
LAB_WGMMA_E4M3("192", 96, "%96", "%97", "%98", "%99", "%100", "%101")

// d += a b (d = a b without `accumulate`): a is 64 x 32 bytes, b is 32 bytes x N, and d is in fp32.
// N is 32, 64, 80, 96, 128, 160, 176, 192 or 256 of f16 or bf16, and 128, 160 or 192 of e4m3, whose
// tiles have Major::k alone. Thread t of the warpgroup holds rows g = t / 32 * 16 + t % 32 / 4 and
// g + 8: d[4 j + i] is column 8 j + t % 4 * 2 + i % 2 of row g + i / 2 * 8.
template <class T, Major A = Major::k, Major B = Major::k, int Registers>
LAB_DEVICE void wgmma(float (&d)[Registers], u64 a, u64 b, bool accumulate = true) {
  static_assert(sizeof(T) == 2 || (A == Major::k && B == Major::k));
  wgmma_overload<A, B>(T{}, d, a, b, accumulate);
}
// Does the same with a in registers, where a warp holds its 16 rows as in mma_m16n8k16.
template <class T, Major B = Major::k, int Registers>
LAB_DEVICE void wgmma(float (&d)[Registers], const u32 (&a)[4], u64 b, bool accumulate = true) {
  static_assert(sizeof(T) == 2 || B == Major::k);
  wgmma_overload<B>(T{}, d, a, b, accumulate);
}
#endif

}  // namespace lab
#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include "lab/host/instructions/wgmma_words.hpp"
#endif
