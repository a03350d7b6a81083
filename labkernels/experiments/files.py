"""The files of a recording: tables that grow, and tables that hold only the newest run."""

from collections.abc import Iterable
from pathlib import Path

from labkernels.experiments.experiment import Experiment, Options
from labkernels.records import store
from labkernels.records.store import Row


class Files:
    """What a recording has written: how many rows, and which files."""

    def __init__(self, experiment: Experiment, options: Options) -> None:
        self._experiment, self._options = experiment, options
        self.rows, self.written = 0, list[Path]()

    def put(self, found: Iterable[tuple[str, Row]], *, complete: bool) -> None:
        """Put rows, each with the name of its table.

        A table that grows has each run once, whatever was put of it before. A renewed table is
        written anew; among the committed data only if the recording is complete.
        Raises: ValueError if a table cannot be written.
        """
        whole, by_file = complete and not self._options.only, dict[str, list[Row]]()
        for name, row in found:
            by_file.setdefault(name, []).append(row)
        for name, rows in by_file.items():
            path, table = self._options.out / name, self._experiment.tables[name]
            renewed = name in self._experiment.renewed
            if renewed and not whole and self._options.out == store.DATA_DIR:
                continue
            if renewed or self._options.replace:
                self.rows += store.replace(path, rows, table)
            else:
                self.rows += store.append(path, rows, table, once=True)
            self.written.append(store.lying(path) or path)

    def other(self, name: str) -> Path:
        """Return the path of a file other than a table, and count it as written."""
        path = self._options.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self.written.append(path)
        return path
