"""Finds, appends to, replaces and reads the tables of `data/`, and picks the newest run.

`data/` has the folders performance, accuracy and hardware, as labkernels.experiments has. A small
table is a CSV file. The path of a large one ends in .parquet, and its rows lie in up to three
files:

NAME.parquet        its rows, compressed
NAME.journal.csv    rows that follow those of NAME.parquet and are not merged into it yet
NAME.csv            where it is, all rows of the table, so that the other two do not count

Rows are written as CSV, which needs the standard library alone; `merge` makes the Parquet file.
"""

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from labkernels.records import csv_text, files, parquet, schema
from labkernels.records.files import DATA_DIR
from labkernels.records.schema import MEASUREMENTS, Table

Row = dict[str, Any]


def path_of(name: str, folder: Path = DATA_DIR, kind: str = "") -> Path:
    """Return where a table lies below a folder; a name without an ending gets that of its file.

    The place is the same as in `data/`. A table that is not there yet is a CSV file in the folder
    of its kind: performance, accuracy or hardware.
    """
    names = [name] if "." in name else [name + parquet.SUFFIX, f"{name}.csv"]
    for home in (Path(folder), DATA_DIR):
        for file_name in names:
            for path in home.glob(f"*/{file_name}"):
                return Path(folder) / path.relative_to(home)
    return Path(folder) / kind / names[-1]


def parts(path: Path) -> list[Path]:
    """Return the files that hold a table's rows, in the order of the rows; none if it is missing.

    >>> [part.name for part in parts(path_of("prefill"))]
    ['prefill.parquet']
    """
    path = Path(path)
    found = [path]
    if path.suffix == parquet.SUFFIX:
        found = [_whole(path)] if _whole(path).exists() else [path, _journal(path)]
    return [part for part in found if part.exists()]


def append(path: Path, rows: Iterable[Mapping[str, Any]], table: Table = MEASUREMENTS) -> int:
    """Add rows to a table, making its file if needed, and return how many were added.

    Either all of the rows are added or none, even if a crash or another writer intervenes. Rows
    that follow those of a Parquet file are added to its journal.

    Raises: ValueError if a row is invalid, or the CSV file has other columns or ends in half a
    line; then nothing is written.
    """
    checked, path = [schema.validate(row, table) for row in rows], Path(path)
    with files.one_writer(path.parent):
        grows = _whole(path) if parts(path) in ([], [_whole(path)]) else _journal(path)
        before = grows.read_bytes() if grows.exists() else csv_text.content([], table)
        header = tuple(csv_text.decoded(grows.name, before).partition("\n")[0].split(","))
        if header != table.columns:
            raise ValueError(f"{grows.name} has columns {list(header)}; allowed: {table.columns}")
        csv_text.require_whole(grows.name, before)
        files.replace(grows, before + csv_text.content(checked, table, header=False))
    return len(checked)


def replace(path: Path, rows: Iterable[Mapping[str, Any]], table: Table = MEASUREMENTS) -> int:
    """Make a table hold exactly these rows, in a CSV file, and return how many.

    Raises: ValueError if a row is invalid; then the old rows stay.
    """
    checked, path = [schema.validate(row, table) for row in rows], Path(path)
    with files.one_writer(path.parent):
        files.replace(_whole(path), csv_text.content(checked, table))
    return len(checked)


def merge(path: Path, table: Table) -> bool:
    """Make a table that is to be Parquet one Parquet file; return whether there was more.

    A crash leaves every row, once: NAME.csv gets all rows before anything else changes.

    Raises: ValueError if the rows are damaged, or the Parquet file is not the one that its folder's
    description names; parquet.Missing without pyarrow. Then the CSV files stay as they are.
    """
    path = Path(path)
    with files.one_writer(path.parent):
        found = parts(path)
        if path.suffix != parquet.SUFFIX or found in ([], [path]):
            return False
        contents = _contents(path)
        if path in contents:  # rows in CSV may be those of a recording, which nothing describes yet
            files.require_described(path, contents[path])
        rows = _rows(contents, table)
        merged = parquet.content(rows, table)
        files.replace(_whole(path), csv_text.content(rows, table))
        files.replace(path, merged)
        _journal(path).unlink(missing_ok=True)
        _whole(path).unlink()
    return True


def read(source: str | Path, *, described: bool = True) -> list[Row]:
    """Return the rows of a recorded table, every cell typed and checked.

    source: the name of a table in `data/`, or the path of its file.
    described: whether each file must be the one that its folder's datapackage.json describes, if
    there is one. A recording in progress is not yet described.

    Raises: ValueError naming the file and line of the first bad row, or a file that is cut or not
    as described; FileNotFoundError; parquet.Missing, a ValueError, without pyarrow.

    >>> {type(row["kv_len"]) for row in read("mla")}
    {<class 'int'>}
    """
    path = path_of(source) if isinstance(source, str) else source
    contents = _contents(path)
    for part, content in contents.items():
        if described:
            files.require_described(part, content)
    return _rows(contents)


def read_file(path: Path) -> tuple[list[Row], Table]:
    """Return the rows of one file as it is, whatever lies beside it, and their table.

    Raises: ValueError naming what is wrong in the file; FileNotFoundError.

    >>> read_file(path_of("chaos"))[1].name
    'chaos'
    """
    of, content = _format(path), path.read_bytes()
    return of.read(path.name, content), of.table_of(path.name, content)


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


def _whole(path: Path) -> Path:
    return path.with_suffix(".csv") if path.suffix == parquet.SUFFIX else path


def _journal(path: Path) -> Path:
    return path.with_suffix(".journal.csv")


def _format(path: Path) -> Any:
    return parquet if path.suffix == parquet.SUFFIX else csv_text


def _contents(path: Path) -> dict[Path, bytes]:
    """Return the parts of a table with their contents, all of one moment."""
    while True:
        before = _state(path)
        try:
            contents = {part: part.read_bytes() for part in before or [path]}
        except FileNotFoundError:
            if _state(path) == before:
                raise
            continue
        if _state(path) == before:  # else they were merged, and a row may be in two of them
            return contents


def _state(path: Path) -> dict[Path, tuple[int, int]]:
    """Return what tells a part from any other file that had its name or will have it."""
    found = {}
    for part in parts(path):
        with contextlib.suppress(FileNotFoundError):
            about = part.stat()
            found[part] = (about.st_ino, about.st_mtime_ns)
    return found


def _rows(contents: Mapping[Path, bytes], table: Table | None = None) -> list[Row]:
    """Return the rows of a table's parts, which must have the same columns: the table's, if any."""
    rows: list[Row] = []
    for part, content in contents.items():
        of = _format(part)
        if table is not None or len(contents) > 1:
            found = of.table_of(part.name, content)
            table = table or found
            if found is not table:
                columns = list(found.columns)
                raise ValueError(f"{part.name} has columns {columns}; allowed: {table.columns}")
        rows += of.read(part.name, content)
    return rows
