// This is ex2.approx.ftz.f32, bit for bit: 64 parabolas in fixed point, as
// numerics/emulation/ex2_unit.py explains.
#include <array>

#include "lab/host/arithmetic/numbers.hpp"
#include "lab/host/machine/report.hpp"

namespace lab::host {
namespace {

constexpr int segments = 64, low_bits = 17, dropped_bits = 19;

// cuda/host/build.py writes these numbers, in this layout.
struct Parabolas {
  i64 bias;
  i64 c[segments][3];
};
const Parabolas* parabolas = nullptr;

// Returns the squares, in units of 2^19. Partial products below 2^19 are left out.
std::array<u16, 1 << low_bits> truncated_squares() {
  std::array<u16, 1 << low_bits> squares{};
  for (int i = 0; i < low_bits; ++i) {
    const u32 top = 1u << i;
    const int unseen = i < dropped_bits - 1 ? dropped_bits - 1 - i : 0;
    for (u32 rest = 0; rest < top; ++rest) {
      const u64 added = (static_cast<u64>(rest >> unseen) << (unseen + i + 1)) + (1ull << 2 * i);
      squares[top + rest] = static_cast<u16>(squares[rest] + (added >> dropped_bits));
    }
  }
  return squares;
}

const auto squares = truncated_squares();

u32 mantissa(u32 fraction) {
  const u32 low = fraction & ((1u << low_bits) - 1);
  const i64* c = parabolas->c[fraction >> low_bits];
  const i64 sum = (c[0] << 13) + c[1] * low + c[2] * squares[low] + parabolas->bias;
  return static_cast<u32>(sum >> 15);
}

}  // namespace

extern "C" LAB_EXPORT void lab_set_ex2(const void* coefficients) {
  parabolas = static_cast<const Parabolas*>(coefficients);
}

extern "C" LAB_EXPORT float lab_ex2_approx(float x) {
  if (parabolas == nullptr) [[unlikely]]
    fail("ex2_approx needs the coefficients of the hardware's exponential, which are not there; "
         "the policies poly3 and poly5 need none");
  const u32 bits = as_bits(x), magnitude = bits & 0x7fffffff;
  const bool negative = bits != magnitude;
  if (magnitude > 0x7f800000) return as_float(canonical_nan);
  if (magnitude >= as_bits(128.f)) return negative ? 0.f : as_float(0x7f800000);
  auto fixed = static_cast<int>(as_float(magnitude) * 0x1p23f);  // exact, then truncated
  if (negative) fixed = (fixed & 0x7fffff) == 0 ? -fixed : ~fixed;
  const int exponent = (fixed >> 23) + 127;
  if (exponent <= 0) return 0.f;  // below 2^-126
  return as_float((static_cast<u32>(exponent) << 23) + mantissa(fixed & 0x7fffff));
}

}  // namespace lab::host
