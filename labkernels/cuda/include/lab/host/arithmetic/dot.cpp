// Every product of a chunk is exact. All terms, c too, are aligned to the largest exponent, cut
// toward zero after `kept_bits` bits, and added as integers. The sum is cut to `out_fraction_bits`.
// numerics/emulation/tensor_core.py has the same constants.
#include "lab/host/arithmetic/dot.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lab/host/arithmetic/numbers.hpp"

namespace lab::host {
namespace {

struct Format {
  int fraction_bits, exponent_bits;
  bool has_infinity;
};
constexpr Format formats[] = {{10, 5, true}, {7, 8, true}, {3, 4, false}};

struct Unit { int kept_bits, chunk, lowest_alignment, out_fraction_bits; };
constexpr Unit unit_of(Input input) {
#if LAB_ARCH >= 90
  return input == Input::e4m3 ? Unit{13, 32, -133, 13} : Unit{25, 16, -133, 23};
#else
  (void)input;  // there is no wgmma, and mma.sync takes 16 bits
  return {24, 8, -132, 23};
#endif
}

constexpr int point = 30;  // bits below the point of a term's significand

struct Number {
  i64 significand;
  int exponent, fraction_bits;
  bool negative, infinite, nan;
};

Number decode(Format format, u32 bits) {
  const u32 one = 1u << format.fraction_bits, top = (1u << format.exponent_bits) - 1;
  const u32 fraction = bits & (one - 1), e = (bits >> format.fraction_bits) & top;
  const bool special = e == top && (format.has_infinity || fraction == one - 1);
  return {e == 0 ? fraction : fraction | one,
          std::max(static_cast<int>(e), 1) - static_cast<int>(top / 2),
          format.fraction_bits,
          ((bits >> (format.fraction_bits + format.exponent_bits)) & 1) != 0,
          special && format.has_infinity && fraction == 0,
          special && !(format.has_infinity && fraction == 0)};
}

double cut(double x, int fraction_bits) {
  const double magnitude = std::abs(x);
  if (magnitude >= 0x1p128) return std::copysign(INFINITY, x);
  if (magnitude < 0x1p-126) {
    const int steps = 126 + fraction_bits;
    return std::ldexp(std::trunc(std::ldexp(x, steps)), -steps) + 0.;  // cut to nothing: +0
  }
  return std::bit_cast<double>(std::bit_cast<u64>(x) & ~0ull << (52 - fraction_bits));
}

// The sum of one chunk and c, which may be infinite or NaN.
class Sum {
 public:
  void add(const Number& x, const Number& y) {
    const bool minus = x.negative != y.negative, zero = x.significand == 0 || y.significand == 0;
    nan_ |= x.nan || y.nan || ((x.infinite || y.infinite) && zero);
    if (x.infinite || y.infinite) (minus ? minus_ : plus_) = true;
    if (zero) return;
    const int spare = point - x.fraction_bits - y.fraction_bits;
    const i64 product = x.significand * y.significand << spare;
    add_term(minus ? -product : product, x.exponent + y.exponent);
  }
  void add(float c) {
    const Number x = decode({23, 8, true}, as_bits(c));
    nan_ |= x.nan;
    if (x.infinite) (x.negative ? minus_ : plus_) = true;
    const i64 significand = x.significand << (point - x.fraction_bits);
    if (x.significand != 0) add_term(x.negative ? -significand : significand, x.exponent);
  }
  double result(const Unit& unit) const {
    if (nan_ || (plus_ && minus_)) return NAN;
    if (plus_ || minus_) return plus_ ? INFINITY : -INFINITY;
    int alignment = unit.lowest_alignment;
    for (int i = 0; i < n_; ++i) alignment = std::max(alignment, exponents_[i]);
    i64 sum = 0;
    for (int i = 0; i < n_; ++i) {
      const int below = std::min(alignment - exponents_[i] + point - unit.kept_bits, 63);
      const i64 magnitude = std::abs(terms_[i]) >> below;
      sum += terms_[i] < 0 ? -magnitude : magnitude;
    }
    const double exact = std::ldexp(static_cast<double>(sum), alignment - unit.kept_bits);
    return cut(exact, unit.out_fraction_bits);
  }

 private:
  void add_term(i64 term, int exponent) {
    terms_[n_] = term;
    exponents_[n_++] = exponent;
  }
  i64 terms_[33];
  int exponents_[33], n_ = 0;
  bool nan_ = false, plus_ = false, minus_ = false;
};

}  // namespace

float dot(Input input, const u32* a, const u32* b, int n, float c) {
  const Format format = formats[static_cast<int>(input)];
  const Unit unit = unit_of(input);
  double total = c;
  for (int first = 0; first < n; first += unit.chunk) {
    Sum sum;
    for (int k = first; k < std::min(first + unit.chunk, n); ++k)
      sum.add(decode(format, a[k]), decode(format, b[k]));
    sum.add(static_cast<float>(total));
    total = sum.result(unit);
  }
  return std::isnan(total) ? as_float(canonical_nan) : static_cast<float>(total);
}

// Computes n tiles c += a b: a [n][rows][k], b [n][k][columns], encodings in words; c
// [n][rows][columns].
extern "C" LAB_EXPORT void lab_dot(const u32* a, const u32* b, float* c, const int (&shape)[4],
                                   int input) {
  const auto [n, rows, columns, k] = shape;
  std::vector<u32> column(static_cast<std::size_t>(k));
  for (int tile = 0; tile < n; ++tile, a += rows * k, b += k * columns, c += rows * columns)
    for (int j = 0; j < columns; ++j) {
      for (int i = 0; i < k; ++i) column[static_cast<std::size_t>(i)] = b[i * columns + j];
      for (int row = 0; row < rows; ++row) {
        float& sum = c[row * columns + j];
        sum = dot(static_cast<Input>(input), a + row * k, column.data(), k, sum);
      }
    }
}

}  // namespace lab::host
