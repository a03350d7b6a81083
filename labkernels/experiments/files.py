"""The files of a recording: tables that grow, and tables that hold only the newest run.

Rows are written as CSV while a recording runs; at its end, `merge` makes the Parquet files.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from labkernels.experiments.experiment import Experiment, Options
from labkernels.records import parquet, store
from labkernels.records.schema import Table
from labkernels.records.store import Row


class Files:
    """What a recording has written: how many rows, and which files.

    The rows of a cell are added to a growing table as soon as the cell is done, so an interruption
    does not lose them. A renewed table is written at the end; among the committed data only if the
    recording is complete.
    """

    def __init__(self, experiment: Experiment, options: Options) -> None:
        self._experiment, self._options = experiment, options
        self._fresh = set(experiment.tables) if options.replace else set()
        self._held: dict[str, list[Row]] = {name: [] for name in experiment.renewed}
        self._touched: list[Path] = []
        self.rows = 0

    @property
    def written(self) -> list[Path]:
        """The files that hold what was written: of a table that was not merged, those in CSV."""
        parts = [(path, store.parts(path)) for path in self._touched]
        return [part for path, found in parts for part in found[1:] or found or [path]]

    def put(self, found: Iterable[tuple[str, Row]], *, again: bool = False) -> None:
        """Take the rows of a cell, each with the file that it belongs to.

        again: the rows may already be in a table that grows, of a recording that was ended.
        Raises: ValueError if a row does not fit its table.
        """
        by_file: dict[str, list[Row]] = {}
        for name, row in found:
            by_file.setdefault(name, []).append(row)
        for name, rows in by_file.items():
            if name in self._held:
                self._held[name] += rows
            elif again and rows[-1] in self._lying(name):
                self._count(name, len(rows))
                self._fresh.discard(name)
            else:
                put = store.replace if name in self._fresh else store.append
                self._count(name, put(self._path(name), rows, self._experiment.tables[name]))
                self._fresh.discard(name)

    def _lying(self, name: str) -> list[Row]:
        path = self._path(name)
        return store.read(path, described=False) if store.parts(path) else []

    def other(self, name: str) -> Path:
        """Return the path of a file other than a table, and count it as written."""
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._touched.append(path)
        return path

    def close(self, *, complete: bool) -> list[str]:
        """Write the renewed tables, unless a part would replace a whole committed table.

        Then merge the tables that are Parquet files; return why one could not be merged.
        """
        whole = complete and not self._options.only
        for name, rows in self._held.items():
            if not rows or (not whole and self._options.out == store.DATA_DIR):
                continue
            self._count(name, store.replace(self._path(name), rows, self._experiment.tables[name]))
        tables = {self._path(name): table for name, table in self._experiment.tables.items()}
        written = {path: table for path, table in tables.items() if path in self._touched}
        return merge(written, self._options)

    def _path(self, name: str) -> Path:
        return self._options.out / name

    def _count(self, name: str, rows: int) -> None:
        self.rows += rows
        if self._path(name) not in self._touched:
            self._touched.append(self._path(name))


def merge(tables: Mapping[Path, Table], options: Options) -> list[str]:
    """Make the tables that are to be Parquet so; say and return why one could not be.

    Its rows then stay in CSV files, which count as a part of the table.
    """
    failures = []
    for path, table in tables.items():
        try:
            store.merge(path, table)
        except ValueError as error:
            kept = " and ".join(part.name for part in store.parts(path))
            words = f"{kept} could not be merged into {path.name}: {error}"
            options.say(f"{words}; later: labkernels record --merge --out {options.out}")
            if not isinstance(error, parquet.Missing):
                failures.append(words)
    return failures
