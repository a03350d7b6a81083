"""What a tensor core computes, bit for bit: mma.sync and wgmma on 8-, 16- and 19-bit inputs.

One step is d = c + sum of a_k b_k over a chunk of K. Every product is exact. All terms, c too, are
aligned to the largest exponent among them, cut off toward zero after `fraction_bits` bits, and
added as integers; the sum is cut to fp32 (or rounded to fp16). Longer K chains d into c.

The lab has run its probes on sm_90 alone; the constants of other architectures come from the
literature named below. The models of sm_70, sm_80, sm_89, sm_90 and of mma.sync on sm_100 give all
outputs that others have published of eight GPUs (test_public_records.py). The lab knows no
record of sm_75 and sm_120, of 8-bit inputs by tcgen05, of fp16 sums of 8-bit inputs by wgmma, and
of e4m3 times e5m2. This module has no model of e4m3 times e5m2 by mma.sync on sm_90 and sm_100, of
4- and 6-bit formats, and of block scales.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labkernels import formats
from labkernels.numerics import rounding
from labkernels.numerics.arrays import Array
from labkernels.units import require_choice


@dataclass(frozen=True)
class Unit:
    """The constants of one generation of tensor cores, for one input width.

    Units: fraction_bits, out_fraction_bits and exponents count bits; chunk counts products added in
    one step. lowest_exponent_fp32 and lowest_exponent_fp16, by the accumulator's format, are the
    floors of the alignment: terms that are all smaller are aligned to 2^floor.
    Source: MMA-Sim, arXiv 2511.10909; Khattak & Mikaitis, arXiv 2512.07004, whose records of an
    A100, A2, Ada, L40S, B200, H100, H200 and V100 are public; sm_90 probed here.
    """

    fraction_bits: int
    chunk: int
    lowest_exponent_fp32: int
    lowest_exponent_fp16: int
    out_fraction_bits: int = 23  # bits of the fp32 output: 8-bit inputs fill only 13


# The floors of sm_70 and sm_75 are assumed, at the lowest exponent of fp32; those of sm_120 are
# assumed to be sm_100's. A result shows a floor only if all of its terms lie below 2^-126.
_VOLTA = Unit(23, 4, -126, -126)
_TURING = Unit(24, 8, -126, -126)  # of m16n8k8
_AMPERE = Unit(24, 8, -132, -20)
_HOPPER = Unit(25, 16, -133, -21)
_ADA_FP8 = replace(_AMPERE, fraction_bits=13, chunk=16, out_fraction_bits=13)
_HOPPER_FP8 = replace(_HOPPER, fraction_bits=13, chunk=32, out_fraction_bits=13)  # of wgmma
_BLACKWELL_FP8 = replace(_HOPPER, chunk=32)  # of tcgen05 on sm_100, of mma.sync on sm_120

EIGHT_BITS = ("e4m3", "e5m2")
INPUTS = ("fp16", "bf16", "tf32", "e4m3", "e5m2")
OUTPUTS = ("fp32", "fp16")
_DTYPES: dict[str, Any] = {"fp32": np.float32, "fp16": np.float16}
_AMPERE_UNITS = {"fp16": _AMPERE, "bf16": _AMPERE, "tf32": replace(_AMPERE, chunk=4)}
_HOPPER_UNITS = {"fp16": _HOPPER, "bf16": _HOPPER, "tf32": replace(_HOPPER, chunk=8)}
UNITS = {
    "sm_70": {"fp16": _VOLTA},
    "sm_75": {"fp16": _TURING},
    "sm_80": _AMPERE_UNITS,
    "sm_89": _AMPERE_UNITS | {"e4m3": _ADA_FP8, "e5m2": _ADA_FP8},
    "sm_90": _HOPPER_UNITS | {"e4m3": _HOPPER_FP8, "e5m2": _HOPPER_FP8},
    "sm_100": _HOPPER_UNITS | dict.fromkeys(EIGHT_BITS, _BLACKWELL_FP8),
    "sm_120": _HOPPER_UNITS | dict.fromkeys(EIGHT_BITS, _BLACKWELL_FP8),
}

# mma.sync of sm_90 and sm_100 has no unit for 8 bits: it adds two of every four products first.
WIDENED_FIRST = tuple(k % 4 < 2 for k in range(32))

_NO_TERM = -8192  # exponent of a zero: the sum of two of them still fits int16
_BLOCK_ELEMENTS = 1 << 14  # outputs per block of work: their float64 planes stay in the L2 cache


def unit_of(arch: str, fmt: str) -> Unit:
    """Return the unit of an architecture that multiplies inputs of this format.

    Raises: ValueError for an unknown name, or where no model of the unit is known.
    """
    require_choice("arch", arch, UNITS)
    require_choice("fmt", fmt, INPUTS)
    if fmt not in UNITS[arch]:
        known = ", ".join(UNITS[arch])
        raise ValueError(f"fmt = {fmt!r} on {arch}: no model is known, allowed: {known}")
    return UNITS[arch][fmt]


def matmul(
    a: Array | list[list[float]],
    b: Array | list[list[float]],
    c: Array | list[list[float]] | None = None,
    *,
    arch: str,
    fmt: str,
    b_fmt: str | None = None,
    out: str = "fp32",
    unit: Unit | None = None,
) -> np.ndarray:
    """Return a b + c as the architecture's tensor cores compute it, K in ascending chunks.

    b_fmt: the format of b, where one is e4m3 and the other e5m2. `unit` takes the place of the
    architecture's own, to show what would be different.

    For tf32, a and b are fp32 and lose the bits below 10 fraction bits, as in the unit. 8-bit
    products are those of mma.sync on sm_89 and sm_120, of wgmma on sm_90, and of tcgen05 on sm_100
    (for mma.sync on sm_90 and sm_100 see widened_matmul).

    Shapes: a [..., M, K], b [..., K, N], c broadcastable to [..., M, N] -> [..., M, N] float32
    (float16 for out="fp16"). Error: none, every bit is the hardware's; NaN is 0x7fffffff (0x7fff).
    Raises: ValueError for an unknown arch, fmt or out, a pair without a model, or inputs that the
    format cannot hold.
    """
    unit = unit_of(arch, fmt) if unit is None else unit
    b_fmt = fmt if b_fmt is None else b_fmt
    require_choice("b_fmt", b_fmt, EIGHT_BITS if fmt in EIGHT_BITS else (fmt,))
    require_choice("out", out, OUTPUTS)
    if out == "fp16" and fmt not in ("fp16", *EIGHT_BITS):
        raise ValueError(f"out = {out!r} with fmt = {fmt!r}, allowed: 'fp32'")
    a, b = _operand("a", a, fmt), _operand("b", b, b_fmt)
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        raise ValueError(f"a {a.shape}, b {b.shape}, allowed: [..., M, K] and [..., K, N]")
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*batch, a.shape[-2], b.shape[-1])
    start = np.zeros(shape) if c is None else np.broadcast_to(_operand("c", c, out), shape)
    flat_a, flat_b, flat_c = (
        np.broadcast_to(x, batch + x.shape[-2:]).reshape(math.prod(batch), *x.shape[-2:])
        for x in (a, b, start)
    )
    emins = formats.named(fmt).emin, formats.named(b_fmt).emin
    result = _by_blocks(flat_a, flat_b, flat_c, unit, emins, out)
    return _encode(result.reshape(shape), out)


def widened_matmul(
    a: Array, b: Array, c: Array | None = None, *, fmt: str, out: str = "fp32"
) -> np.ndarray:
    """Return a b + c as mma.sync computes it of 8-bit inputs on sm_90 and sm_100.

    The inputs become fp16. For every 32 of K, in ascending order, an fp16 unit adds the products of
    two terms in every four, then the products of the other two; its sums have the format `out`. The
    result is added to c in `out`, rounded to nearest.

    Shapes: a [..., M, K], b [..., K, N] with K a multiple of 32, c broadcastable to [..., M, N] ->
    float32 [..., M, N] (float16 for out="fp16"). Error: none; NaN is 0x7fffffff (0x7fff).
    Raises: ValueError for another fmt, out or K, or inputs that the format cannot hold.
    """
    require_choice("fmt", fmt, EIGHT_BITS)
    require_choice("out", out, OUTPUTS)
    a, b = _operand("a", a, fmt), _operand("b", b, fmt)
    if a.shape[-1] % len(WIDENED_FIRST) != 0:
        raise ValueError(f"a has K = {a.shape[-1]}, allowed: multiples of {len(WIDENED_FIRST)}")
    first = np.array(WIDENED_FIRST)
    total = _operand("c", np.zeros(()) if c is None else c, out).astype(_DTYPES[out])
    for k in range(0, a.shape[-1], len(first)):
        some: Any = None
        for part in (np.flatnonzero(first), np.flatnonzero(~first)):
            part = part + k
            halves = a[..., part], b[..., part, :]
            some = matmul(*halves, some, arch="sm_90", fmt="fp16", out=out)
        with np.errstate(invalid="ignore", over="ignore"):
            total = total + some
    return _encode(total.astype(np.float64), out)


def _by_blocks(
    a: Array, b: Array, acc: Array, unit: Unit, emins: tuple[int, int], out: str
) -> np.ndarray:
    """Run the chain over blocks of batches and rows that fit the cache. Shapes: [batch, ., .]."""
    result = np.array(acc, dtype=np.float64)
    n_batch, n_rows, n_cols = result.shape
    rows = max(1, min(n_rows, _BLOCK_ELEMENTS // max(1, n_cols)))
    batches = max(1, _BLOCK_ELEMENTS // max(1, rows * n_cols))
    exp_a, exp_b = _exponents(a, emins[0]), _exponents(b, emins[1])
    for first in range(0, n_batch, batches):
        some = slice(first, first + batches)
        for row in range(0, n_rows, rows):
            here = some, slice(row, row + rows)
            result[here] = _chain(
                (a[here], b[some]), (exp_a[here], exp_b[some]), result[here], unit, out
            )
    return result


def _chain(
    values: tuple[Array, Array], exponents: tuple[Array, Array], acc: Array, unit: Unit, out: str
) -> np.ndarray:
    """Fold K into the accumulators chunk by chunk."""
    (a, b), (exp_a, exp_b) = values, exponents
    for k in range(0, a.shape[-1], unit.chunk):
        ks = slice(k, k + unit.chunk)
        acc = _block_fma(
            (a[..., ks], b[..., ks, :]), (exp_a[..., ks], exp_b[..., ks, :]), acc, unit, out
        )
    return acc


def _block_fma(
    values: tuple[Array, Array], exponents: tuple[Array, Array], acc: Array, unit: Unit, out: str
) -> np.ndarray:
    """Return one step: align every term to the largest exponent, cut and add them, round once.

    An infinite or NaN operand goes through the float64 operations, which treat it as they should.
    """
    (a, b), (exp_a, exp_b) = values, exponents
    lowest = unit.lowest_exponent_fp32 if out == "fp32" else unit.lowest_exponent_fp16
    largest = np.maximum(_exponents(acc, formats.named(out).emin), np.int16(lowest))
    exp_product = np.empty_like(largest)
    columns = range(a.shape[-1])
    for k in columns:
        np.add(exp_a[..., k, None], exp_b[..., None, k, :], out=exp_product)
        np.maximum(largest, exp_product, out=largest)
    shift = largest.astype(np.int64) - unit.fraction_bits
    scale = ((1023 - shift) << 52).view(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):  # inf * 0 and inf - inf are NaN
        total = np.trunc(acc * scale)
        term = np.empty_like(total)
        for k in columns:
            np.multiply(a[..., k, None], b[..., None, k, :], out=term)
            np.multiply(term, scale, out=term)
            np.trunc(term, out=term)
            np.add(total, term, out=total)
        total += 0.0  # a sum of nothing but negative zeros is +0
        exact = total * ((1023 + shift) << 52).view(np.float64)
        return _cut(exact, unit.out_fraction_bits) if out == "fp32" else _round_to_fp16(exact)


def _cut(x: np.ndarray, fraction_bits: int) -> np.ndarray:
    """Return float64 cut toward zero to fp32's exponents and a number of fraction bits.

    Numbers from 2^128 on become inf.
    """
    cut = (x.view(np.int64) & -(np.int64(1) << (52 - fraction_bits))).view(np.float64)
    magnitude = np.abs(x)
    special = ~(magnitude < 2.0**128) | (magnitude < 2.0**-126)
    if special.any():
        steps_per_one = 2.0 ** (126 + fraction_bits)
        with np.errstate(invalid="ignore"):
            tiny = np.trunc(x * steps_per_one) / steps_per_one + 0.0  # -0 becomes +0
        cut = np.where(magnitude < 2.0**-126, tiny, cut)
        cut = np.where(magnitude >= 2.0**128, np.copysign(np.inf, x), cut)
        cut = np.where(np.isnan(x), np.nan, cut)
    return cut


def _round_to_fp16(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float16).astype(np.float64) + 0.0  # -0 becomes +0


def _exponents(x: np.ndarray, emin: int) -> np.ndarray:
    """Return exponents, at least emin; that of zero is so low that it never is the largest.

    Inf and NaN get emin, because they decide the result whatever the alignment is.
    """
    field = (x.view(np.int64) >> 52).astype(np.int16) & np.int16(0x7FF)
    field[field == 0x7FF] = 0
    exponent = np.maximum(field - np.int16(1023), np.int16(emin))
    exponent[x == 0] = _NO_TERM
    return exponent


def _operand(name: str, x: Array | list[list[float]], fmt: str) -> np.ndarray:
    x = np.asarray(x)
    stored = "fp32" if fmt == "tf32" else fmt
    if not rounding.is_representable(x, stored).all():
        raise ValueError(
            f"{name} holds values that are not {stored}, allowed: round_to({name}, fmt)"
        )
    with np.errstate(invalid="ignore"):  # a signalling NaN
        if fmt == "tf32":  # a NaN with only bits that the unit does not read becomes inf
            words = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
            x = (words & np.uint32(0xFFFFE000)).view(np.float32)
        return np.ascontiguousarray(x, dtype=np.float64)


def _encode(x: np.ndarray, out: str) -> np.ndarray:
    """Return the result in its own type, with the NaN that the hardware writes."""
    word, nan = (np.uint32, 0x7FFFFFFF) if out == "fp32" else (np.uint16, 0x7FFF)
    y = x.astype(_DTYPES[out])
    y.view(word)[np.isnan(y)] = nan
    return y
