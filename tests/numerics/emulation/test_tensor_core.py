import math
from fractions import Fraction

import numpy as np
import pytest

from labkernels.numerics import rounding
from labkernels.numerics.emulation import tensor_core

# fraction bits kept, chunk, lowest exponent of the alignment, fraction bits of the output
CONSTANTS = {("sm_70", "fp16"): (23, 4, -126, 23), ("sm_75", "fp16"): (24, 8, -126, 23)}
for arch in ("sm_80", "sm_89"):
    CONSTANTS |= {(arch, fmt): (24, 8, -132, 23) for fmt in ("fp16", "bf16")}
    CONSTANTS[arch, "tf32"] = (24, 4, -132, 23)
for arch in ("sm_90", "sm_100", "sm_120"):
    CONSTANTS |= {(arch, fmt): (25, 16, -133, 23) for fmt in ("fp16", "bf16")}
    CONSTANTS[arch, "tf32"] = (25, 8, -133, 23)
for fmt in ("e4m3", "e5m2"):
    CONSTANTS["sm_89", fmt] = (13, 16, -132, 13)
    CONSTANTS["sm_90", fmt] = (13, 32, -133, 13)
    CONSTANTS |= {(arch, fmt): (25, 32, -133, 23) for arch in ("sm_100", "sm_120")}
EMIN = {"fp16": -14, "bf16": -126, "tf32": -126, "e4m3": -6, "e5m2": -14}
EXPONENTS = {"fp16": (-24, 15), "e4m3": (-9, 8), "e5m2": (-16, 15)}


def split(x: float, emin: int) -> int:
    return max(math.frexp(x)[1] - 1, emin)


def dot(a, b, c: float, arch: str, fmt: str, b_fmt: str | None = None) -> float:
    """Return one output of the algorithm, in rational arithmetic, for finite values."""
    b_fmt = b_fmt or fmt
    fraction_bits, chunk, lowest, out_fraction_bits = CONSTANTS[arch, fmt]
    for k in range(0, len(a), chunk):
        terms = [
            (Fraction(x) * Fraction(y), split(x, EMIN[fmt]) + split(y, EMIN[b_fmt]))
            for x, y in zip(a[k : k + chunk], b[k : k + chunk], strict=True)
            if x and y
        ]
        if c:
            terms.append((Fraction(c), split(c, -126)))
        largest = max([lowest] + [exponent for _, exponent in terms])
        step = Fraction(2) ** (largest - fraction_bits)
        total = sum(math.trunc(value / step) for value, _ in terms) * step
        if abs(total) >= 2**128:
            return math.copysign(math.inf, total)
        magnitude = math.frexp(float(total))[1] - 1 if total else 0
        out_step = Fraction(2) ** (max(magnitude, -126) - out_fraction_bits)
        c = float(math.trunc(total / out_step) * out_step)
    return c


def inputs(kind: str, fmt: str, shape, rng) -> np.ndarray:
    x = rng.standard_normal(shape)
    low, high = EXPONENTS.get(fmt, (-133, 127))
    if kind == "wide":
        x = np.ldexp(x, rng.integers(low // 2, high // 2, shape))
    elif kind == "extreme":
        x = np.ldexp(x, rng.integers(low, high, shape))
    elif kind == "subnormal":
        x = np.ldexp(x, rng.integers(low, low + 14, shape))
    elif kind == "cancel":
        x = np.where(rng.random(shape) < 0.5, 1.0, -1.0) * (1 + x * 2.0**-9)
    elif kind == "sparse":
        x = np.where(rng.random(shape) < 0.7, 0.0, np.ldexp(x, rng.integers(-10, 10, shape)))
    x = rounding.round_to(x, fmt)
    return np.where(np.isfinite(x), x, 1.0)


@pytest.mark.parametrize(("arch", "fmt"), CONSTANTS)
@pytest.mark.parametrize("kind", ["normal", "wide", "extreme", "subnormal", "cancel", "sparse"])
def test_agrees_with_rational_arithmetic(arch, fmt, kind):
    rng = np.random.default_rng(4)
    n = 40 if fmt in ("e4m3", "e5m2") else 20
    a, b = inputs(kind, fmt, (3, 4, n), rng), inputs(kind, fmt, (3, n, 5), rng)
    c = inputs(kind, "bf16", (3, 4, 5), rng)
    got = tensor_core.matmul(a, b, c, arch=arch, fmt=fmt)
    for i, m, n in np.ndindex(got.shape):
        expected = dot(list(a[i, m]), list(b[i, :, n]), float(c[i, m, n]), arch, fmt)
        assert got[i, m, n] == expected, (i, m, n)


@pytest.mark.parametrize("arch", ["sm_89", "sm_90", "sm_100", "sm_120"])
def test_the_formats_of_8_bits_may_differ(arch):
    rng = np.random.default_rng(6)
    a, b = inputs("extreme", "e4m3", (3, 40), rng), inputs("extreme", "e5m2", (40, 3), rng)
    got = tensor_core.matmul(a, b, arch=arch, fmt="e4m3", b_fmt="e5m2")
    swapped = tensor_core.matmul(b.T, a.T, arch=arch, fmt="e5m2", b_fmt="e4m3")
    for m, n in np.ndindex(got.shape):
        assert got[m, n] == dot(list(a[m]), list(b[:, n]), 0.0, arch, "e4m3", "e5m2")
    assert np.array_equal(got, swapped.T)
    with pytest.raises(ValueError, match="b_fmt = 'fp16', allowed: e4m3, e5m2"):
        tensor_core.matmul(a, b, arch=arch, fmt="e4m3", b_fmt="fp16")
    with pytest.raises(ValueError, match="b_fmt = 'bf16', allowed: fp16"):
        tensor_core.matmul([[1.0]], [[1.0]], arch=arch, fmt="fp16", b_fmt="bf16")


@pytest.mark.parametrize("arch", ["sm_89", "sm_120"])
def test_sums_of_8_bits_in_fp16_are_rounded_once_per_chunk(arch):
    rng = np.random.default_rng(7)
    a, b = inputs("normal", "e4m3", (3, 64), rng), inputs("normal", "e4m3", (64, 3), rng)
    chunk = tensor_core.unit_of(arch, "e4m3").chunk
    expected = np.zeros((3, 3), np.float16)
    for k in range(0, 64, chunk):
        ks = slice(k, k + chunk)
        expected = tensor_core.matmul(a[:, ks], b[ks], expected, arch=arch, fmt="e4m3", out="fp16")
    got = tensor_core.matmul(a, b, arch=arch, fmt="e4m3", out="fp16")
    assert got.dtype == np.float16
    assert np.array_equal(got, expected)
    # each chunk errs by half an ulp of fp16, and by the bits that the alignment cuts off
    ulp = 2.0 ** (np.frexp(np.abs(got).max())[1] - 11)
    assert np.abs(got - a @ b).max() <= 64 / chunk * ulp
    with pytest.raises(ValueError, match="out = 'fp16' with fmt = 'bf16', allowed: 'fp32'"):
        tensor_core.matmul([[1.0]], [[1.0]], arch=arch, fmt="bf16", out="fp16")


def test_blocks_of_rows_and_batches_change_nothing(monkeypatch):
    rng = np.random.default_rng(8)
    a, b = inputs("normal", "fp16", (5, 1, 9, 17), rng), inputs("normal", "fp16", (3, 17, 7), rng)
    whole = tensor_core.matmul(a, b, arch="sm_80", fmt="fp16")
    assert whole.shape == (5, 3, 9, 7)
    monkeypatch.setattr(tensor_core, "_BLOCK_ELEMENTS", 16)
    ampere = tensor_core.unit_of("sm_80", "fp16")  # in the place of the architecture's own
    again = tensor_core.matmul(a, b, arch="sm_90", fmt="fp16", unit=ampere)
    assert np.array_equal(whole, again)
    for arch, known in tensor_core.UNITS.items():
        for fmt in tensor_core.INPUTS:
            assert (fmt in known) == ((arch, fmt) in CONSTANTS)
            if fmt not in known:
                with pytest.raises(ValueError, match=f"fmt = '{fmt}' on {arch}: no model is known"):
                    tensor_core.matmul([[1]], [[1]], arch=arch, fmt=fmt)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_tf32_cuts_its_inputs_to_ten_fraction_bits(arch):
    rng = np.random.default_rng(11)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((6, 24), (24, 6)))
    a[0, 0], a[1, 1], a[2, 2] = 2.0**-149, np.inf, np.float32(3e-39)
    cut_a, cut_b = ((x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in (a, b))
    whole = tensor_core.matmul(a, b, arch=arch, fmt="tf32")
    assert np.array_equal(whole, tensor_core.matmul(cut_a, cut_b, arch=arch, fmt="tf32"))
    assert not np.array_equal(cut_a, a)
    holed = a.copy()
    holed.view(np.uint32)[3, 3] = 0x7F801FFF  # NaN by the bits that are cut off
    assert np.isinf(tensor_core.matmul(holed, b, arch=arch, fmt="tf32")[3]).all()
    with pytest.raises(ValueError, match="a holds values that are not fp32"):
        tensor_core.matmul(a.astype(np.float64) / 3, b, arch=arch, fmt="tf32")


@pytest.mark.parametrize("arch", tensor_core.UNITS)
def test_specials(arch):
    inf, nan = np.inf, np.nan
    cases = [  # a0 b0 + a1 b1 + c
        (nan, 1, 1, 1, 0, nan),
        (inf, 0, 1, 1, 0, nan),
        (inf, 1, -inf, 1, 0, nan),
        (inf, 1, 1, 1, -inf, nan),
        (inf, 1, 1, 1, 0, inf),
        (1, -inf, 1, 1, 5, -inf),
        (0, 0, 0, 0, inf, inf),
        (0, 0, 0, 0, nan, nan),
        (0, 1, -0.0, 1, -0.0, 0),
    ]
    for a0, b0, a1, b1, c, expected in cases:
        d = tensor_core.matmul([[a0, a1]], [[b0], [b1]], [[c]], arch=arch, fmt="fp16")
        if np.isnan(expected):
            assert d.view(np.uint32)[0, 0] == 0x7FFFFFFF
        else:
            assert d[0, 0] == expected
            assert not (d[0, 0] == 0 and np.signbit(d[0, 0]))


BIG, LARGEST = np.float32(rounding.round_to(3.3e38, "bf16", "rz")), np.finfo(np.float32).max
# Format, sums, a, b, c and the sum a b + c, on sm_90.
SUMS = [
    ("bf16", "fp32", [-(2.0**-75)], [2.0**-75], 0, 0.0),  # -2^-150, cut to nothing, is plus zero
    ("fp16", "fp16", [-(2.0**-24)], [2.0**-24], 0, 0.0),
    ("bf16", "fp32", [BIG, BIG], [1, 1], 0, np.inf),
    ("bf16", "fp32", [BIG, BIG, BIG], [2, -2, 1], 0, BIG),  # +-2^128 cancel
    ("bf16", "fp32", [2.0**60], [2.0**40], LARGEST, LARGEST),  # toward zero never reaches inf
    ("bf16", "fp32", [2.0**-100], [2.0**-49], 0, 2.0**-149),
    ("bf16", "fp32", [2.0**-100], [1.5 * 2.0**-49], 0, 2.0**-149),
    ("bf16", "fp32", [2.0**-100], [2.0**-50], 0, 0.0),
    ("fp16", "fp32", [2.0**-24], [2.0**-24], 0, 2.0**-48),  # subnormal inputs are not flushed
    ("fp16", "fp32", [1] * 3 + [np.inf] + [1] * 44, [1] * 48, 0, np.inf),  # through the chain
    ("fp16", "fp16", [1, 1], [1, 2.0**-11], 0, 1.0),  # to nearest
    ("fp16", "fp16", [1, 1], [1, 2.0**-11], 2.0**-10, 1 + 2.0**-9),
    ("fp16", "fp16", [65504.0], [2.0], 0, np.inf),
    # Half an ulp and a little more rounds up for c = 0, but not for subnormal c, as on an H200.
    ("fp16", "fp16", [2.0**-12, 2.0**-23], [2.0**-13, 2.0**-23], 0, 2.0**-24),
    ("fp16", "fp16", [2.0**-12, 2.0**-23], [2.0**-13, 2.0**-23], 2.0**-20, 2.0**-20),
    ("fp16", "fp16", [2.0**-12, 2.0**-23], [2.0**-13, 2.0**-23], 2.0**-22, 2.0**-22),
]


@pytest.mark.parametrize(("fmt", "out", "a", "b", "c", "expected"), SUMS)
def test_a_sum_is_as_on_an_h200(fmt, out, a, b, c, expected):
    of = {"fp32": np.float32, "fp16": np.float16}[out]
    column = np.array(b, float)[:, None]
    d = tensor_core.matmul([a], column, of([[c]]), arch="sm_90", fmt=fmt, out=out)
    assert d.dtype == of
    assert d[0, 0] == expected
    assert not np.signbit(d[0, 0])


def test_nan_has_one_encoding():
    d = tensor_core.matmul([[np.nan]], [[2.0]], arch="sm_80", fmt="fp16", out="fp16")
    assert d.view(np.uint16)[0, 0] == 0x7FFF
    d = tensor_core.matmul([[np.inf] + [1] * 47], np.zeros((48, 1)), arch="sm_90", fmt="fp16")
    assert d.view(np.uint32)[0, 0] == 0x7FFFFFFF


def test_bad_arguments_are_refused_by_name_and_empty_shapes_are_not():
    for m, k, n in ((0, 16, 8), (4, 0, 8), (4, 16, 0)):
        d = tensor_core.matmul(np.ones((m, k)), np.ones((k, n)), arch="sm_90", fmt="fp16")
        assert d.shape == (m, n)
        assert not d.any()
    one = np.ones((1, 1))
    for b, arch, fmt, told in (
        (one, "sm_61", "fp16", "arch = 'sm_61', allowed: sm_70, sm_75, sm_80, sm_89, sm_90, sm_10"),
        (one, "sm_90", "fp32", "fmt = 'fp32', allowed: fp16, bf16, tf32, e4m3, e5m2"),
        (one + 2.0**-9, "sm_90", "bf16", "b holds values that are not bf16"),
        (np.ones((2, 1)), "sm_90", "bf16", r"a \(1, 1\), b \(2, 1\)"),
    ):
        with pytest.raises(ValueError, match=told):
            tensor_core.matmul(one, b, arch=arch, fmt=fmt)


def test_eight_bits_of_mma_sync_on_sm_90_go_through_fp16():
    rng = np.random.default_rng(12)
    a, b = inputs("normal", "e4m3", (4, 64), rng), inputs("normal", "e4m3", (64, 4), rng)
    c = rng.standard_normal((4, 4)).astype(np.float32)
    halves = [[i for i in range(32) if i % 4 // 2 == half] for half in (0, 1)]

    def of_32(k, out):
        some = None
        for half in halves:
            part = [k + i for i in half]
            some = tensor_core.matmul(a[:, part], b[part], some, arch="sm_90", fmt="fp16", out=out)
        return some

    got = tensor_core.widened_matmul(a, b, c, fmt="e4m3")
    assert np.array_equal(got, c + of_32(0, "fp32") + of_32(32, "fp32"))
    assert not np.array_equal(got, tensor_core.matmul(a, b, c, arch="sm_90", fmt="e4m3"))
    half = tensor_core.widened_matmul(a[:, :32], b[:32], fmt="e4m3", out="fp16")
    assert half.dtype == np.float16
    assert np.array_equal(half, of_32(0, "fp16"))
    with pytest.raises(ValueError, match="fmt = 'fp16', allowed: e4m3, e5m2"):
        tensor_core.widened_matmul(a, b, fmt="fp16")
    with pytest.raises(ValueError, match="a has K = 16, allowed: multiples of 32"):
        tensor_core.widened_matmul(a[:, :16], b[:16], fmt="e4m3")
