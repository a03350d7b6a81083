"""Rows come back from a Parquet file as they were, and a file that is not right is named."""

import importlib
import random
import sys
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkernels.records import csv_text, parquet, schema, store

CHAOS = schema.TABLES["chaos"]
NAME = "run.parquet"
TIMES = st.datetimes(datetime(2000, 1, 1)).map(lambda at: at.strftime("%Y-%m-%dT%H:%M:%SZ"))
PRINTED = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=9)


def cells(field):
    """Return a strategy for what parse returns of a column."""
    of_type = {
        schema.STRING: st.sampled_from(field.values) if field.values else PRINTED,
        schema.BOOLEAN: st.booleans(),
        schema.INTEGER: st.integers(-(2**63), 2**63 - 1),
        "number": st.floats(allow_nan=False, allow_infinity=False),
    }
    found = TIMES if field.unit == schema.UTC else of_type[field.type]
    return found | st.just("") if field.empty else found


def rows_of(table):
    row = st.fixed_dictionaries({field.name: cells(field) for field in table.fields})
    return st.lists(row, max_size=4)


def exactly(rows):
    """Return rows so that 1, True, 1.0 and 0.0, -0.0 differ."""
    return [[(name, repr(cell)) for name, cell in row.items()] for row in rows]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("table", schema.TABLES.values(), ids=lambda table: table.name)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_rows_come_back_to_the_bit_and_as_the_same_csv(table, data):
    rows = [schema.validate(row, table) for row in data.draw(rows_of(table))]
    content = parquet.content(rows, table)
    found = parquet.read(NAME, content)
    assert exactly(found) == exactly(rows)
    assert parquet.content(found, table) == content
    assert csv_text.content(found, table) == csv_text.content(rows, table)


@pytest.fixture
def counts():
    at = datetime(2026, 12, 1, tzinfo=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    origin = {"suite": "records", "commit": "abc1234", "started_utc": at}
    numbers = ("seed", "injections", "right", "refused", "wrong")
    rng = random.Random(0)
    return [
        schema.validate(origin | {name: rng.randrange(1000) for name in numbers}, CHAOS)
        for _ in range(40)
    ]


def test_a_cut_file_is_named(counts):
    content = parquet.content(counts, CHAOS)
    for end in (*range(0, len(content), 7), len(content) - 1):
        with pytest.raises(ValueError, match=r"\Arun.parquet is damaged or cut: [^\n]*\Z"):
            parquet.read(NAME, content[:end])
        with pytest.raises(ValueError, match=r"\Arun.parquet is damaged or cut: [^\n]*\Z"):
            parquet.table_of(NAME, content[:end])


def test_a_damaged_byte_of_a_cell_is_noticed_without_a_description(counts):
    content = parquet.content(counts, CHAOS)
    pages_end = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    told = [told_of(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :], counts)
            for at in range(4, pages_end, 3)]  # fmt: skip
    assert {words.partition(" ")[0] for words in told} == {"same", NAME}
    assert told.count("same") < 0.1 * len(told)


def told_of(content, rows):
    """Return how a damaged file is refused, or that its rows are the same."""
    try:
        return "same" if parquet.read(NAME, content) == rows else "changed"
    except ValueError as error:
        return str(error)


def written(columns):
    arrow, pages = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    file = arrow.BufferOutputStream()
    pages.write_table(arrow.table(columns), file)
    return file.getvalue().to_pybytes()


def columns_of(rows, **changes):
    return {name: [row[name] for row in rows] for name in rows[0]} | changes


def test_another_schema_is_named_with_what_is_allowed(counts):
    numbers = [row["seed"] for row in counts]
    with pytest.raises(ValueError, match=r"run.parquet: columns \['x'\] belong to no table"):
        parquet.read(NAME, written({"x": numbers}))
    wrong = columns_of(counts, seed=[str(number) for number in numbers])
    told = r"run.parquet: column seed has type string; allowed: int64"
    with pytest.raises(ValueError, match=told):
        parquet.read(NAME, written(wrong))
    with pytest.raises(ValueError, match=told):
        parquet.table_of(NAME, written(wrong))


@pytest.mark.parametrize(
    ("column", "cell", "told"),
    [
        ("seed", None, "row 3: seed is missing"),
        ("suite", None, "row 3: suite is missing"),
        ("suite", "", "row 3: suite is missing"),
        ("suite", "two\nlines", "row 3: suite is 'two.nlines'; allowed: a text of one line"),
        ("started_utc", "today", "row 3: started_utc is 'today'; allowed: YYYY-MM-DDTHH:MM:SSZ"),
    ],
)
def test_a_bad_cell_is_named_with_its_row(counts, column, cell, told):
    found = columns_of(counts)
    found[column][2] = cell
    with pytest.raises(ValueError, match=f"run.parquet, {told}"):
        parquet.read(NAME, written(found))


def test_without_pyarrow_one_line_says_what_to_install(monkeypatch, counts):
    content = parquet.content(counts, CHAOS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(parquet.Missing, match=r"is not installed: pip install pyarrow"):
        parquet.read(NAME, content)
    with pytest.raises(ValueError, match=r"\A[^\n]*pip install pyarrow\Z"):
        store.read("prefill")
    assert store.read("chaos")
