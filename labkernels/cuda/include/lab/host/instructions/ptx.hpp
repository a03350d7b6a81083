// These are the words of core/ptx.cuh on the CPU. A CUDA thread is a fiber; the words are thin and
// inline, and the .cpp files of host/ do the work.
#pragma once
#include "lab/host/arithmetic/numbers.hpp"
#include "lab/host/instructions/warp_words.hpp"

#define LAB_DEVICE [[gnu::always_inline]] inline
#define LAB_KERNEL(threads, blocks_per_sm) void
#define LAB_GRID_CONSTANT const

// This marks a word of the vocabulary. The checked build must not instrument what the words do.
#ifdef LAB_CHECKS
#define LAB_WORD __attribute__((noinline, no_sanitize("thread"))) inline
#else
#define LAB_WORD [[gnu::always_inline]] inline
#endif
#define LAB_HERE host::Where here = host::Where::current()

namespace lab {

struct f16 { u16 bits; };
struct bf16 { u16 bits; };
struct alignas(8) u32x2 { u32 v[2]; };
struct alignas(16) u32x4 { u32 v[4]; };
struct alignas(16) f32x4 { float v[4]; };
struct f32x2 { float x, y; };

// ---- where am I
LAB_WORD int thread_x() { return host::sm->thread; }
LAB_WORD int block_x() { return host::sm->block[0]; }
LAB_WORD int block_y() { return host::sm->block[1]; }
LAB_WORD int block_z() { return host::sm->block[2]; }

// ---- barriers and exchange
LAB_WORD void sync_block(LAB_HERE) { host::sync_block(here); }
LAB_WORD void sync_warp(LAB_HERE) {
  host::meet<false>(host::Word::sync_warp, here, host::act_sync_warp);
}
LAB_WORD float shfl(float v, int lane, LAB_HERE) {
  return host::as_float(static_cast<u32>(
      host::exchange(host::Word::shfl, here, host::as_bits(v), lane & 31, host::act_shfl)));
}
LAB_WORD float shfl_xor(float v, int mask, LAB_HERE) {
  return host::as_float(static_cast<u32>(host::exchange(
      host::Word::shfl, here, host::as_bits(v), host::my_lane_index() ^ mask, host::act_shfl)));
}
LAB_WORD int shfl(int v, int lane, LAB_HERE) {
  return static_cast<int>(
      host::exchange(host::Word::shfl, here, static_cast<u64>(v), lane & 31, host::act_shfl));
}
LAB_WORD i64 shfl(i64 v, int lane, LAB_HERE) {
  return static_cast<i64>(
      host::exchange(host::Word::shfl, here, static_cast<u64>(v), lane & 31, host::act_shfl));
}
LAB_WORD u32 shfl_octet(u32 v, int lane, LAB_HERE) {
  const int octet = host::my_lane_index() & ~7;
  return static_cast<u32>(
      host::exchange(host::Word::shfl, here, v, octet | (lane & 7), host::act_shfl));
}
LAB_WORD bool warp_any(bool condition, LAB_HERE) {
  return host::exchange(host::Word::warp_any, here, condition, 0, host::act_warp_any) != 0;
}
// Launches run one after the other here.
LAB_DEVICE void allow_next_launch() {}
LAB_DEVICE void wait_previous_launch() {}

// ---- memory
template <class S> LAB_WORD S& shared_memory() { return *reinterpret_cast<S*>(host::sm->shared); }

template <class T> LAB_WORD T load_constant(const T* p, LAB_HERE) {
  host::check_global(p, sizeof(T), alignof(T), host::Access::read_constant,
                     host::Word::load_constant, here);
  return *p;
}
template <class T> LAB_WORD T load_global(const T* p, LAB_HERE) {
  host::check_global(p, sizeof(T), alignof(T), host::Access::read, host::Word::load_global, here);
  return *p;
}
template <class T> LAB_WORD void store_global(T* p, T value, LAB_HERE) {
  host::check_global(p, sizeof(T), alignof(T), host::Access::write, host::Word::store_global, here);
  *p = value;
}
LAB_WORD int atomic_add_global(int* p, int value, LAB_HERE) {
  return host::atomic_add_global(p, value, here);
}
LAB_WORD void add_global(float* p, const float (&x)[4], LAB_HERE) { host::add_global(p, x, here); }
LAB_WORD void fence_global() { host::fence_global(); }
LAB_WORD u32 shared_address(const void* p) {
  return static_cast<u32>(static_cast<const unsigned char*>(p) - host::sm->shared);
}
LAB_WORD void cp_async_16(void* dst, const void* src, bool valid, LAB_HERE) {
  host::cp_async_16(dst, src, valid, here);
}
LAB_WORD void cp_async_16(u32 shared_dst, const void* src, bool valid, LAB_HERE) {
  host::cp_async_16(host::sm->shared + shared_dst, src, valid, here);
}
LAB_WORD void cp_async_commit() { host::cp_async_commit(); }
template <int N> LAB_WORD void cp_async_wait() { host::cp_async_wait(N); }

// ---- arithmetic
LAB_DEVICE float fma_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
LAB_DEVICE float div_rn(float a, float b) { return a / b; }
LAB_DEVICE float maximum(float a, float b) { return host::larger(a, b); }
LAB_DEVICE float absolute(float x) { return __builtin_fabsf(x); }
LAB_DEVICE float copy_sign(float x, float sign) { return __builtin_copysignf(x, sign); }
LAB_DEVICE float bits_to_float(u32 b) { return host::as_float(b); }
LAB_DEVICE u32 float_to_bits(float f) { return host::as_bits(f); }
LAB_DEVICE float ex2_approx(float x) { return host::lab_ex2_approx(x); }

LAB_DEVICE u32 select_bytes(u32 a, u32 b, u32 selector) {
  const u64 bytes = a | static_cast<u64>(b) << 32;
  u32 chosen = 0;
  for (int i = 0; i < 4; ++i)
    chosen |= static_cast<u32>(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return chosen;
}

// ---- conversions, round to nearest even
template <class T> u32 pack2(float lo, float hi);
template <> LAB_DEVICE u32 pack2<f16>(float lo, float hi) {
  return host::f16_from_float(lo) | static_cast<u32>(host::f16_from_float(hi)) << 16;
}
template <> LAB_DEVICE u32 pack2<bf16>(float lo, float hi) {
  return host::bf16_from_float(lo) | static_cast<u32>(host::bf16_from_float(hi)) << 16;
}
template <class T> f32x2 unpack2(u32 pair);
template <> LAB_DEVICE f32x2 unpack2<f16>(u32 pair) {
  return {host::float_from_f16(static_cast<u16>(pair)),
          host::float_from_f16(static_cast<u16>(pair >> 16))};
}
template <> LAB_DEVICE f32x2 unpack2<bf16>(u32 pair) {
  return {host::float_from_bf16(static_cast<u16>(pair)),
          host::float_from_bf16(static_cast<u16>(pair >> 16))};
}
template <class T> T from_float(float x);
template <> LAB_DEVICE f16 from_float<f16>(float x) { return {host::f16_from_float(x)}; }
template <> LAB_DEVICE bf16 from_float<bf16>(float x) { return {host::bf16_from_float(x)}; }
template <> LAB_DEVICE float from_float<float>(float x) { return x; }

// ---- tensor cores
LAB_WORD void ldmatrix_x4(u32 (&r)[4], const void* row, LAB_HERE) {
  host::load_matrices(r, row, host::Word::ldmatrix_x4, here, host::act_ldmatrix);
}
LAB_WORD void ldmatrix_x4(u32 (&r)[4], u32 shared_row, LAB_HERE) {
  ldmatrix_x4(r, host::sm->shared + shared_row, here);
}
LAB_WORD void ldmatrix_x4_trans(u32 (&r)[4], const void* row, LAB_HERE) {
  host::load_matrices(r, row, host::Word::ldmatrix_x4_trans, here, host::act_ldmatrix_trans);
}
LAB_WORD void ldmatrix_x4_trans(u32 (&r)[4], u32 shared_row, LAB_HERE) {
  ldmatrix_x4_trans(r, host::sm->shared + shared_row, here);
}
LAB_WORD void stmatrix_x4(u32 shared_row, const u32 (&r)[4], LAB_HERE) {
  host::store_matrices(shared_row, r, host::Word::stmatrix_x4, here, host::act_stmatrix);
}
LAB_WORD u32 movmatrix_trans(u32 a, LAB_HERE) {
  u64 result;
  host::Lane& mine = host::my_lane();
  mine.out = &result;
  mine.value = a;
  host::meet_whole_warp(host::Word::movmatrix_trans, here, host::act_movmatrix_trans);
  return static_cast<u32>(result);
}
template <class T>
void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, LAB_HERE);
template <>
LAB_WORD void mma_m16n8k16<f16>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1,
                                host::Where here) {
  host::multiply(d, a, b0, b1, host::Word::mma_f16, here, host::act_mma_f16);
}
template <>
LAB_WORD void mma_m16n8k16<bf16>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1,
                                 host::Where here) {
  host::multiply(d, a, b0, b1, host::Word::mma_bf16, here, host::act_mma_bf16);
}

}  // namespace lab
