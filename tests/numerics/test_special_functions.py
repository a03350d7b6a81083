import decimal
import lzma
from fractions import Fraction

import numpy as np
import pytest

from labkernels.numerics import ex2_table, special_functions
from labkernels.numerics.rounding import fma_rn

ENTRIES = ex2_table.ENTRIES


@pytest.fixture(scope="module")
def reference():
    return ex2_table.reference_bits()


@pytest.fixture(scope="module")
def synthetic(reference):
    """Tables as a device might give them: the reference, off by one in bands of the fraction."""
    f = np.arange(ENTRIES)
    positive, negative = (table.copy() for table in reference)
    positive += ((f >> 13) % 3 == 1).astype(np.uint32)
    positive[1::4096] -= np.uint32(1)
    negative[1:] -= ((f[1:] >> 12) % 5 == 2).astype(np.uint32)
    return positive, negative


@pytest.fixture(scope="module")
def table_file(synthetic, tmp_path_factory):
    path = tmp_path_factory.mktemp("ex2") / "table.xz"
    ex2_table.pack_ex2_table(*synthetic, path)
    return path


def exact_exp2(fraction: Fraction) -> decimal.Decimal:
    exponent = decimal.Decimal(fraction.numerator) / decimal.Decimal(fraction.denominator)
    return decimal.Decimal(2) ** exponent


def test_reference_is_correctly_rounded(reference):
    step = Fraction(1, ENTRIES)
    high = ex2_table._exp2_taylor(np.arange(ENTRIES >> 11) * 2.0**-12)
    low = ex2_table._exp2_taylor(np.arange(1 << 11) * 2.0**-23)
    with decimal.localcontext(prec=40):
        for factor, stride in ((high, 1 << 11), (low, 1)):
            for i in range(0, len(factor), 5):
                exact = exact_exp2(i * stride * step)
                assert abs(decimal.Decimal(float(factor[i])) / exact - 1) < 2.0**-51.5
        # so the product is within 2^-50; nearer to a middle than that lies none
        product = np.multiply.outer(high, low).ravel()
        offset = np.abs(product - product.astype(np.float32))  # half an ulp is 2^-24
        assert np.abs(offset - 2.0**-24).min() > 2.0**-49
    assert reference[0][0] == reference[1][0] == 0x3F800000


def test_reference_of_negative_is_half_the_mirrored_positive(reference):
    positive, negative = (table.view(np.float32).astype(np.float64) for table in reference)
    assert np.array_equal(negative[1:], positive[:0:-1] / 2)


def test_pack_and_load_return_the_same_tables(synthetic, table_file):
    loaded = ex2_table.load_ex2_table(table_file)
    for table, original in zip(loaded, synthetic, strict=True):
        assert table.dtype == np.uint32
        assert np.array_equal(table, original)


def test_pack_refuses_what_two_bits_cannot_hold(reference, tmp_path):
    positive, negative = reference
    bad = positive.copy()
    bad[5] += np.uint32(4)
    with pytest.raises(ValueError, match="positive_bits - reference = 0 to 4, allowed"):
        ex2_table.pack_ex2_table(bad, negative, tmp_path / "bad.xz")
    with pytest.raises(ValueError, match="negative_bits is float32"):
        ex2_table.pack_ex2_table(positive, negative.view(np.float32), tmp_path / "bad.xz")
    with pytest.raises(ValueError, match="positive_bits is uint32"):
        ex2_table.pack_ex2_table(positive[:8], negative, tmp_path / "bad.xz")
    assert not (tmp_path / "bad.xz").exists()


def test_load_refuses_another_file(tmp_path):
    path = tmp_path / "other.xz"
    path.write_bytes(b"not xz at all")
    with pytest.raises(ValueError, match=r"other\.xz, allowed: an ex2 table"):
        ex2_table.load_ex2_table(path)
    path.write_bytes(lzma.compress(b"lab-ex2 1"))
    with pytest.raises(ValueError, match=r"other\.xz, allowed: an ex2 table"):
        ex2_table.load_ex2_table(path)


def test_write_raw_is_both_tables(synthetic, tmp_path, monkeypatch):
    monkeypatch.setattr(ex2_table, "ex2_tables", lambda: synthetic)
    special_functions.write_raw(tmp_path / "raw")
    raw = np.fromfile(tmp_path / "raw", dtype="<u4")
    assert np.array_equal(raw, np.concatenate(synthetic))


def test_table_of_the_device():
    if not ex2_table.DATA_FILE.exists():
        pytest.skip(f"{ex2_table.DATA_FILE.name} has not been dumped from a device yet")
    assert ex2_table.DATA_FILE.stat().st_size < 400_000
    positive, negative = special_functions.ex2_tables()
    assert positive[0] == negative[0] == 0x3F800000
    assert (np.diff(positive.astype(np.int64)) >= 0).all()
    assert (np.diff(negative.astype(np.int64)) <= 0).all()
    x = np.linspace(-20, 20, 100_001).astype(np.float32)
    exact = np.exp2(x.astype(np.float64))
    assert np.abs(special_functions.exp2_mufu(x) / exact - 1).max() < 2.0**-22


def test_mufu_truncates_the_argument_and_splits_it(synthetic):
    positive, negative = (table.view(np.float32) for table in synthetic)
    f = np.array([0, 1, 12345, ENTRIES - 1])
    for n in (0, 1, 7, 100):
        x = n + f / ENTRIES
        x32 = x.astype(np.float32)
        f32 = ((x32.astype(np.float64) - np.floor(x32)) * ENTRIES).astype(np.int64)
        whole = np.floor(x32).astype(np.int64)
        up = special_functions.exp2_mufu(x32, synthetic)
        assert np.array_equal(up, np.ldexp(positive[f32], whole))
        down = special_functions.exp2_mufu(-x32, synthetic)
        assert np.array_equal(down, np.ldexp(negative[f32], -whole))
    # below 2^-23 in magnitude nothing is left of x, on either side of zero
    tiny = np.float32([2.0**-24, -(2.0**-24), 1e-40, -0.0])
    assert (special_functions.exp2_mufu(tiny, synthetic) == 1).all()


def test_mufu_specials_and_range(synthetic):
    x = np.float32([np.inf, -np.inf, 128, 127, -126, -126.0001, -1e30, 3e38])
    got = special_functions.exp2_mufu(x, synthetic)
    assert np.array_equal(got, [np.inf, 0, np.inf, 2.0**127, 2.0**-126, 0, 0, np.inf])
    assert not np.signbit(got).any()
    nan = special_functions.exp2_mufu(np.float32([np.nan]), synthetic)
    assert nan.view(np.uint32)[0] == 0x7FFFFFFF
    assert special_functions.exp2_mufu(np.float32(-1.0), synthetic) == 0.5


@pytest.mark.parametrize(("name", "limit"), [("poly3", 1.02e-4), ("poly5", 1.7e-7)])
def test_polynomials_keep_their_promise(name, limit):
    exp2 = special_functions.EXP2[name]
    x = np.concatenate([np.linspace(-1, 0, 300_001), np.linspace(-126, 10, 100_001)])
    x = x.astype(np.float32)
    exact = np.exp2(x.astype(np.float64))
    assert not np.abs(exp2(x) / exact - 1).max() > limit
    whole = np.arange(-126, 128).astype(np.float32)
    assert np.array_equal(exp2(whole), np.ldexp(np.float32(1), np.arange(-126, 128)))
    low = exp2(np.float32([-np.inf, -1e30, -126.5, np.nan]))
    assert np.array_equal(low, [0, 0, 0, np.nan], equal_nan=True)


@pytest.mark.parametrize(("name", "coefficients"), [
    ("poly3", special_functions._POLY3), ("poly5", special_functions._POLY5)
])  # fmt: skip
def test_polynomials_step_by_step(name, coefficients):
    """The operations of special.cuh, each in its order, one number at a time."""
    for x in np.random.default_rng(9).uniform(-130, 3, 200).astype(np.float32):
        clamped = max(x, np.float32(-126))
        shifter = np.float32(12582912)
        t = np.float32(clamped + shifter)
        f = np.float32(clamped - np.float32(t - shifter))
        p = np.float32(coefficients[0])
        for c in coefficients[1:]:
            p = fma_rn(p, f, np.float32(c))
        bits = (int(p.view(np.uint32)) + (int(t.view(np.uint32)) << 23)) & 0xFFFFFFFF
        expected = np.float32(0) if x < -126 else np.uint32(bits).view(np.float32)
        assert special_functions.EXP2[name](x) == expected


def test_log2_keeps_its_promise():
    rng = np.random.default_rng(10)
    x = np.concatenate([rng.uniform(0.5, 4, 200_000), np.exp2(rng.uniform(-126, 127, 100_000))])
    x = x.astype(np.float32)
    exact = np.log2(x.astype(np.float64))
    error = np.abs(special_functions.log2_poly(x) - exact) / np.maximum(1, np.abs(exact))
    assert not error.max() > 2 * 2.0**-23
    powers = np.ldexp(np.float32(1), np.arange(-126, 128))
    assert np.array_equal(special_functions.log2_poly(powers), np.arange(-126, 128))
    assert special_functions.log2_poly(np.float32(8)) == 3
