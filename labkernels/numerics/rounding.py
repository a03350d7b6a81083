"""Rounding to the formats that kernels use, their bits, and an exact float32 fused multiply-add."""

import numpy as np

from labkernels import formats
from labkernels.numerics.arrays import Array, float64, namespace
from labkernels.units import require_choice

MODES = ("rne", "rz")
# inf and NaN, also signalling NaN, are valid inputs with documented results: no warning is due
_quiet = np.errstate(over="ignore", invalid="ignore")
_BITS_FORMATS = ("fp16", "bf16")
_EXPONENT = 0x7FF << 52  # the bits of a float64's exponent


@_quiet
def round_to(x: Array, fmt: str, mode: str = "rne") -> np.ndarray:
    """Return nearest (rne) or next-toward-zero (rz) values of the format, in float32 or float64.

    Shapes: as x; float32 where x is float16 or float32, else float64.
    Error: exact, subnormals included. Overflow gives inf (rne) or the largest value (rz); a format
    without inf saturates, as cvt.satfinite does. NaN stays NaN.
    Raises: ValueError for an unknown format or mode.
    """
    target = formats.named(fmt)
    require_choice("mode", mode, MODES)
    x = np.asarray(x)
    dtype = np.float32 if x.dtype in (np.float16, np.float32) else np.float64
    wide = x.astype(np.float64)
    if fmt == "fp64":
        return wide.astype(dtype)
    steps = quantum(wide, fmt)
    y = (np.rint if mode == "rne" else np.trunc)(wide / steps) * steps
    too_large = np.abs(y) > target.max
    if mode == "rz" or not target.has_inf:
        if target.has_inf:
            too_large &= np.isfinite(wide)
        y = np.where(too_large, np.copysign(target.max, wide), y)
    else:
        y = np.where(too_large, np.copysign(np.inf, wide), y)
    return y.astype(dtype)


def quantum(x: Array, fmt: str, *, narrow: bool = False) -> np.ndarray:
    """Return the spacing of the format's values in x's binade, as if exponents had no upper limit.

    Units: those of x. Below the smallest normal number the spacing is the smallest subnormal one.
    narrow: x and the spacing are float32, and no spacing is below float32's smallest normal number.
    """
    target = formats.named(fmt)
    if narrow:
        xp = namespace(x)
        least = max(target.emin, target.fraction_bits - 126) + 127 << 23
        power = (x.view(xp.int32) & 0xFF << 23).clip(least)
        return (power - (target.fraction_bits << 23)).view(xp.float32)
    shape = x.shape if hasattr(x, "device") else np.shape(x)
    x = float64(x if hasattr(x, "device") else np.asarray(x)).reshape(-1)
    xp = namespace(x)
    power = x.view(xp.int64) & _EXPONENT
    least = max(target.emin, target.fraction_bits - 1022) + 1023 << 52
    # np.clip takes longer to find its types than to compare
    power = np.maximum(power, least) if xp is np else power.clip(least)
    return (power - (target.fraction_bits << 52)).view(xp.float64).reshape(shape)


def lowest_bit(x: Array) -> np.ndarray:
    """Return the value of the lowest set bit of each normal number; inf for 0.

    Units: those of x. A number is a multiple of its lowest bit and of no larger power of two.
    """
    x = np.ascontiguousarray(x, dtype=np.float64)
    bits = x.view(np.int64)
    implicit = np.int64(1 << 52)
    fraction = (bits & (implicit - 1)) | implicit
    power = (bits & np.int64(0x7FF << 52)).view(np.float64)
    return np.where(x == 0, np.inf, power * ((fraction & -fraction) * 2.0**-52))


def mean_relative_error(fmt: str) -> float:
    """Return mean error over mean number of rounding to nearest, for numbers over many binades.

    It is -u^2 / (8 ln 2) and not 0, because numbers up to half a wide spacing above a power of two
    are rounded to it, but only numbers up to half a narrow spacing below. Error: 1 % where the
    logarithms are spread smoothly.
    """
    return -(formats.named(fmt).unit_roundoff ** 2) / (8 * np.log(2.0))


def is_representable(x: Array, fmt: str) -> np.ndarray:
    """Return True where x is a value of the format; NaN and inf count as values."""
    x = np.asarray(x)
    return (round_to(x, fmt) == x) | np.isnan(x)


@_quiet
def to_bits(x: Array, fmt: str) -> np.ndarray:
    """Return the uint16 encoding of x rounded to nearest even; NaN becomes 0x7fff, as by cvt.rn.

    Raises: ValueError unless fmt is fp16 or bf16.
    """
    require_choice("fmt", fmt, _BITS_FORMATS)
    y = np.atleast_1d(round_to(x, fmt)).astype(np.float32)
    if fmt == "fp16":
        bits = y.astype(np.float16).view(np.uint16)
    else:
        bits = (y.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(y), np.uint16(0x7FFF), bits).reshape(np.shape(x))


@_quiet
def from_bits(bits: Array, fmt: str) -> np.ndarray:
    """Return the exact float32 values of encodings; the unused bits of tf32 are kept.

    Raises: ValueError unless fmt is fp16, bf16, tf32, e4m3 or e5m2, and bits is an array of
    unsigned integers of the format's size.
    """
    require_choice("fmt", fmt, (*_BITS_FORMATS, "tf32", "e4m3", "e5m2"))
    bits = np.asarray(bits)
    if bits.dtype != f"u{formats.named(fmt).bytes}":
        raise ValueError(f"bits.dtype = {bits.dtype}, allowed: uint{formats.named(fmt).bits}")
    if fmt == "tf32":
        return bits.view(np.float32)
    if fmt == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if fmt == "e4m3":
        field, fraction = bits >> 3 & 15, (bits & 7).astype(np.float32)
        magnitude = np.ldexp(fraction + 8 * (field > 0), np.maximum(field, 1).astype(int) - 10)
        magnitude = np.where(bits & 127 == 127, np.nan, magnitude)
        return np.copysign(magnitude, np.where(bits & 128, -1, 1)).astype(np.float32)
    halves = bits if fmt == "fp16" else bits.astype(np.uint16) << np.uint16(8)
    return halves.view(np.float16).astype(np.float32)


@_quiet
def fma_rn(a: Array, b: Array | float, c: Array) -> np.ndarray:
    """Return the float32 of a * b + c, rounded once to nearest even, as the fma instruction does.

    Error: exact. The product is exact in float64; the sum is rounded to odd there, so that the
    second rounding, to float32, gives what a single rounding would.
    Source: Boldo & Melquiond 2008, "Emulation of FMA and correctly rounded sums".
    """
    a, b, c = (np.asarray(x, dtype=np.float32).astype(np.float64) for x in (a, b, c))
    product = a * b
    total = np.asarray(product + c)
    part = total - product
    rest = (product - (total - part)) + (c - part)
    bits = np.atleast_1d(total).view(np.int64).reshape(total.shape)
    inexact = np.isfinite(total) & (rest != 0) & ((bits & 1) == 0)
    outward = (rest > 0) == (total > 0)
    bits = bits + np.where(inexact, np.where(outward, 1, -1), 0)
    odd = np.atleast_1d(bits).view(np.float64).reshape(total.shape)
    return odd.astype(np.float32)


def p_parts(p: np.ndarray, p_format: str) -> list[np.ndarray]:
    """Return P as the tensor cores get it: rounded, or as hi + lo."""
    fmt = p_format.removesuffix("x2")
    high = round_to(p, fmt)
    return [high, round_to(p - high, fmt)] if p_format.endswith("x2") else [high]
