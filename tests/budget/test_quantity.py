import re
from math import ceil, floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkernels.budget.quantity import (
    ceil_div,
    floor_div,
    largest,
    least,
    number,
    quantity,
    symbol,
)

SIZES = st.integers(1, 512)
CALLS = {r"\max": "max", r"\min": "min", r"\lceil": "ceil(", r"\lfloor": "floor("}
MARKS = {r"\,": "*", r"\cdot": "*", r"\times": "*", r"\;": "", r"\rceil": ")", r"\rfloor": ")"}


def evaluated(latex, names=()):
    """Return the value of a LaTeX formula, with the values of `names` put for its symbols."""
    text = re.sub(r"\\left|\\right", "", latex)
    for name in sorted(names, key=lambda name: -len(name.symbol)):
        alone = rf"(?<![\\a-zA-Z]){re.escape(name.symbol)}(?![a-zA-Z_])"
        text = re.sub(alone, f" {name.value} ", text)
    while match := re.search(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", text):
        text = text.replace(match[0], f"(({match[1]})/({match[2]}))")
    for mark, meaning in {**CALLS, **MARKS}.items():
        text = text.replace(mark, meaning)
    return eval(text, {"max": max, "min": min, "ceil": ceil, "floor": floor})


@given(SIZES, SIZES, SIZES, SIZES)
def test_the_formula_in_symbols_gives_the_value(a, b, c, d):
    rows, keys = symbol("R", a, "rows"), symbol("T", b, "keys")
    made = rows * (2 * keys + 3) * number(4, "B") + largest(rows * keys, c, keys - 1 + d)
    made = made + ceil_div(rows * c, keys) - floor_div(d, rows + 1)
    made = made + least(rows, keys) + (rows * keys) / keys
    assert evaluated(made.symbols, made.names) == pytest.approx(made.value)


def test_a_sum_in_a_product_keeps_its_parentheses():
    depth = symbol("d", 3, "stages")
    assert (2 * (2 * depth - 1) * 16).symbols == r"2 \, (2 \, d - 1) \cdot 16"
    assert (depth - (depth - 1)).symbols == "d - (d - 1)"
    assert (depth - (depth - 1)).value == 1
    assert ((depth + 1) / 2).words == "(3 stages + 1) / 2"
    assert (number(64) / (depth - 1)).words == "64 / (3 stages - 1)"


def test_a_name_is_kept_once_and_a_plain_number_has_none():
    rows = symbol("R", 16, "query rows", "rows")
    assert [(n.symbol, n.value, n.meaning) for n in (rows * rows + 2).names] == [
        ("R", 16, "query rows")
    ]
    assert quantity(7).names == ()
    assert largest(rows) is rows


def test_what_is_no_quantity_is_refused():
    with pytest.raises(ValueError, match=r"16 rows x 3 = 48, allowed: a multiple of 32"):
        symbol("R", 16, "rows") * 3 / 32
    with pytest.raises(ValueError, match=r"value = 1\.5, allowed: an integer >= 0"):
        number(1.5)
    with pytest.raises(ValueError, match=r"R = -1, allowed: an integer >= 0"):
        symbol("R", -1, "rows")
