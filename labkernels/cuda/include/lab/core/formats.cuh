// The tensor core takes these input formats beside f16 and bf16, and mma.sync takes all of them.
#pragma once
#include "lab/core/ptx.cuh"
#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include "lab/host/instructions/format_words.hpp"
#else

namespace lab {

struct tf32 { float value; };  // the tensor core reads 10 of its 23 fraction bits
struct e4m3 { unsigned char bits; };
struct e5m2 { unsigned char bits; };

// d += a b on 32 bytes of K: a is 16 x 32 bytes, b is 32 bytes x 8, and d is 16 x 8. Lane 4 g + t
// holds bytes 4 t to 4 t + 3 of rows g and g + 8 of a, then the four bytes from 16 + 4 t on of
// both; the same bytes of column g of b; and columns 2 t and 2 t + 1 of rows g and g + 8 of d, in
// fp16 as pairs.
template <class T> LAB_DEVICE void mma_m16n8(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  mma_m16n8k16<T>(d, a, b0, b1);
}
#define LAB_MMA(T, shape)                                                                       \
  template <>                                                                                   \
  LAB_DEVICE void mma_m16n8<T>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {              \
    asm("mma.sync.aligned.m16n8" shape " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                        \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                        \
  }
LAB_MMA(tf32, "k8.row.col.f32.tf32.tf32.f32")
LAB_MMA(e4m3, "k32.row.col.f32.e4m3.e4m3.f32")
LAB_MMA(e5m2, "k32.row.col.f32.e5m2.e5m2.f32")
#undef LAB_MMA
template <class T> LAB_DEVICE void mma_m16n8(u32 (&d)[2], const u32 (&a)[4], u32 b0, u32 b1);
template <> LAB_DEVICE void mma_m16n8<f16>(u32 (&d)[2], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 "
      "{%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%0,%1};"
      : "+r"(d[0]), "+r"(d[1])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace lab
#endif
