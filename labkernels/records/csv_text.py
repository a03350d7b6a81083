"""Rows as a CSV file: a line each, every cell checked, and a cut line noticed."""

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any

from labkernels.records import schema
from labkernels.records.schema import Table


def content(rows: Iterable[Mapping[str, Any]], table: Table) -> bytes:
    """Return the bytes of a file that holds these checked rows.

    >>> from labkernels.records.schema import TABLES
    >>> content([], TABLES["register_growth"]).partition(b",")[0]
    b'sums'
    """
    text = io.StringIO(newline="")
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(table.columns)
    lines.writerows([_cell(row[name]) for name in table.columns] for row in rows)
    return text.getvalue().encode("utf-8")


def table_of(name: str, content: bytes) -> Table:
    """Return the table whose columns a file has.

    Raises: ValueError naming the file, if no table has them or its last line is cut.
    """
    header = _text(name, content).partition("\n")[0].rstrip("\r")
    try:
        return schema.table_of(tuple(header.split(",")))
    except ValueError as error:
        raise ValueError(f"{name}, line 1: {error}") from None


def read(name: str, content: bytes) -> list[dict[str, Any]]:
    """Return the rows of a file, every cell typed and checked.

    Raises: ValueError naming the file and line of the first bad row, or a file that is cut.
    """
    text = _text(name, content)
    reader = csv.DictReader(io.StringIO(text, newline=""))
    rows = []
    try:
        table = schema.table_of(tuple(reader.fieldnames or ()))
        rows.extend(schema.validate(row, table) for row in reader)
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{name}, line {reader.line_num}: {error}") from None
    return rows


def _text(name: str, content: bytes) -> str:
    """Return a file's text, if it was not cut in its last line: half a number looks like a number.

    Raises: ValueError naming the line that is not UTF-8, or that was cut.
    """
    if not content.endswith(b"\n"):
        line = content.count(b"\n") + 1
        raise ValueError(f"{name}, line {line}: the file is cut in the middle of a line")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{name}, line {line}: {error.reason}") from None


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)
