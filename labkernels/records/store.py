"""Finds, appends to, replaces and reads the CSV files of `data/`, and picks the newest run.

`data/` has the folders performance, accuracy and hardware, as labkernels.experiments has.
"""

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from labkernels.records import files, schema
from labkernels.records.files import DATA_DIR
from labkernels.records.schema import MEASUREMENTS, Table

Row = dict[str, Any]


def path_of(name: str, folder: Path = DATA_DIR, kind: str = "") -> Path:
    """Return where a table lies below a folder; a name without an ending gets `.csv`.

    The place is the same as in `data/`. A table that is not there yet goes to the folder of its
    kind: performance, accuracy or hardware.
    """
    file_name = name if "." in name else f"{name}.csv"
    for home in (Path(folder), DATA_DIR):
        for path in home.glob(f"*/{file_name}"):
            return Path(folder) / path.relative_to(home)
    return Path(folder) / kind / file_name


def append(path: Path, rows: Iterable[Mapping[str, Any]], table: Table = MEASUREMENTS) -> int:
    """Add rows to a CSV file, making it if needed, and return how many were added.

    Either all of the rows are added or none, even if a crash or another writer intervenes.

    Raises: ValueError if a row is invalid, or the file has other columns or ends in half a line;
    then nothing is written.
    """
    checked, path = [schema.validate(row, table) for row in rows], Path(path)
    with files.one_writer(path.parent):
        before = path.read_bytes() if path.exists() else _csv([table.columns])
        header = tuple(_decoded(path, before).partition("\n")[0].split(","))
        if header != table.columns:
            raise ValueError(f"{path.name} has columns {list(header)}; allowed: {table.columns}")
        require_whole(path, before)
        files.replace(path, before + _csv(_cells(checked, table)))
    return len(checked)


def replace(path: Path, rows: Iterable[Mapping[str, Any]], table: Table = MEASUREMENTS) -> int:
    """Write a CSV file that holds exactly these rows, and return how many.

    Raises: ValueError if a row is invalid; then the old file stays.
    """
    rows = list(rows)
    update(path, lambda before: rows, table)
    return len(rows)


def update(
    path: Path,
    change: Callable[[list[Row]], Iterable[Mapping[str, Any]]],
    table: Table = MEASUREMENTS,
) -> None:
    """Replace the rows of a CSV file by change(rows), with no other write in between.

    Raises: ValueError if a row is invalid; then the old file stays.
    """
    path = Path(path)
    with files.one_writer(path.parent):
        before = read(path, described=False) if path.exists() else []
        checked = [schema.validate(row, table) for row in change(before)]
        files.replace(path, _csv([table.columns, *_cells(checked, table)]))


def read(source: str | Path, *, described: bool = True) -> list[Row]:
    """Return the rows of a recorded table, every cell typed and checked.

    source: the name of a table in `data/`, or the path of a file.
    described: whether the file must be the one that its folder's datapackage.json describes, if
    there is one. A recording in progress is not yet described.

    Raises: ValueError naming the file and line of the first bad row, or a file that is cut or not
    as described; FileNotFoundError.

    >>> {type(row["kv_len"]) for row in read("mla")}
    {<class 'int'>}
    """
    path = path_of(source) if isinstance(source, str) else source
    content = files.read_described(path) if described else path.read_bytes()
    text = _decoded(path, content)
    require_whole(path, content)
    reader = csv.DictReader(io.StringIO(text, newline=""))
    rows = []
    try:
        table = schema.table_of(tuple(reader.fieldnames or ()))
        rows.extend(schema.validate(row, table) for row in reader)
    except (ValueError, csv.Error) as error:
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


def select(rows: Iterable[Row], where: Mapping[str, Any]) -> list[Row]:
    """Return the rows whose cells equal every entry of `where`."""
    kept = list(rows)
    for name, value in where.items():  # column by column, since the first column leaves few rows
        kept = [row for row in kept if row[name] == value]
    return kept


def _decoded(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path.name}, line {line}: {error.reason}") from None


def require_whole(path: Path, content: bytes) -> None:
    """Refuse a file that was cut in its last line, where half a number looks like a number.

    Raises: ValueError naming the line.
    """
    if not content.endswith(b"\n"):
        line = content.count(b"\n") + 1
        raise ValueError(f"{path.name}, line {line}: the file is cut in the middle of a line")


def _csv(lines: Iterable[Iterable[str]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue().encode("utf-8")


def _cells(rows: list[Row], table: Table) -> list[list[str]]:
    return [[_cell(row[name]) for name in table.columns] for row in rows]


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)
