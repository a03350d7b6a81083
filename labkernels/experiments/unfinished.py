"""What an unfinished recording has measured: the same command goes on where it was ended."""

import json
import os
from dataclasses import asdict

from labkernels.experiments.experiment import Experiment, Options
from labkernels.experiments.harness import Found
from labkernels.records import files
from labkernels.records.store import Row


class Unfinished:
    """The cells that are done, in a file beside the tables until all cells are.

    A line has a cell's rows. started_utc: of the recording that began, so that all rows are of one
    run.
    """

    def __init__(self, experiment: Experiment, options: Options, origin: Row) -> None:
        self.path = options.out / f".{experiment.name}.cells.part"
        of = {name: value for name, value in origin.items() if name != "started_utc"}
        of |= {"quick": options.quick, "only": options.only}
        self.started_utc = origin["started_utc"]
        self.cells = self._read(of)  # which knows another beginning, if a recording goes on
        self._head = {"of": of, "started_utc": self.started_utc}

    def _read(self, of: Row) -> dict[str, Found]:
        """Return what is known of each cell; a line that a crash has cut is left out."""
        if not self.path.exists():
            return {}
        *lines, cut = self.path.read_bytes().split(b"\n")
        head, *cells = map(json.loads, lines or [b"{}"])
        if cut or not cells:
            files.replace(self.path, b"".join(line + b"\n" for line in lines if cells))
        if not cells:
            return {}
        other = [name for name in of if head["of"].get(name) != of[name]]
        if other:
            name = other[0]
            raise ValueError(
                f"{name} = {of[name]!r}, allowed: {head['of'].get(name)!r}, to go on with the "
                f"{len(cells)} cells in {self.path}, or any if this file is deleted"
            )
        self.started_utc = head["started_utc"]
        return {cell["label"]: Found(**cell) for cell in cells}

    def add(self, found: Found) -> None:
        """Note a cell that is done."""
        lines = [asdict(found)] if self.cells else [self._head, asdict(found)]
        self.cells[found.label] = found
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())
