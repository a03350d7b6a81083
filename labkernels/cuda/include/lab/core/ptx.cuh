// A kernel may use the words of the vocabulary and nothing else. This file has the first words,
// each of which wraps one instruction of the GPU. host/instructions/ptx.hpp defines them for the
// CPU, with the same bits.
#pragma once
#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include "lab/host/instructions/ptx.hpp"
#else

namespace lab {

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

#define LAB_DEVICE __device__ __forceinline__
#define LAB_KERNEL(threads, blocks_per_sm) __global__ void __launch_bounds__(threads, blocks_per_sm)
#define LAB_GRID_CONSTANT const __grid_constant__

struct f16 { u16 bits; };
struct bf16 { u16 bits; };
struct alignas(8) u32x2 { u32 v[2]; };
struct alignas(16) u32x4 { u32 v[4]; };
struct alignas(16) f32x4 { float v[4]; };
struct f32x2 { float x, y; };

// ---- where am I
LAB_DEVICE int thread_x() { return threadIdx.x; }
LAB_DEVICE int block_x() { return blockIdx.x; }
LAB_DEVICE int block_y() { return blockIdx.y; }
LAB_DEVICE int block_z() { return blockIdx.z; }

// ---- barriers and exchange
LAB_DEVICE void sync_block() { __syncthreads(); }
LAB_DEVICE void sync_warp() { __syncwarp(); }
LAB_DEVICE float shfl(float v, int lane) { return __shfl_sync(~0u, v, lane); }
LAB_DEVICE float shfl_xor(float v, int mask) { return __shfl_xor_sync(~0u, v, mask); }
LAB_DEVICE int shfl(int v, int lane) { return __shfl_sync(~0u, v, lane); }
LAB_DEVICE i64 shfl(i64 v, int lane) { return __shfl_sync(~0u, v, lane); }
// Returns a value from another lane of this lane's group of eight.
LAB_DEVICE u32 shfl_octet(u32 v, int lane) { return __shfl_sync(~0u, v, lane, 8); }
LAB_DEVICE bool warp_any(bool condition) { return __any_sync(~0u, condition); }

// Programmatic dependent launch: the next kernel of the stream may start its blocks early, and
// must wait before it reads what this one writes. On GPUs before sm_90 launches are in order.
LAB_DEVICE void allow_next_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
LAB_DEVICE void wait_previous_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- memory
template <class S> LAB_DEVICE S& shared_memory() {
  extern __shared__ __align__(1024) unsigned char lab_dynamic_smem[];
  return *reinterpret_cast<S*>(lab_dynamic_smem);
}
// Kernels access global memory only through these words, cp_async_16 and the TMA (hopper/tma.cuh),
// so that the CPU build can check every address against the tensors of the launch. `load_constant`
// is for data that no thread of this launch writes.
template <class T> LAB_DEVICE T load_constant(const T* p) { return __ldg(p); }
template <> LAB_DEVICE u32x4 load_constant<u32x4>(const u32x4* p) {
  u32x4 r;
  asm("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];"
      : "=r"(r.v[0]), "=r"(r.v[1]), "=r"(r.v[2]), "=r"(r.v[3])
      : "l"(p));
  return r;
}
template <class T> LAB_DEVICE T load_global(const T* p);  // bypasses L1: sees other blocks' stores
template <> LAB_DEVICE float load_global<float>(const float* p) { return __ldcg(p); }
template <> LAB_DEVICE int load_global<int>(const int* p) { return __ldcg(p); }
template <> LAB_DEVICE f32x4 load_global<f32x4>(const f32x4* p) {
  f32x4 r;
  asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(r.v[0]), "=f"(r.v[1]), "=f"(r.v[2]), "=f"(r.v[3])
               : "l"(p)
               : "memory");
  return r;
}
template <class T> LAB_DEVICE void store_global(T* p, T value) { *p = value; }
// The compiler would split a store of the struct into four.
template <> LAB_DEVICE void store_global<u32x4>(u32x4* p, u32x4 value) {
  *reinterpret_cast<uint4*>(p) = make_uint4(value.v[0], value.v[1], value.v[2], value.v[3]);
}
LAB_DEVICE int atomic_add_global(int* p, int value) { return atomicAdd(p, value); }
// Adds to four floats, in no defined order among threads and without returning the sums. Subnormals
// count as zero.
LAB_DEVICE void add_global(float* p, const float (&x)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1,%2,%3,%4};"
               :
               : "l"(p), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
#else
#pragma unroll
  for (int i = 0; i < 4; ++i)
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" : : "l"(p + i), "f"(x[i]) : "memory");
#endif
}
// Every block sees this thread's accesses to global memory before the fence before those after it.
// (__threadfence also puts all fences in one order, which takes longer, and no kernel needs it.)
LAB_DEVICE void fence_global() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

LAB_DEVICE u32 shared_address(const void* p) {
  return static_cast<u32>(__cvta_generic_to_shared(p));
}
// Copies 16 bytes from global to shared memory. With valid == false the destination is zero-filled
// and the source is not read.
LAB_DEVICE void cp_async_16(u32 shared_dst, const void* src, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(shared_dst), "l"(src), "r"(valid ? 16 : 0)
               : "memory");
}
LAB_DEVICE void cp_async_16(void* dst, const void* src, bool valid) {
  cp_async_16(shared_address(dst), src, valid);
}
LAB_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most the N youngest groups of this thread are in flight.
template <int N> LAB_DEVICE void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory");
}

// ---- arithmetic. Compiled with fmad=false: a fused operation is written out.
LAB_DEVICE float fma_rn(float a, float b, float c) { return __fmaf_rn(a, b, c); }
LAB_DEVICE float div_rn(float a, float b) { return __fdiv_rn(a, b); }
// Given a number and NaN, returns the number.
LAB_DEVICE float maximum(float a, float b) { return fmaxf(a, b); }
LAB_DEVICE float absolute(float x) { return fabsf(x); }
LAB_DEVICE float copy_sign(float x, float sign) { return copysignf(x, sign); }
LAB_DEVICE float bits_to_float(u32 b) { return __uint_as_float(b); }
LAB_DEVICE u32 float_to_bits(float f) { return __float_as_uint(f); }
LAB_DEVICE float ex2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Returns four of the eight bytes of {a, b}: hexadecimal digit i of `selector` numbers byte i.
LAB_DEVICE u32 select_bytes(u32 a, u32 b, u32 selector) { return __byte_perm(a, b, selector); }

// ---- conversions, round to nearest even
template <class T> LAB_DEVICE u32 pack2(float lo, float hi);  // lo in the low half
template <> LAB_DEVICE u32 pack2<f16>(float lo, float hi) {
  u32 d;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
  return d;
}
template <> LAB_DEVICE u32 pack2<bf16>(float lo, float hi) {
  u32 d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
  return d;
}
template <class T> LAB_DEVICE f32x2 unpack2(u32 pair);
template <> LAB_DEVICE f32x2 unpack2<f16>(u32 pair) {
  f32x2 r;
  asm("{.reg .b16 lo, hi; mov.b32 {lo, hi}, %2; cvt.f32.f16 %0, lo; cvt.f32.f16 %1, hi;}"
      : "=f"(r.x), "=f"(r.y)
      : "r"(pair));
  return r;
}
template <> LAB_DEVICE f32x2 unpack2<bf16>(u32 pair) {
  return {bits_to_float(pair << 16), bits_to_float(pair & 0xffff0000u)};
}
template <class T> LAB_DEVICE T from_float(float x);
template <> LAB_DEVICE f16 from_float<f16>(float x) {
  f16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(x));
  return h;
}
template <> LAB_DEVICE bf16 from_float<bf16>(float x) {
  bf16 h;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h.bits) : "f"(x));
  return h;
}
template <> LAB_DEVICE float from_float<float>(float x) { return x; }

// ---- tensor cores: warp-wide, fragments as the PTX ISA lays them out
// Loads four 8x8 matrices of 16-bit elements; lane i points at row i % 8 of matrix i / 8.
LAB_DEVICE void ldmatrix_x4(u32 (&r)[4], u32 shared_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_row)
               : "memory");
}
LAB_DEVICE void ldmatrix_x4(u32 (&r)[4], const void* row) { ldmatrix_x4(r, shared_address(row)); }
LAB_DEVICE void ldmatrix_x4_trans(u32 (&r)[4], u32 shared_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_row)
               : "memory");
}
LAB_DEVICE void ldmatrix_x4_trans(u32 (&r)[4], const void* row) {
  ldmatrix_x4_trans(r, shared_address(row));
}
// Stores four 8x8 matrices from registers to shared memory: the inverse of ldmatrix_x4, on sm_90.
LAB_DEVICE void stmatrix_x4(u32 shared_row, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};"
               :
               : "r"(shared_row), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
// Transposes an 8x8 matrix of 16-bit elements across the warp's registers.
LAB_DEVICE u32 movmatrix_trans(u32 a) {
  u32 d;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));
  return d;
}
// d += a b, with a 16x16 (row-major fragments), b 16x8, d 16x8 in fp32.
template <class T>
LAB_DEVICE void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1);
#define LAB_MMA(T, name)                                                              \
  template <>                                                                         \
  LAB_DEVICE void mma_m16n8k16<T>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 "                \
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                       \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                              \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));              \
  }
LAB_MMA(f16, "f16")
LAB_MMA(bf16, "bf16")
#undef LAB_MMA

}  // namespace lab
#endif
