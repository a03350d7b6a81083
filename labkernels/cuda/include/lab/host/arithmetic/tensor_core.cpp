// The tensor core adds a chunk of exact products and c in one step. Every term is aligned to the
// largest exponent and cut toward zero `kept_bits` below it; the sum is exact, and is cut to fp32
// toward zero. A vector holds 8 columns of one row. Infinities, NaN and subnormal results are rare:
// a tile that meets one is computed again, term by term.
#include "lab/host/arithmetic/tensor_core.hpp"

#include <cstring>

#include "lab/host/arithmetic/dot.hpp"
#include "lab/host/arithmetic/numbers.hpp"
#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace lab::host {
namespace {

#if LAB_ARCH >= 90
constexpr int chunk = 16, kept_bits = 25, lowest_alignment = -133;
#else
constexpr int chunk = 8, kept_bits = 24, lowest_alignment = -132;
#endif
constexpr int zero_exponent = -10000;  // the exponent of a zero term: below every other

template <class Format> void multiply_term_by_term(Fragments& f) {
  for (int row = 0; row < 16; ++row)
    for (int column = 0; column < 8; ++column) {
      u32 a[16], b[16];
      for (int k = 0; k < 16; ++k) {
        a[k] = f.a[row][k];
        b[k] = f.b[k][column];
      }
      f.c[row][column] = dot(Format::input, a, b, 16, f.c[row][column]);
    }
}

// ---- 8 columns at once

using Ints = int __attribute__((vector_size(32)));
using Halves = u16 __attribute__((vector_size(16)));
using HalfInts = int __attribute__((vector_size(16)));
using HalfFloats = float __attribute__((vector_size(16)));
using Doubles = double __attribute__((vector_size(32)));
using Longs = long long __attribute__((vector_size(32)));

template <class V> V load(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
Ints all(int value) { return Ints{} + value; }
Ints larger_of(Ints a, Ints b) { return a > b ? a : b; }

#ifdef __AVX2__
// The factors fit in 16 bits; b's upper half is zero.
Ints lower_half(Ints b) { return b & 0xffff; }
Ints product(Ints a, Ints b) { return (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b); }
Ints shift_toward_zero(Ints x, Ints n) {
  const __m256i magnitude = _mm256_srlv_epi32(_mm256_abs_epi32((__m256i)x), (__m256i)n);
  return (Ints)_mm256_sign_epi32(magnitude, (__m256i)x);
}
#else
Ints lower_half(Ints b) { return b; }
Ints product(Ints a, Ints b) { return a * b; }
Ints shift_toward_zero(Ints x, Ints n) {
  const Ints sign = x >> 31, most = all(31);
  return ((((x ^ sign) - sign) >> (n < most ? n : most)) ^ sign) - sign;
}
#endif

// Returns signed significands with `spare` more bits than the format's fraction has.
template <class Format> Ints significand(Ints h, int spare, Ints& exponent, Ints& special) {
  constexpr int top = Format::exponent_mask, one = 1 << Format::fraction_bits;
  const Ints e = (h >> Format::fraction_bits) & top, fraction = h & (one - 1);
  special |= e == top;
  const Ints subnormal = e == 0;  // -1 where true
  const Ints magnitude = fraction | (~subnormal & one);
  const Ints sign = -((h >> 15) & 1);
  exponent = magnitude == 0 ? all(zero_exponent) : e - subnormal - Format::bias;
  return ((magnitude << spare) ^ sign) - sign;
}

struct Decoded {
  alignas(32) int a[16][16], a_exponent[16][16];
  Ints b[16], b_exponent[16];
  Ints special = {};
  Longs subnormal = {};  // results
};

template <class Format> void decode(const Fragments& f, Decoded& d) {
  constexpr int spare = kept_bits - 2 * Format::fraction_bits, spare_a = spare / 2;
  for (int k = 0; k < 16; ++k)
    d.b[k] = lower_half(significand<Format>(__builtin_convertvector(load<Halves>(f.b[k]), Ints),
                                            spare - spare_a, d.b_exponent[k], d.special));
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; k += 8) {
      Ints exponent;
      const Ints a = significand<Format>(__builtin_convertvector(load<Halves>(&f.a[row][k]), Ints),
                                         spare_a, exponent, d.special);
      std::memcpy(&d.a[row][k], &a, sizeof a);
      std::memcpy(&d.a_exponent[row][k], &exponent, sizeof exponent);
    }
  }
}

// Returns (low + high) 2^(alignment - kept_bits), cut to 24 bits. The sum is exact in double.
HalfFloats normalise(HalfInts low, HalfInts high, HalfInts alignment, Longs& subnormal) {
  Doubles sum = __builtin_convertvector(low, Doubles) + __builtin_convertvector(high, Doubles);
  sum = (Doubles)((Longs)sum & ~((1LL << 29) - 1));
  const Longs scale = (__builtin_convertvector(alignment, Longs) + (1023 - kept_bits)) << 52;
  const Doubles result = sum * (Doubles)scale;
  const Longs magnitude = (Longs)result & 0x7fffffffffffffffLL;
  subnormal |= (magnitude < (Longs)(Doubles{} + 0x1p-126)) & (magnitude > 0);
  return __builtin_convertvector(result, HalfFloats);
}

void add_chunk(Decoded& d, int row, int first, float (&c)[8]) {
  const Ints bits = load<Ints>(c);
  const Ints e = (bits >> 23) & 255, fraction = bits & 0x7fffff, subnormal = e == 0;
  d.special |= e == 255;
  const Ints magnitude = fraction | (~subnormal & 0x800000);
  const Ints exponent = magnitude == 0 ? all(zero_exponent) : e - subnormal - 127;
  const int* a_exponent = d.a_exponent[row];

  Ints alignment = larger_of(exponent, all(lowest_alignment));
#pragma GCC unroll 16
  for (int k = first; k < first + chunk; ++k)
    alignment = larger_of(alignment, d.b_exponent[k] + a_exponent[k]);

  const Ints sign = bits >> 31, fits = all(31), below = alignment - exponent;
  // Two sums, so that neither overflows: a term is below 2^(kept_bits + 2).
  Ints low = (((magnitude << (kept_bits - 23)) >> (below < fits ? below : fits)) ^ sign) - sign;
  Ints high = {};
#pragma GCC unroll 16
  for (int k = first; k < first + chunk; ++k) {
    const Ints term = shift_toward_zero(product(all(d.a[row][k]), d.b[k]),
                                        (alignment - a_exponent[k]) - d.b_exponent[k]);
    if (k - first < chunk / 2) low += term;
    else high += term;
  }
  for (int half = 0; half < 2; ++half) {
    const auto part = [half](const Ints& v) {
      return load<HalfInts>(reinterpret_cast<const char*>(&v) + 16 * half);
    };
    const HalfFloats sum = normalise(part(low), part(high), part(alignment), d.subnormal);
    std::memcpy(c + 4 * half, &sum, sizeof sum);
  }
}

// Rows beyond the query group are zero; often they are most of a tile.
bool is_zero(const u16 (&row)[16]) {
  u64 words[4];
  std::memcpy(words, row, sizeof words);
  return ((words[0] | words[1] | words[2] | words[3]) & 0x7fff7fff7fff7fff) == 0;
}
void add_nothing(Decoded& d, float (&c)[8]) {
  d.special |= ((load<Ints>(c) >> 23) & 255) == 255;
  for (float& x : c) x = x + 0.f;  // -0 becomes +0
}

bool any(Longs v) { return (v[0] | v[1] | v[2] | v[3]) != 0; }

}  // namespace

template <class Format> void multiply_accumulate(Fragments& f) {
  Decoded d;
  decode<Format>(f, d);
  alignas(32) float sum[16][8];
  std::memcpy(sum, f.c, sizeof sum);
  for (int row = 0; row < 16; ++row) {
    if (is_zero(f.a[row])) {
      add_nothing(d, sum[row]);
      continue;
    }
    for (int k = 0; k < 16; k += chunk) add_chunk(d, row, k, sum[row]);
  }
  if (any((Longs)d.special | d.subnormal)) {
    multiply_term_by_term<Format>(f);
  } else {
    std::memcpy(f.c, sum, sizeof sum);
  }
}

template void multiply_accumulate<F16>(Fragments&);
template void multiply_accumulate<Bf16>(Fragments&);

// Adds n products of one tile each to c: a [n][16][16], b [n][16][8], c [n][16][8].
extern "C" LAB_EXPORT void lab_tensor_core(const u16* a, const u16* b, float* c, long long n,
                                           int is_bf16) {
  for (long long i = 0; i < n; ++i) {
    Fragments f;
    std::memcpy(f.a, a + i * 256, sizeof f.a);
    std::memcpy(f.b, b + i * 128, sizeof f.b);
    std::memcpy(f.c, c + i * 128, sizeof f.c);
    if (is_bf16 != 0) multiply_accumulate<Bf16>(f);
    else multiply_accumulate<F16>(f);
    std::memcpy(c + i * 128, f.c, sizeof f.c);
  }
}

}  // namespace lab::host
