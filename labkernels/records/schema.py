"""The tables that rows are checked against: each is a Frictionless Table Schema in tables/."""

import functools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

STRING, INTEGER, BOOLEAN = "string", "integer", "boolean"
UTC = "UTC"  # the unit of a time, to the second
_UTC_TIME = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z")


@dataclass(frozen=True)
class Field:
    """One column: its type, its unit, and whether a cell may be empty.

    described: the same as a field of a Table Schema.
    """

    name: str
    type: str
    unit: str
    empty: bool
    values: tuple[str, ...]
    described: Mapping[str, Any]

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Self:
        """Return the column that a field of a Table Schema describes."""
        allowed = described.get("constraints", {})
        return cls(
            name=described["name"],
            type=described["type"],
            unit=described.get("unit", ""),
            empty=not allowed.get("required", False),
            values=tuple(allowed.get("enum", ())),
            described=described,
        )


@dataclass(frozen=True)
class Table:
    """A named list of columns that a CSV file of `data/` follows."""

    name: str
    title: str
    fields: tuple[Field, ...]

    @functools.cached_property
    def columns(self) -> tuple[str, ...]:
        """The column names in file order."""
        return tuple(field.name for field in self.fields)

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """The column names as a set, for quick look-ups."""
        return frozenset(self.columns)


def _table(path: Path) -> Table:
    described = json.loads(path.read_text(encoding="utf-8"))
    fields = tuple(Field.of(field) for field in described["fields"])
    return Table(described["name"], described["title"], fields)


TABLES = {path.stem: _table(path) for path in sorted(Path(__file__).parent.glob("tables/*.json"))}
MEASUREMENTS = TABLES["measurements"]
PREFILL_MEASUREMENTS = TABLES["prefill_measurements"]

COLUMNS = MEASUREMENTS.columns
PROVENANCE = MEASUREMENTS.fields[COLUMNS.index("commit") :]


def table_of(columns: tuple[str, ...]) -> Table:
    """Return the table whose columns these are.

    Raises: ValueError if no table has exactly these columns.
    """
    for table in TABLES.values():
        if table.columns == tuple(columns):
            return table
    raise ValueError(f"columns {list(columns)} belong to no table; tables: {', '.join(TABLES)}")


def validate(row: Mapping[str, Any], table: Table = MEASUREMENTS) -> dict[str, Any]:
    """Return the row with every cell of the column's type, in column order.

    Raises: ValueError naming the column, its value and what is allowed.
    """
    extra = [name for name in row if name not in table.names]
    if extra:
        raise ValueError(
            f"column {extra[0]!r} is not in table {table.name}; columns: {', '.join(table.columns)}"
        )
    return {field.name: parse(field, row.get(field.name)) for field in table.fields}


def parse(field: Field, value: object) -> object:
    """Return one cell as the column's type.

    Raises: ValueError if it is missing, not finite, of another type or not an allowed value.
    """
    if value is None or value == "":
        if field.empty:
            return ""
        raise ValueError(f"{field.name} is missing; table cells of this column are never empty")
    if field.type == STRING:
        return _text(field, value)
    if field.type == BOOLEAN:
        if value in (True, "true", "True"):
            return True
        if value in (False, "false", "False"):
            return False
        raise ValueError(f"{field.name} is {value!r}; allowed: true, false")
    return _number(field, value)


def _text(field: Field, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{field.name} is {value!r}; allowed: a text")
    if field.values and value not in field.values:
        raise ValueError(f"{field.name} is {value!r}; allowed: {', '.join(field.values)}")
    if field.unit == UTC and not _UTC_TIME.fullmatch(value):
        raise ValueError(f"{field.name} is {value!r}; allowed: YYYY-MM-DDTHH:MM:SSZ")
    if not value.isprintable():
        raise ValueError(f"{field.name} is {value!r}; allowed: a text of one line")
    return value


def _number(field: Field, value: object) -> int | float:
    # A bool is an int to Python; here it would hide a mistake.
    if isinstance(value, bool):
        raise ValueError(f"{field.name} is {value!r}; allowed: a finite {field.type}")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{field.name} is {value!r}; allowed: a finite {field.type}") from None
    if not math.isfinite(number):
        raise ValueError(f"{field.name} is {value!r}; allowed: a finite {field.type}")
    if field.type == INTEGER:
        if number != int(number):
            raise ValueError(f"{field.name} is {value!r}; allowed: a whole number")
        return int(value) if not isinstance(value, float) else int(number)
    return number
