import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkernels import units


def test_binary_and_decimal_units_differ():
    assert (units.KiB, units.MiB, units.GiB) == (2**10, 2**20, 2**30)
    assert (units.KB, units.MB, units.GB, units.TB) == (10**3, 10**6, 10**9, 10**12)


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (69_632, "69,632 B (68.0 KiB)"),
        (132_644_864, "132,644,864 B (126.5 MiB)"),
        (80 * 2**30, "85,899,345,920 B (80.0 GiB)"),
    ],
)
def test_format_bytes(n_bytes, text):
    assert units.format_bytes(n_bytes) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (4.36e12, "4.36 TB/s"),
        (936e9, "936 GB/s"),
        (999.7e9, "1.00 TB/s"),
        (9.996e9, "10.0 GB/s"),
        (12.34e6, "12.3 MB/s"),
        (5e3, "5.00 KB/s"),
        (0.0, "0.00 B/s"),
    ],
)
def test_format_rate(rate, text):
    assert units.format_rate(rate) == text


@pytest.mark.parametrize(
    ("t_s", "text"),
    [(2.5, "2.500 s"), (0.000439, "0.439 ms"), (7.97e-6, "7.970 us"), (0.0, "0.000 us")],
)
def test_format_time(t_s, text):
    assert units.format_time(t_s) == text


@given(st.floats(min_value=1e3, max_value=9.9e14))
def test_a_rate_keeps_three_digits(rate):
    number, unit = units.format_rate(rate).split()
    size = {"KB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12}[unit]
    assert math.isclose(float(number) * size, rate, rel_tol=5.01e-3)


@pytest.mark.parametrize("value", [-1, 1.5, True, "3", None, math.nan])
def test_require_int_names_argument_value_and_allowed(value):
    with pytest.raises(ValueError, match=r"pages = .*allowed: an integer >= 0"):
        units.require_int("pages", value)


def test_require_int_knows_a_maximum():
    assert units.require_int("stages", 4, minimum=2, maximum=4) == 4
    with pytest.raises(ValueError, match=r"stages = 5, allowed: 2 to 4"):
        units.require_int("stages", 5, minimum=2, maximum=4)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, "1", None, True])
@pytest.mark.parametrize("show", [units.format_rate, units.format_time])
def test_a_quantity_that_is_none_is_refused(show, value):
    with pytest.raises(ValueError, match=r"_s = .*, allowed: a finite number >= 0"):
        show(value)


def test_format_bytes_refuses_a_fraction():
    with pytest.raises(ValueError, match=r"n_bytes = 1\.5, allowed: an integer >= 0"):
        units.format_bytes(1.5)
