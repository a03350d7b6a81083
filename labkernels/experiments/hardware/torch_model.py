"""The arithmetic of numerics.emulation.tensor_core in int64 torch operations, fast on a GPU."""

import torch

from labkernels import formats
from labkernels.numerics.emulation.tensor_core import WIDENED_FIRST, Unit

_SIGNED = {8: torch.int8, 16: torch.int16, 32: torch.int32}
_NO_TERM = -8192  # exponent of a zero: lower than any exponent of a number or product
_POINT = 27  # bits after the point of a term's significand


def tile_products(a, b, c, unit: Unit, fmt: str):
    """Return c + a b as the unit computes it, K in ascending chunks; NaN is 0x7fffffff (0x7fff).

    Shapes: tensors of the format (tf32: float32) [n, M, K] and [n, K, N], float32 or float16
    [n, M, N] -> as c. Error: none, every bit equals the unit's.
    """
    for k in range(0, a.shape[2], unit.chunk):
        ks = slice(k, k + unit.chunk)
        c = _add_chunk(a[:, :, ks], b[:, ks], c, unit, fmt)
    return c


def widened_products(a, b, c, unit: Unit):
    """Return c + a b as mma.sync of sm_90 computes it for 8-bit inputs, on a unit for fp16.

    Shapes: as for tile_products, with K = 32. Error: none.
    """
    first = torch.tensor(WIDENED_FIRST, device=a.device)
    total = torch.zeros_like(c)
    for part in (first, ~first):
        halves = a[:, :, part].half(), b[:, part].half()
        total = tile_products(*halves, total, unit, "fp16")
    return _canonical(total + c)


def _add_chunk(a, b, c, unit: Unit, fmt: str):
    """Compute one step in fixed point: significands aligned, cut toward zero, added as integers."""
    half = c.dtype == torch.float16
    out = "fp16" if half else "fp32"
    fraction_bits = 2 * formats.named(fmt).fraction_bits
    (sig_a, exp_a), (sig_b, exp_b), (sig_c, exp_c) = _split(a, fmt), _split(b, fmt), _split(c, out)
    lowest = unit.lowest_exponent_fp16 if half else unit.lowest_exponent_fp32
    alignment = exp_c.clamp(min=lowest)
    columns = range(a.shape[2])
    for k in columns:
        alignment = torch.maximum(alignment, exp_a[:, :, k, None] + exp_b[:, None, k])
    spare = _POINT - unit.fraction_bits
    total = _cut(sig_c << (_POINT - formats.named(out).fraction_bits), alignment - exp_c + spare)
    for k in columns:
        product = (sig_a[:, :, k, None] * sig_b[:, None, k]) << (_POINT - fraction_bits)
        below = alignment - exp_a[:, :, k, None] - exp_b[:, None, k]
        total += _cut(product, below + spare)
    shift = ((alignment - unit.fraction_bits + 1023) << 52).view(torch.float64)
    exact = total.double() * shift  # the sum of a few terms is exact in float64
    result = _to_float16(exact) if half else _to_float32(exact, unit.out_fraction_bits)
    return _with_specials(result, _values(a, fmt), _values(b, fmt), c)


def _split(x, fmt: str):
    """Return the signed integer significand and the exponent; subnormals have the lowest one."""
    target = formats.named(fmt)
    used_bits = 1 + target.exponent_bits + target.fraction_bits
    bits, one = (
        x.view(_SIGNED[target.bits]).long() >> target.bits - used_bits,
        1 << target.fraction_bits,
    )
    field = (bits >> target.fraction_bits) & ((1 << target.exponent_bits) - 1)
    fraction = bits & (one - 1)
    magnitude = torch.where(field == 0, fraction, fraction | one)
    exponent = field.clamp(min=1) - 1 + target.emin
    exponent = torch.where(magnitude == 0, _NO_TERM, exponent)
    return torch.where(bits < 0, -magnitude, magnitude), exponent


def _values(x, fmt: str):
    """Return the inputs as the unit reads them, in float32; tf32 loses the lowest 13 bits."""
    if fmt != "tf32":
        return x.float()
    return (x.view(torch.int32) & -(1 << 13)).view(torch.float32)


def _cut(value, n_bits):
    """Return integers divided by 2^n_bits and cut toward zero."""
    magnitude = value.abs() >> n_bits.clamp(max=62)
    return torch.where(value < 0, -magnitude, magnitude)


def _to_float32(exact, fraction_bits: int):
    """Return float64 cut toward zero to a number of fraction bits, as float32."""
    cut = (exact.view(torch.int64) & -(1 << 52 - fraction_bits)).view(torch.float64)
    steps = 2.0 ** (126 + fraction_bits)
    tiny = torch.trunc(exact * steps) / steps + 0.0  # a result cut to zero is +0
    cut = torch.where(exact.abs() < 2.0**-126, tiny, cut)
    return torch.where(exact.abs() < 2.0**128, cut, exact.sign() * float("inf")).float()


def _to_float16(exact):
    """Return float64 rounded once to float16, to nearest even."""
    exponent = torch.frexp(exact).exponent.long() - 1
    ulp = ((exponent.clamp(min=-14) - 10 + 1023) << 52).view(torch.float64)
    return (torch.round(exact / ulp) * ulp + 0.0).half()  # a result rounded to zero is +0


def _with_specials(result, a, b, c):
    """Return the result with infinities and NaN of float64 sums, where finite terms stay finite."""
    if all(bool(x.isfinite().all()) for x in (a, b, c)):
        return result
    exact = c.double()
    for k in range(a.shape[2]):
        exact = exact + a[:, :, k, None].double() * b[:, None, k].double()
    return _canonical(torch.where(exact.isfinite(), result, exact.to(result.dtype)))


def _canonical(x):
    """Return x with NaN as the hardware writes it: every bit set except the sign."""
    word = _SIGNED[8 * x.element_size()]
    nan = torch.tensor(torch.iinfo(word).max, dtype=word, device=x.device).view(x.dtype)
    return torch.where(x.isnan(), nan, x)
