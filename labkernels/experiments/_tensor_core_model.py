"""The arithmetic of numerics.tensor_core once more, in int64 torch operations: fast on a GPU."""

import torch

from labkernels import formats
from labkernels.numerics.tensor_core import Unit

CANONICAL_NAN = 0x7FFFFFFF
_FORMATS = {torch.float16: "fp16", torch.bfloat16: "bf16"}
_NO_TERM = -8192  # exponent of a zero: below every other, and that of a product too


def tile_products(a, b, c, unit: Unit):
    """c + a b as the unit computes it, K in ascending chunks; NaN is 0x7fffffff.

    Shapes: float16 or bfloat16 [n, M, K] and [n, K, N], float32 [n, M, N] -> float32 [n, M, N].
    Error: none, every bit is the unit's.
    """
    for k in range(0, a.shape[2], unit.chunk):
        ks = slice(k, k + unit.chunk)
        c = _add_chunk(a[:, :, ks], b[:, ks], c, unit)
    return c


def _add_chunk(a, b, c, unit: Unit):
    """One step in fixed point: significands aligned, cut toward zero, and added as integers."""
    fraction_bits = 2 * formats.named(_FORMATS[a.dtype]).fraction_bits
    (sig_a, exp_a), (sig_b, exp_b), (sig_c, exp_c) = (_split(x) for x in (a, b, c))
    alignment = exp_c.clamp(min=unit.lowest_exponent_fp32)
    columns = range(a.shape[2])
    for k in columns:
        alignment = torch.maximum(alignment, exp_a[:, :, k, None] + exp_b[:, None, k])
    total = _cut(sig_c << 4, alignment - exp_c + (23 + 4 - unit.fraction_bits))
    for k in columns:
        product = (sig_a[:, :, k, None] * sig_b[:, None, k]) << (27 - fraction_bits)
        below = alignment - exp_a[:, :, k, None] - exp_b[:, None, k]
        total += _cut(product, below + (27 - unit.fraction_bits))
    result = _to_float32(total, alignment - unit.fraction_bits)
    return _with_specials(result, a, b, c)


def _split(x):
    """Signed significand, as an integer, and exponent; subnormals keep the lowest exponent."""
    word = torch.int32 if x.dtype == torch.float32 else torch.int16
    target = formats.named(_FORMATS.get(x.dtype, "fp32"))
    bits, one = x.view(word).long(), 1 << target.fraction_bits
    field = (bits >> target.fraction_bits) & ((1 << target.exponent_bits) - 1)
    fraction = bits & (one - 1)
    magnitude = torch.where(field == 0, fraction, fraction | one)
    exponent = field.clamp(min=1) - 1 + target.emin
    exponent = torch.where(magnitude == 0, _NO_TERM, exponent)
    return torch.where(bits < 0, -magnitude, magnitude), exponent


def _cut(value, n_bits):
    """An integer without its lowest bits, toward zero."""
    magnitude = value.abs() >> n_bits.clamp(max=62)
    return torch.where(value < 0, -magnitude, magnitude)


def _to_float32(total, exponent):
    """total 2^exponent, cut toward zero to float32; the sum of 17 terms is exact in float64."""
    exact = total.double() * ((exponent + 1023) << 52).view(torch.float64)
    cut = (exact.view(torch.int64) & -(1 << 29)).view(torch.float64)
    tiny = torch.trunc(exact * 2.0**149) * 2.0**-149 + 0.0  # cut to nothing: +0
    cut = torch.where(exact.abs() < 2.0**-126, tiny, cut)
    return torch.where(exact.abs() < 2.0**128, cut, exact.sign() * float("inf")).float()


def _with_specials(result, a, b, c):
    """Infinities and NaN by float64 sums, where finite terms cannot overflow."""
    if all(bool(x.isfinite().all()) for x in (a, b, c)):
        return result
    exact = c.double()
    for k in range(a.shape[2]):
        exact = exact + a[:, :, k, None].double() * b[:, None, k].double()
    result = torch.where(exact.isfinite(), result, exact.float())
    nan = torch.tensor(CANONICAL_NAN, dtype=torch.int32, device=result.device).view(torch.float32)
    return torch.where(exact.isnan(), nan, result)
