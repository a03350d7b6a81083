import math

import pytest

from labkernels.records import schema


def test_a_good_row_comes_back_typed_and_in_column_order(row):
    text = {name: str(value) for name, value in reversed(row.items())}
    checked = schema.validate(text)
    assert tuple(checked) == schema.COLUMNS
    assert checked["batch"] == 57
    assert checked["value"] == pytest.approx(4.39e-4)
    assert checked["dirty"] is False


@pytest.mark.parametrize(
    ("column", "value", "allowed"),
    [
        ("value", math.nan, "a finite number"),
        ("value", math.inf, "a finite number"),
        ("value", "", "missing"),
        ("value", None, "missing"),
        ("value", "fast", "a finite number"),
        ("value", True, "a finite number"),
        ("batch", 1.5, "a whole number"),
        ("batch", "nan", "a finite integer"),
        ("tensor_cores", "maybe", "on, off"),
        ("dtype", "int8", "fp16, bf16, fp32"),
        ("dirty", "perhaps", "true, false"),
        ("commit", "", "missing"),
        ("started_utc", "yesterday", "YYYY-MM-DDTHH:MM:SSZ"),
        ("kernel", 7, "a text"),
        ("note", "two\nlines", "one line"),
    ],
)
def test_a_bad_cell_is_named_with_what_is_allowed(row, column, value, allowed):
    with pytest.raises(ValueError, match=rf"(?s){column}.*{allowed}"):
        schema.validate({**row, column: value})


def test_an_unknown_column_is_named(row):
    with pytest.raises(ValueError, match="'speed' is not in table measurements"):
        schema.validate({**row, "speed": 1})


def test_a_table_is_known_by_its_columns():
    for table in schema.TABLES.values():
        assert schema.table_of(table.columns) is table
    with pytest.raises(ValueError, match="belong to no table"):
        schema.table_of(("a", "b"))
