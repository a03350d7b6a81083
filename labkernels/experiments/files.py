"""The files of a recording: tables that grow, and tables that hold only the newest run."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from labkernels.records import store
from labkernels.records.store import Row

if TYPE_CHECKING:
    from labkernels.experiments.harness import Experiment, Options


class Files:
    """What a recording has written: how many rows, and which files.

    The rows of a cell are added to a growing table as soon as the cell is done, so an interruption
    does not lose them. A renewed table is written at the end; among the committed data only if the
    recording is complete.
    """

    def __init__(self, experiment: "Experiment", options: "Options") -> None:
        self._experiment, self._options = experiment, options
        self._fresh = set(experiment.tables) if options.replace else set()
        self._held: dict[str, list[Row]] = {name: [] for name in experiment.renewed}
        self.rows = 0
        self.written: list[Path] = []

    def put(self, found: Iterable[tuple[str, Row]]) -> None:
        """Take the rows of a cell, each with the file that it belongs to.

        Raises: ValueError if a row does not fit its table.
        """
        by_file: dict[str, list[Row]] = {}
        for name, row in found:
            by_file.setdefault(name, []).append(row)
        for name, rows in by_file.items():
            if name in self._held:
                self._held[name] += rows
            else:
                put = store.replace if name in self._fresh else store.append
                self._count(name, put(self._path(name), rows, self._experiment.tables[name]))
                self._fresh.discard(name)

    def other(self, name: str) -> Path:
        """Return the path of a file other than a table, and count it as written."""
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.written.append(path)
        return path

    def close(self, *, complete: bool, origin: Row) -> None:
        """Write the renewed tables, unless a part would replace a whole committed table."""
        whole = complete and not self._options.only
        for name, rows in self._held.items():
            if not rows or (not whole and self._options.out == store.DATA_DIR):
                continue
            self._renew(name, rows, origin)
            self._count(name, len(rows))

    def _renew(self, name: str, rows: list[Row], origin: Row) -> None:
        def with_kept(before: list[Row]) -> list[Row]:
            return [*(row for row in before if self._experiment.keeps(row, origin)), *rows]

        store.update(self._path(name), with_kept, self._experiment.tables[name])

    def _path(self, name: str) -> Path:
        return self._options.out / name

    def _count(self, name: str, rows: int) -> None:
        self.rows += rows
        if self._path(name) not in self.written:
            self.written.append(self._path(name))
