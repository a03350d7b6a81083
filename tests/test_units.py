import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkernels import units


@pytest.mark.parametrize(
    ("show", "value", "text"),
    [
        (units.format_bytes, 0, "0 B"),
        (units.format_bytes, 1023, "1,023 B"),
        (units.format_bytes, 69_632, "69,632 B (68.0 KiB)"),
        (units.format_bytes, 132_644_864, "132,644,864 B (126.5 MiB)"),
        (units.format_bytes, 80 * units.GiB, "85,899,345,920 B (80.0 GiB)"),
        (units.format_rate, 4.36 * units.TB, "4.36 TB/s"),
        (units.format_rate, 999.7e9, "1.00 TB/s"),
        (units.format_rate, 9.996e9, "10.0 GB/s"),
        (units.format_rate, 5e3, "5.00 KB/s"),
        (units.format_rate, 0.0, "0.00 B/s"),
        (units.format_time, 2.5, "2.500 s"),
        (units.format_time, 0.000439, "0.439 ms"),
        (units.format_time, 7.97e-6, "7.970 us"),
    ],
)
def test_a_quantity_is_shown_in_its_unit(show, value, text):
    assert show(value) == text


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
