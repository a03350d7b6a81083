// ex2.approx.ftz.f32, bit for bit. The hardware drops what |x| has below 2^-23, toward zero, and
// looks 2^fraction up: in one table for negative x, in another for the rest.
#include "lab/host/numbers.hpp"
#include "lab/host/report.hpp"

namespace lab::host {
namespace {

// 2^23 floats each, as bits: table[f] = ex2(+-f / 2^23), in [1, 2) and in (1/2, 1].
const u32* positive_table = nullptr;
const u32* negative_table = nullptr;

}  // namespace

extern "C" LAB_EXPORT void lab_set_ex2_tables(const u32* positive, const u32* negative) {
  positive_table = positive;
  negative_table = negative;
}

extern "C" LAB_EXPORT float lab_ex2_approx(float x) {
  if (negative_table == nullptr) [[unlikely]]
    fail("ex2_approx needs its tables of the hardware's exponential, which are not there; "
         "the policies poly3 and poly5 need none");
  const u32 bits = as_bits(x), magnitude = bits & 0x7fffffff;
  const bool negative = bits != magnitude;
  if (magnitude > 0x7f800000) return as_float(canonical_nan);
  if (magnitude >= as_bits(128.f)) return negative ? 0.f : as_float(0x7f800000);
  const auto fixed = static_cast<u32>(as_float(magnitude) * 0x1p23f);  // exact, then truncated
  const u32 n = fixed >> 23, f = fixed & 0x7fffff;
  if (!negative) {
    const u32 exponent = (positive_table[f] >> 23) + n;
    return as_float(exponent >= 255 ? 0x7f800000 : positive_table[f] + (n << 23));
  }
  const u32 value = negative_table[f];
  return (value >> 23) <= n ? 0.f : as_float(value - (n << 23));  // below 2^-126: zero
}

}  // namespace lab::host
