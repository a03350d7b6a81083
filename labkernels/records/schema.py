"""The tables that rows are checked against: each is a Frictionless Table Schema in tables/."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labkernels.records.fields import Field, Table, parse


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
