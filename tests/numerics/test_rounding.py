import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkernels import formats
from labkernels.numerics import rounding

ALL_BITS = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def exact_round(x: float, fmt: str, mode: str) -> float:
    """Round a finite number within the format's range, by rational arithmetic."""
    target = formats.named(fmt)
    if x == 0:
        return x
    exponent = max(math.frexp(x)[1] - 1, target.emin)
    step = Fraction(2) ** (exponent - target.fraction_bits)
    ratio = Fraction(x) / step
    return float((round(ratio) if mode == "rne" else math.trunc(ratio)) * step)


@pytest.mark.parametrize("fmt", ["fp16", "bf16"])
def test_every_encoding_survives_a_round_trip(fmt):
    values = rounding.from_bits(ALL_BITS, fmt)
    back = rounding.to_bits(values, fmt)
    nan = np.isnan(values)
    assert np.array_equal(back[~nan], ALL_BITS[~nan])
    assert set(back[nan]) == {0x7FFF}
    assert rounding.is_representable(values, fmt).all()


@pytest.mark.parametrize("fmt", ["fp16", "bf16"])
def test_between_neighbours_nearest_even_and_toward_zero(fmt):
    largest = rounding.to_bits(np.float32(formats.named(fmt).max), fmt)
    bits = np.arange(0, int(largest), dtype=np.uint16)
    low = rounding.from_bits(bits, fmt).astype(np.float64)
    high = rounding.from_bits(bits + np.uint16(1), fmt).astype(np.float64)
    middle = (low + high) / 2
    assert np.array_equal(rounding.round_to(middle, fmt), np.where(bits & 1, high, low))
    assert np.array_equal(rounding.round_to(np.nextafter(middle, np.inf), fmt), high)
    assert np.array_equal(rounding.round_to(np.nextafter(middle, 0), fmt), low)
    assert np.array_equal(rounding.round_to(-np.nextafter(high, 0), fmt, "rz"), -low)


def test_bad_names_are_refused():
    for call, told in (
        (lambda: rounding.round_to(1.0, "fp12"), "name = 'fp12', allowed: fp64"),
        (lambda: rounding.round_to(1.0, "fp16", "up"), "mode = 'up', allowed: rne, rz"),
        (lambda: rounding.to_bits(1.0, "e4m3"), "fmt = 'e4m3', allowed: fp16, bf16"),
        (lambda: rounding.from_bits(np.array([1]), "fp16"), r"bits\.dtype = int64, allowed: uint"),
    ):
        with pytest.raises(ValueError, match=told):
            call()


@pytest.mark.parametrize("fmt", ["fp32", "tf32", "bf16", "fp16", "e4m3", "e5m2"])
@pytest.mark.parametrize("mode", rounding.MODES)
def test_agrees_with_rational_arithmetic(fmt, mode):
    rng = np.random.default_rng(2)
    target = formats.named(fmt)
    x = np.ldexp(rng.uniform(-1, 1, 3000), rng.integers(target.emin - 30, target.emax, 3000))
    expected = [exact_round(float(v), fmt, mode) for v in x]
    assert np.array_equal(rounding.round_to(x, fmt, mode), expected)


def test_overflow_inf_and_nan():
    x = np.array([65519.9, 65520.0, -1e9, np.inf, np.nan])
    nearest = rounding.round_to(x, "fp16")
    assert np.array_equal(nearest, [65504, np.inf, -np.inf, np.inf, np.nan], equal_nan=True)
    cut = rounding.round_to(x, "fp16", "rz")
    assert np.array_equal(cut, [65504, 65504, -65504, np.inf, np.nan], equal_nan=True)
    saturated = rounding.round_to(x, "e4m3")
    assert np.array_equal(saturated, [448, 448, -448, 448, np.nan], equal_nan=True)


def exact_fma(a: float, b: float, c: float) -> np.float32:
    """Round the rational a b + c to float32 once; a zero sum is left to the caller."""
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    numerator, denominator = exact.numerator, exact.denominator
    exponent = abs(numerator).bit_length() - denominator.bit_length()
    if abs(exact) < Fraction(2) ** exponent:
        exponent -= 1
    step = Fraction(2) ** (max(exponent, -126) - 23)
    rounded = round(exact / step) * step
    return (
        np.float32(float(rounded))
        if abs(rounded) < 2**128
        else np.float32(math.copysign(math.inf, rounded))
    )


@settings(max_examples=300, deadline=None)
@given(a=FLOATS, b=FLOATS, c=FLOATS)
def test_fma_rounds_once(a, b, c):
    got = rounding.fma_rn(a, b, c)
    if Fraction(a) * Fraction(b) + Fraction(c) == 0:
        assert got == 0
    else:
        assert got == exact_fma(a, b, c)


def test_fma_where_two_roundings_would_differ():
    rng = np.random.default_rng(3)
    a = 1 + rng.integers(0, 1 << 23, 4000) * 2.0**-23
    b = 1 + rng.integers(0, 1 << 23, 4000) * 2.0**-23
    # c puts a b just beside the middle between two float32, closer than float64 can tell
    c = np.ldexp(rng.choice([-1, 1], 4000), rng.integers(-120, -40, 4000))
    middle = np.float32(2.0**24 + 2)
    x = np.concatenate([a, np.full(4000, middle), np.full(4000, 2.0**-75)]).astype(np.float32)
    y = np.concatenate([b, 1 + 2.0**-23 * rng.integers(0, 4, 4000), b]).astype(np.float32)
    z = np.concatenate([c, c, np.ldexp(c, -100)]).astype(np.float32)
    got = rounding.fma_rn(x, y, z)
    expected = [exact_fma(float(i), float(j), float(k)) for i, j, k in zip(x, y, z, strict=True)]
    assert np.array_equal(got, expected)
    one = np.float64(1 + 2.0**-12)
    twice = np.float32(one * one + 2.0**-60)
    assert rounding.fma_rn(1 + 2.0**-12, 1 + 2.0**-12, 2.0**-60) != twice


def test_fma_specials():
    inf, nan = np.inf, np.nan
    a, b, c = np.float32(
        [
            (inf, inf, 0, nan, 3e38, -3e38, -0.0),
            (1, 0, inf, 1, 10, 10, 1),
            (-inf, 1, 1, 1, 1, 1, -0.0),
        ]
    )
    got = rounding.fma_rn(a, b, c)
    assert np.array_equal(got, [nan] * 4 + [inf, -inf, -0.0], equal_nan=True)
    assert np.signbit(got[6])


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
def test_eight_bits_are_read_as_torch_reads_them(fmt):
    torch = pytest.importorskip("torch")
    dtype = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[fmt]
    codes = np.arange(256, dtype=np.uint8)
    want = torch.from_numpy(codes).view(dtype).float().numpy()
    got = rounding.from_bits(codes, fmt)
    assert np.array_equal(got, want, equal_nan=True)
    assert np.array_equal(np.signbit(got), codes >= 128)
    assert rounding.from_bits(np.uint32([0x3F800001]), "tf32")[0] == np.float32(1 + 2.0**-23)


@pytest.mark.parametrize("fmt", ["fp16", "bf16"])
@pytest.mark.parametrize("sigma", [0.5, 1.0])
def test_rounding_to_nearest_shrinks_a_sum_by_a_known_share(fmt, sigma):
    """The weights are log-normal, as of a softmax, and summed by quadrature over the binades."""
    error = total = 0.0
    for binade in range(-14, 3):
        x = 2.0**binade * (1 + (np.arange(2**16) + 0.5) / 2**16)
        mass = np.exp(-((np.log(x) + 3.7) ** 2) / (2 * sigma**2)) / x * 2.0**binade
        error += np.sum(mass * (rounding.round_to(x, fmt) - x))
        total += np.sum(mass * x)
    assert error / total == pytest.approx(rounding.mean_relative_error(fmt), rel=0.01)
