import numpy as np
import pytest

from labkernels.numerics.emulation import ex2_unit
from labkernels.numerics.emulation import exp2 as emulation_exp2

ENTRIES = ex2_unit.ENTRIES


@pytest.fixture(scope="module")
def mantissas():
    return ex2_unit.load().mantissa(np.arange(ENTRIES))


def test_the_square_is_the_sum_of_its_partial_products_that_reach_the_cut():
    squares = ex2_unit.truncated_squares()
    low = np.arange(1 << ex2_unit.LOW_BITS)
    bits = low[:, None] >> np.arange(ex2_unit.LOW_BITS) & 1
    total = np.zeros_like(low)
    for i in range(ex2_unit.LOW_BITS):
        for j in range(ex2_unit.LOW_BITS):
            # bits i and j meet twice, one column higher, unless they are the same
            if (2 * i if i == j else i + j + 1) >= ex2_unit.DROPPED_BITS:
                total += (bits[:, i] & bits[:, j]) << (i + j)
    assert np.array_equal(squares, total >> ex2_unit.DROPPED_BITS)
    assert squares.max() < 2**15


def test_the_parabolas_of_the_device(mantissas):
    unit = ex2_unit.load()
    assert unit.c0.max() < 2**25
    # near the Taylor coefficients of 2^x in the middle of each segment
    middle = np.exp2((np.arange(64) + 0.5) / 64)
    assert np.abs(unit.c2 / (np.log(2) ** 2 / 2 * middle * 2**11) - 1).max() < 0.01
    exact = (np.exp2(np.arange(ENTRIES) / ENTRIES) - 1) * ENTRIES
    assert np.abs(mantissas - exact).max() < 1.5  # PTX promises 2 ulp
    assert (np.diff(mantissas) >= 0).all()
    assert (mantissas[0], mantissas[-1]) == (0, ENTRIES - 1)


def test_fit_finds_the_parabolas_behind_a_table_and_refuses_one_that_is_off(mantissas):
    found, unit = ex2_unit.fit(mantissas), ex2_unit.load()
    assert found.bias == unit.bias
    for name in ("c0", "c1", "c2"):
        assert np.array_equal(getattr(found, name), getattr(unit, name))
    wrong = mantissas.copy()
    wrong[1_000_000] += 1
    with pytest.raises(ValueError, match="leave 0 biases, allowed: a table of 64 parabolas"):
        ex2_unit.fit(wrong)


def test_mufu_splits_its_argument(mantissas):
    """The unit gives 2^n (1 + y); below zero it complements the bits of n and f, if f is not 0."""
    y = 1 + mantissas / ENTRIES
    f = np.array([0, 1, 12345, ENTRIES - 1])
    for n in (0, 1, 7, 100):
        x = (n + f / ENTRIES).astype(np.float32)
        cut = ((x.astype(np.float64) - np.floor(x)) * ENTRIES).astype(np.int64)
        whole = np.floor(x).astype(np.int64)
        assert np.array_equal(emulation_exp2.exp2_mufu(x), np.ldexp(y[cut], whole))
        below = np.ldexp(y[ENTRIES - 1 - cut], -whole - 1)
        below = np.where(cut == 0, np.ldexp(1.0, -whole), below)
        assert np.array_equal(emulation_exp2.exp2_mufu(-x), below)
    # below 2^-23 in magnitude, x counts as 0, on either side of zero
    tiny = np.float32([2.0**-24, -(2.0**-24), 1e-40, -0.0])
    assert (emulation_exp2.exp2_mufu(tiny) == 1).all()


def test_mufu_specials_and_range():
    x = np.float32([np.inf, -np.inf, 128, 127, -126, -126.0001, -1e30, 3e38])
    got = emulation_exp2.exp2_mufu(x)
    assert np.array_equal(got, [np.inf, 0, np.inf, 2.0**127, 2.0**-126, 0, 0, np.inf])
    assert not np.signbit(got).any()
    nan = emulation_exp2.exp2_mufu(np.float32([np.nan]))
    assert nan.view(np.uint32)[0] == 0x7FFFFFFF
    assert emulation_exp2.exp2_mufu(np.float32(-1.0)) == 0.5


@pytest.mark.parametrize(("name", "limit"), [("poly3", 1.02e-4), ("poly5", 1.7e-7)])
def test_polynomials_keep_their_promise(name, limit):
    exp2 = emulation_exp2.EXP2[name]
    x = np.concatenate([np.linspace(-1, 0, 300_001), np.linspace(-126, 10, 100_001)])
    x = x.astype(np.float32)
    exact = np.exp2(x.astype(np.float64))
    assert not np.abs(exp2(x) / exact - 1).max() > limit
    whole = np.arange(-126, 128).astype(np.float32)
    assert np.array_equal(exp2(whole), np.ldexp(np.float32(1), np.arange(-126, 128)))
    low = exp2(np.float32([-np.inf, -1e30, -126.5, np.nan]))
    assert np.array_equal(low, [0, 0, 0, np.nan], equal_nan=True)
