import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkernels.formats import FORMATS, named


@pytest.mark.parametrize(
    ("name", "n_bytes", "emin", "emax", "subnormal", "u", "largest"),
    [
        ("fp64", 8, -1022, 1023, 5e-324, 2.0**-53, sys.float_info.max),
        ("fp32", 4, -126, 127, 2.0**-149, 2.0**-24, 3.4028234663852886e38),
        ("tf32", 4, -126, 127, 2.0**-136, 2.0**-11, 3.4011621342146535e38),
        ("bf16", 2, -126, 127, 2.0**-133, 2.0**-8, 3.3895313892515355e38),
        ("fp16", 2, -14, 15, 2.0**-24, 2.0**-11, 65504.0),
        ("e4m3", 1, -6, 8, 2.0**-9, 2.0**-4, 448.0),
        ("e5m2", 1, -14, 15, 2.0**-16, 2.0**-3, 57344.0),
    ],
)
def test_range_and_precision(name, n_bytes, emin, emax, subnormal, u, largest):
    f = named(name)
    assert (f.bytes, f.emin, f.emax, f.max) == (n_bytes, emin, emax, largest)
    assert f.smallest_subnormal == subnormal
    assert f.unit_roundoff == u


def test_fields_fill_the_storage_except_in_tf32():
    for f in FORMATS.values():
        used = 1 + f.exponent_bits + f.fraction_bits
        assert used == (19 if f.name == "tf32" else f.bits)


def test_ulp_at_known_places():
    bf16, fp16 = named("bf16"), named("fp16")
    assert bf16.ulp(0.25) == bf16.ulp(-0.49) == 2.0**-9
    assert fp16.ulp(1.0) == 2.0**-10
    assert fp16.ulp(0.0) == fp16.ulp(2.0**-20) == fp16.smallest_subnormal
    assert fp16.ulp(1e9) == fp16.ulp(fp16.max) == 32.0


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_fp64_ulp_is_that_of_the_machine(x):
    assert named("fp64").ulp(x) == math.ulp(x)


@pytest.mark.parametrize("name", FORMATS)
@given(x=st.floats(min_value=0.0, max_value=1e38), y=st.floats(min_value=0.0, max_value=1e38))
def test_ulp_grows_with_magnitude(name, x, y):
    f = named(name)
    small, large = sorted((x, y))
    assert f.smallest_subnormal <= f.ulp(small) <= f.ulp(large)


@pytest.mark.parametrize("x", [math.nan, math.inf, -math.inf])
def test_ulp_of_no_number_is_refused(x):
    with pytest.raises(ValueError, match=r"x = .*allowed: a finite number"):
        named("fp16").ulp(x)


def test_unknown_format_lists_the_names():
    with pytest.raises(ValueError, match=r"name = 'half', allowed: fp64, fp32, .*e5m2"):
        named("half")
