"""Finds, writes and reads the tables of `data/`, and picks the newest run.

`data/` has the folders performance, accuracy and hardware. A small table is a CSV file; the path of
a large one ends in .parquet. A machine without pyarrow writes NAME.csv in the place of
NAME.parquet, and `labkernels record --gather` puts its rows into the Parquet file.
"""

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


def lying(path: Path) -> Path | None:
    """Return the file that holds a table's rows, or None if there is none.

    >>> lying(path_of("prefill")).name
    'prefill.parquet'
    """
    return next((each for each in (path, path.with_suffix(".csv")) if each.exists()), None)


def append(
    path: Path,
    rows: Iterable[Mapping[str, Any]],
    table: Table = MEASUREMENTS,
    *,
    once: bool = False,
) -> int:
    """Add rows to a table, making its file if needed, and return how many were added.

    Either all of the rows are added or none, even if a crash or another writer intervenes. once:
    they take the place of what the table has of the same run.

    Raises: ValueError if a row is invalid, or the file is damaged or of another table; then nothing
    is written. parquet.Missing for a Parquet file without pyarrow.
    """
    checked = [schema.validate(row, table) for row in rows]
    with files.one_writer(path.parent):
        before = _before(path, table)
        if once:
            known = set(runs(checked))
            before = [row for row in before if row["started_utc"] not in known]
        _write(path, [*before, *checked], table)
    return len(checked)


def replace(path: Path, rows: Iterable[Mapping[str, Any]], table: Table = MEASUREMENTS) -> int:
    """Make a table hold exactly these rows, and return how many.

    Raises: ValueError if a row is invalid; then the old rows stay.
    """
    checked = [schema.validate(row, table) for row in rows]
    with files.one_writer(path.parent):
        _write(path, checked, table)
    return len(checked)


def read(source: str | Path, *, described: bool = True) -> list[Row]:
    """Return the rows of a recorded table, every cell typed and checked.

    source: the name of a table in `data/`, or the path of its file.
    described: whether the file must be the one that its folder's datapackage.json describes, if
    there is one.

    Raises: ValueError naming the file and line of the first bad row, or a file that is cut or not
    as described; FileNotFoundError; parquet.Missing, a ValueError, without pyarrow.

    >>> {type(row["kv_len"]) for row in read("mla")}
    {<class 'int'>}
    """
    path = path_of(source) if isinstance(source, str) else source
    path = lying(path) or path
    content = path.read_bytes()
    if described:
        files.require_described(path, content)
    return _format(path).read(path.name, content)


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


def _format(path: Path) -> Any:
    return parquet if path.suffix == parquet.SUFFIX else csv_text


def _before(path: Path, table: Table) -> list[Row]:
    """Return the rows that a table has, which others will follow in its file."""
    lies = lying(path)
    if lies is None:
        return []
    if lies.suffix == parquet.SUFFIX:
        files.require_described(lies, lies.read_bytes())
    rows, found = read_file(lies)
    if found is not table:
        columns = list(found.columns)
        raise ValueError(f"{lies.name} has columns {columns}; allowed: {table.columns}")
    return rows


def _write(path: Path, rows: list[Row], table: Table) -> None:
    """Write checked rows as a table; without pyarrow into a CSV file, if no Parquet file lies."""
    csv = path.with_suffix(".csv")
    try:
        content = _format(path).content(rows, table)
    except parquet.Missing:
        if path.exists():
            raise
        files.replace(csv, csv_text.content(rows, table))
        return
    files.replace(path, content)
    if path != csv:
        csv.unlink(missing_ok=True)
