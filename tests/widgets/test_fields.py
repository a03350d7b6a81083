"""Every field of the widgets takes what its declaration allows, and refuses all else in words."""

from pathlib import Path

import node
import pytest

SCRIPT = Path(__file__).parent / "scripts" / "fields_of_texts.mjs"
WRONG = {  # text: what is said to be given
    "": "Nothing is given",
    " , ": "Nothing is given",
    "two": '"two" is given',
    "NaN": '"NaN" is given',
    "-Infinity": '"-Infinity" is given',
    "0x10": '"0x10" is given',
    "1e400": '"1e400" is given',
    "1_000": '"1_000" is given',
    "--1": '"--1" is given',
    "1..2": '"1..2" is given',
}
SEVERAL, BROKEN = "1 1", "1.5"
FIGURES = {
    14320.4: "14,320", 27313042.0: "27,313,042", 0.0: "0", 4: "4.000", 0.000012345: "0.00001235",
    1e-7: "1.000e-7", 1.5e20: "1.500e+20", -2.5: "-2.500",
}  # fmt: skip


@pytest.fixture(scope="module")
def said(needs_node):
    return node.run(SCRIPT, given={"texts": [*WRONG, SEVERAL, BROKEN], "numbers": list(FIGURES)})


def test_a_field_takes_its_smallest_and_its_largest_number(said):
    for name, field, (low, high, below, above), _ in said["found"]:
        assert (low, high) == ([field["min"]], [field["max"]]), name
        if field["whole"]:
            for text, given in ((below, field["min"] - 1), (above, field["max"] + 1)):
                assert text.startswith(f'"{given}" is given; this field takes a whole number'), name
                assert text.endswith(f"from {field['min']:,} to {field['max']:,}."), name


def test_a_field_refuses_what_is_no_number_and_says_what_it_takes(said):
    for name, field, _, texts in said["found"]:
        for given, text in zip(WRONG.values(), texts, strict=False):
            assert text.startswith(f"{given}; this field takes {field['many']}"), (name, text)


def test_only_fields_of_several_numbers_take_two_and_only_whole_ones_refuse_a_fraction(said):
    several = {"sum", "row", "column"}
    for name, field, _, (*_, two, fraction) in said["found"]:
        assert (two == [1, 1]) == (name in several), name
        assert (fraction == [1.5]) == (not field["whole"]), name
        for text in (two, fraction):
            assert isinstance(text, list) or "given" in text, name


def test_a_quantity_is_written_without_a_power_of_ten_where_its_digits_fit(said):
    assert said["figures"] == list(FIGURES.values())
