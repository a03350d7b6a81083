"""exp2 and log2 as the kernels compute them: by the hardware's unit or by FMA polynomials.

The polynomials are those of labkernels/cuda/include/lab/core/exp2.cuh, operation for operation.
"""

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.emulation import ex2_unit
from labkernels.numerics.rounding import fma_rn

_POLY3 = (5.500892922e-02, 2.422109544e-01, 6.932829022e-01, 1.0)
_POLY5 = (
    1.326472731e-03,
    9.671512991e-03,
    5.550733581e-02,
    2.402224243e-01,
    6.931470037e-01,
    1.0,
)
_SHIFTER = np.float32(12582912.0)


def exp2_mufu(x: Array) -> np.ndarray:
    """Return 2^x with the bits of ex2.approx.ftz.f32 on sm_90.

    Error: every bit is the hardware's; against 2^x, -2 to +1 ulp. A result below 2^-126 is +0.
    Source: measured on an H200 over all 2^32 inputs; other architectures may differ.
    """
    x = np.asarray(x, dtype=np.float32)
    # beyond 256 the result is 0 or inf already; NaN is put back at the end
    magnitude = np.where(np.isnan(x), 0, np.minimum(np.abs(x), np.float32(256)))
    steps = (magnitude.astype(np.float64) * ex2_unit.ENTRIES).astype(np.int64)
    below = np.signbit(x) & (steps % ex2_unit.ENTRIES != 0)
    steps = np.where(below, ~steps, np.where(np.signbit(x), -steps, steps))
    whole, fraction = steps >> ex2_unit.FRACTION_BITS, steps & (ex2_unit.ENTRIES - 1)
    bits = ((whole + 127) << ex2_unit.FRACTION_BITS) + ex2_unit.load().mantissa(fraction)
    bits = np.clip(np.where(bits < 1 << 23, 0, bits), 0, 0x7F800000)
    return np.where(np.isnan(x), 0x7FFFFFFF, bits).astype(np.uint32).view(np.float32)


def exp2_poly3(x: Array) -> np.ndarray:
    """Return 2^x from three FMAs, float32 for x up to 127; 0 for x below -126.

    Error: relative, at most 1.02e-4; exact at integers.
    """
    return _exp2_poly(x, _POLY3)


def exp2_poly5(x: Array) -> np.ndarray:
    """Return 2^x from five FMAs, float32 for x up to 127; 0 for x below -126.

    Error: relative, at most 1.7e-7; exact at integers.
    """
    return _exp2_poly(x, _POLY5)


def _exp2_poly(x: Array, coefficients: tuple[float, ...]) -> np.ndarray:
    x = np.asarray(x, dtype=np.float32)
    clamped = np.fmax(x, np.float32(-126))
    with np.errstate(invalid="ignore"):
        t = clamped + _SHIFTER
        p = _horner(coefficients, clamped - (t - _SHIFTER))
    bits = np.atleast_1d(p).view(np.uint32) + (np.atleast_1d(t).view(np.uint32) << np.uint32(23))
    y = np.where(np.isnan(x), x, bits.view(np.float32).reshape(x.shape))
    return np.where(x < np.float32(-126), np.float32(0), y)


def _horner(coefficients: tuple[float, ...], x: np.ndarray) -> np.ndarray:
    p = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        p = fma_rn(p, x, np.full_like(x, coefficient))
    return p


EXP2 = {"mufu": exp2_mufu, "poly3": exp2_poly3, "poly5": exp2_poly5}
