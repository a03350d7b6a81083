"""What every cell of an experiment needs while it is measured, wherever that is.

A cell is measured by one process, which adds provenance to its rows and collects failures. It
writes no table: what it found goes to the sweep that asked.
"""

import contextlib
import gc
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from labkernels.experiments import workers
from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.records import provenance, schema
from labkernels.records.store import Row

if TYPE_CHECKING:
    from labkernels.kernels.operation import Operation
    from labkernels.measure.benchmark import Benchmark

CPU = "CPU build"  # the device of rows that no GPU computed
T = TypeVar("T")
_TURN = threading.Lock()  # of this process, which measures one cell at a time


class Recording:
    """One run of an experiment, which is passed to its `rows`.

    cells: the cells to measure. sensors: clock and power while a cell's rows were measured.
    origin: columns that all rows of the run share; a row gets those that its table has.
    """

    def __init__(
        self, experiment: Experiment, options: Options, cells: list[Cell], started_utc: str = ""
    ) -> None:
        self.experiment, self.options, self.cells = experiment, options, cells
        self.sensors = {"sm_clock_mhz": 0.0, "power_w": 0.0}
        self.failures: list[str] = []
        self.told: list[str] = []
        self.written: list[str] = []
        self._once: dict[Callable, Any] = {}
        self.on_gpu = gpu_missing() is None
        started_utc = started_utc or provenance.utc_text(datetime.now(UTC))
        self.origin = origin_of(experiment, options) | {"started_utc": started_utc}

    @property
    def device(self) -> str:
        """The device of the kernels: "cuda", or "cpu" if there is no GPU."""
        return "cuda" if self.on_gpu else "cpu"

    def progress(self, text: str) -> None:
        """Print a line about work that several cells need."""
        self.options.say(text)

    def tell(self, words: str) -> None:
        """Add words to the line that is printed when the cell is done."""
        self.told.append(words)

    def fail(self, words: str) -> None:
        """Note a failure; the recording goes on, and its outcome lists all failures."""
        self.failures.append(words)

    def benchmark(
        self, operation: "Operation", workload: object, of: Iterable, **how
    ) -> "Benchmark":
        """Measure implementations as `measure.benchmark` does, with this recording's options.

        The recording takes over clock and power, the failures, and what has no times.
        """
        from labkernels.measure.benchmark import benchmark

        options = self.options
        drawn = {"repeats": options.repeats, "seed": options.seed, "device": self.device}
        result = benchmark(operation, workload, of, **drawn, **how)
        self.sensors = result.sensors
        self.failures += result.failures
        for reason in result.reasons:
            self.tell(f"{reason.name} {reason.metric}")
        return result

    def once(self, work: "Callable[[Recording], T]") -> T:
        """Return work(recording), which is called only the first time."""
        if work not in self._once:
            self._once[work] = work(self)
        return self._once[work]

    def build_peers(self, operation: str, shapes: Iterable[tuple[str, int]]) -> dict[str, str]:
        """Compile the libraries' own modules by `peer.build`, and print what cannot run here."""
        from labkernels.measure.peers import peer

        missing = peer.build(operation, shapes)
        for reason in missing.values():
            self.progress(reason)
        return missing

    @contextlib.contextmanager
    def sampling(self) -> Iterator[None]:
        """Read the GPU's clock and power for the cell's rows while the body runs."""
        from labkernels.measure import telemetry

        with telemetry.sampling() as reading:
            yield
        self.sensors = reading.sensors

    def path(self, name: str) -> Path:
        """Return the path of a file other than a table, and count it as written."""
        path = self.options.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self.written.append(name)
        return path

    def measure(self, cell: Cell) -> "Found":
        """Return what a cell gives; an error in it is noted as a failure."""
        self.told, self.failures, self.written, rows = [], [], [], None
        try:
            rows = workers.alone(self._rows, cell) if self.experiment.alone else self._rows(cell)
        except Exception as error:  # the other cells are measured even if one fails
            self.fail(f"{cell.label}: {words_of(error)}")
            self.tell("failed")
        _free()
        return Found(cell.label, rows, self.failures, self.told, self.written, self.origin)

    def _rows(self, cell: Cell) -> list[tuple[str, Row]]:
        return [(name, self._whole(name, row)) for name, row in self.experiment.rows(cell, self)]

    def _whole(self, name: str, row: Row) -> Row:
        """Return a row with the columns of its table that the recording knows and the row lacks."""
        known, table = {**self.origin, **self.sensors}, self.experiment.tables[name]
        rest = {key: known[key] for key in table.columns if key in known and key not in row}
        return schema.validate(row | rest, table)


@dataclass(frozen=True)
class Found:
    """What a worker says of a cell: its rows (None if it failed), and files other than tables.

    seconds: from the beginning of the sweep to the end of the cell, which the sweep adds.
    """

    label: str
    rows: list[tuple[str, Row]] | None
    failures: list[str]
    told: list[str]
    written: list[str]
    origin: Row
    seconds: float = 0.0


def checked_origin(experiment: Experiment, options: Options) -> Row:
    """Return `origin_of`; raise ValueError if this machine lacks what the experiment needs."""
    reason = gpu_missing() if experiment.needs_gpu else None
    if reason:
        raise ValueError(f"{experiment.name} needs a GPU: {reason}")
    if reason := experiment.missing():
        raise ValueError(f"{experiment.name} cannot be recorded here: {reason}")
    return origin_of(experiment, options)


def origin_of(experiment: Experiment, options: Options) -> Row:
    """Return what all rows of a recording on this machine have in common, but for its beginning."""
    commit, dirty = provenance.source_state(options.commit)
    origin = {"experiment": experiment.name, "commit": commit, "dirty": dirty, "device": CPU}
    origin |= {"seed": options.seed, "repeats": options.repeats}
    if gpu_missing() is None:
        from labkernels.measure import telemetry

        origin |= telemetry.facts()
        origin["device"] = origin["gpu"]
    return origin


@lru_cache(maxsize=1)
def recording(experiment: Experiment, options: Options, started_utc: str) -> Recording:
    """Return the recording that the cells of a sweep share in a worker's process."""
    return Recording(experiment, options, experiment.chosen(options), started_utc)


def measured(experiment: Experiment, options: Options, started_utc: str, label: str) -> Found:
    """Measure a cell in this process, which measures one at a time."""
    with _TURN:
        its = recording(experiment, options, started_utc)
        return its.measure(next(cell for cell in its.cells if cell.label == label))


def gpu_missing() -> str | None:
    """Return why no kernel can run on a GPU of this machine, or None."""
    from labkernels.cuda.gpu import device

    return device.available()


def words_of(error: Exception) -> str:
    """Return an error in one line, with the place in the source where it was raised."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split()) or "no message"
    return f"{type(error).__name__}: {text} ({Path(place.filename).name}:{place.lineno})"


def _free() -> None:
    """Free the memory of a cell, so that the next cell has the whole GPU."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
