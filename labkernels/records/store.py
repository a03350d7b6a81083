"""CSV files of `data/`: append rows, read them back, pick the newest run."""

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

from labkernels.records import schema
from labkernels.records.schema import MEASUREMENTS, Table

DATA_DIR = Path(__file__).resolve().parents[2] / "data"

Row = dict[str, object]


def append(path: Path, rows: Iterable[Mapping[str, object]], table: Table = MEASUREMENTS) -> int:
    """Add rows to a CSV file, making it if needed, and return how many were added.

    Raises: ValueError if a row is invalid or the file has other columns; then nothing is written.
    """
    checked = [schema.validate(row, table) for row in rows]
    path = Path(path)
    if path.exists():
        header = _header(path)
        if header != table.columns:
            raise ValueError(f"{path.name} has columns {list(header)}; allowed: {table.columns}")
        with path.open("a", encoding="utf-8", newline="") as file:
            _write_rows(file, checked, table)
    else:
        replace(path, checked, table)
    return len(checked)


def replace(path: Path, rows: Iterable[Mapping[str, object]], table: Table = MEASUREMENTS) -> int:
    """Write a CSV file that holds exactly these rows, and return how many.

    Raises: ValueError if a row is invalid; then the old file stays.
    """
    checked = [schema.validate(row, table) for row in rows]
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".part")
    with fresh.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerow(table.columns)
        _write_rows(file, checked, table)
    fresh.replace(path)
    return len(checked)


def read(path: Path) -> list[Row]:
    """Return the rows of a recorded CSV file, every cell typed and checked.

    Raises: ValueError naming the file and line of the first bad row.
    """
    path = Path(path)
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        table = schema.table_of(tuple(reader.fieldnames or ()))
        rows = []
        for row in reader:
            try:
                rows.append(schema.validate(row, table))
            except ValueError as error:
                raise ValueError(f"{path.name}, line {reader.line_num}: {error}") from None
    return rows


def runs(rows: Iterable[Row]) -> list[str]:
    """Return the start times of the runs that these rows hold, newest first."""
    return sorted({str(row["started_utc"]) for row in rows}, reverse=True)


def newest(rows: Iterable[Row]) -> list[Row]:
    """Return the rows of the newest run."""
    rows = list(rows)
    starts = runs(rows)
    return [row for row in rows if starts and row["started_utc"] == starts[0]]


def select(rows: Iterable[Row], where: Mapping[str, object]) -> list[Row]:
    """Return the rows whose cells equal every entry of `where`."""
    return [row for row in rows if all(row[name] == value for name, value in where.items())]


def _header(path: Path) -> tuple[str, ...]:
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(next(csv.reader(file), ()))


def _write_rows(file, rows: list[Row], table: Table) -> None:
    writer = csv.writer(file, lineterminator="\n")
    for row in rows:
        writer.writerow([_cell(row[name]) for name in table.columns])


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)
