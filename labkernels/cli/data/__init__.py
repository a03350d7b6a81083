"""`labkernels data`: the recorded rows that are installed."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from labkernels.cli.options import DONE, FAILED

if TYPE_CHECKING:
    from labkernels.records.schema import Table
    from labkernels.records.store import Row

HELP = "recorded rows: show, export and check them"
DESCRIPTION = """\
A checkout and a wheel hold all recorded rows; `check` compares them with their
description, datapackage.json. `show` prints rows as CSV, of a table or of one file;
`export` writes each table as a CSV file into a new folder.

examples:
  labkernels data check                                 are the files as described
  labkernels data show mla --newest                     the rows of the newest run
  labkernels data show mla --where kernel=mla_wgmma --where metric=time
  labkernels data export --to rows                      for a spreadsheet

With `git config diff.parquet.textconv ".venv/bin/labkernels data show"`, git diff shows which
rows of a table changed.
"""


def add_options(sub: argparse.ArgumentParser) -> None:
    """Add what to do, with which table, and where to."""
    sub.add_argument("action", choices=("check", "show", "export"))
    sub.add_argument("name", nargs="?", help="a table or a file of rows to show")
    sub.add_argument("--where", action="append", default=[], help="COLUMN=VALUE, of rows to show")
    sub.add_argument("--newest", action="store_true", help="show the newest run alone")
    sub.add_argument("--to", type=Path, default=Path("labkernels-data"), help="a new folder")


def run(options: argparse.Namespace) -> int:
    """Do what is asked with the rows."""
    return {"check": _check, "show": _show, "export": _export}[options.action](options)


def _check(options: argparse.Namespace) -> int:
    from labkernels.records import datapackage, files

    wrong = datapackage.differences()
    described = files.read_description(files.DATA_DIR)
    print("\n".join(wrong) or f"{files.DATA_DIR}: {len(described)} files, all as described")
    return FAILED if wrong else DONE


def _show(options: argparse.Namespace) -> int:
    from labkernels.records import csv_text, store

    if not options.name:
        raise ValueError("a table is missing; allowed: its name, such as mla, or a file of rows")
    rows, table = _table(options.name)
    rows = store.select(rows, _wanted(options.where, table))
    rows = store.newest(rows) if options.newest else rows
    sys.stdout.write(csv_text.content(rows, table).decode("utf-8"))
    return DONE


def _export(options: argparse.Namespace) -> int:
    from labkernels.records import csv_text

    if options.to.exists():
        raise ValueError(f"to = {options.to} exists, allowed: a new folder")
    tables = _tables()
    for path in tables:
        place = (options.to / path).with_suffix(".csv")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(csv_text.content(*_table(path.name.partition(".")[0])))
    print(f"{options.to}: {len(tables)} tables as CSV")
    return DONE


def _table(name: str) -> "tuple[list[Row], Table]":
    """Return the rows of a recorded table, as described, or those of a file, as they are."""
    from labkernels.records import store

    if Path(name).suffix:
        return store.read_file(Path(name))
    found = store.lying(store.path_of(name))
    if found is None:
        known = ", ".join(path.name.partition(".")[0] for path in _tables())
        raise ValueError(f"table = {name}, allowed: a file of rows, {known}")
    return store.read(name), store.read_file(found)[1]


def _tables() -> list[Path]:
    """Return the described tables, as paths below the folder of data."""
    from labkernels.records import files, parquet

    described = map(Path, files.read_description(files.DATA_DIR))
    return [path for path in described if path.suffix in (".csv", parquet.SUFFIX)]


def _wanted(pairs: Iterable[str], table: "Table") -> "Row":
    """Return the cells that `--where` asks for, typed as their columns are."""
    from labkernels.records.schema import parse

    fields, wanted = {field.name: field for field in table.fields}, {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or name not in fields:
            raise ValueError(f"where = {pair}, allowed: COLUMN=VALUE with one of {[*fields]}")
        wanted[name] = parse(fields[name], value)
    return wanted
