"""The function that records an experiment.

`record` does what every recording needs: it checks the options, runs each cell, adds provenance to
the cell's rows, writes them as they come, collects failures, and notes how long the recording took.
"""

import contextlib
import gc
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from labkernels.experiments import durations
from labkernels.experiments.experiment import Cell, Experiment, Options, Outcome
from labkernels.experiments.files import Files
from labkernels.experiments.workers import all_cores
from labkernels.records import datapackage, parquet, provenance, store
from labkernels.records.store import Row

if TYPE_CHECKING:
    from labkernels.kernels.operation import Operation
    from labkernels.measure.benchmark import Benchmark

CPU = "CPU build"  # the device of rows that no GPU computed
T = TypeVar("T")


class Recording:
    """One run of an experiment, which is passed to its `rows`.

    cells: the cells to measure. sensors: clock and power while a cell's rows were measured.
    origin: columns that all rows of the run share; a row gets those that its table has.
    """

    def __init__(self, experiment: Experiment, options: Options, cells: list[Cell]) -> None:
        self.experiment, self.options, self.cells = experiment, options, cells
        self.started = datetime.now(UTC)
        self.sensors = {"sm_clock_mhz": 0.0, "power_w": 0.0}
        self.failures: list[str] = []
        self.told: list[str] = []
        self._began_s, self._done = time.monotonic(), 0
        self._once: dict[Callable, Any] = {}
        self._begun: dict[Callable, dict[str, Any]] = {}
        self._pool: Executor | None = None
        self._open = contextlib.ExitStack()
        self._files = Files(experiment, options)
        self.on_gpu = gpu_missing() is None
        self.origin = self._origin()

    @property
    def device(self) -> str:
        """The device of the kernels: "cuda", or "cpu" if there is no GPU."""
        return "cuda" if self.on_gpu else "cpu"

    def progress(self, text: str) -> None:
        """Print a line of progress that begins with the elapsed time."""
        self.options.say(f"[{time.monotonic() - self._began_s:6.1f} s] {text}")

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

    @property
    def pool(self) -> Executor:
        """An executor on all cores of this machine."""
        if self._pool is None:
            self._pool = self._open.enter_context(all_cores())
        return self._pool

    def ahead(self, work: Callable[..., T], cell: Cell, *arguments: object) -> T:
        """Return work(cell.of, *arguments).

        The first call starts the work on all cores for all cells whose `of` has the same type.
        """
        if work not in self._begun:
            alike = [c for c in self.cells if type(c.of) is type(cell.of)]
            self._begun[work] = {c.label: self.pool.submit(work, c.of, *arguments) for c in alike}
        return self._begun[work][cell.label].result()

    def path(self, name: str) -> Path:
        """Return the path of a file other than a table, and count it as written."""
        return self._files.other(name)

    def run(self) -> Outcome:
        """Measure every cell; an interruption keeps what was measured, and is raised again.

        Renewed files among the committed data are kept as they were unless all is measured.
        """
        try:
            with self._open:
                for cell in self.cells:
                    self._measure(cell)
        finally:
            complete, noted = self._done == len(self.cells), []
            self.failures += self._files.close(complete=complete, origin=self.origin)
            if complete and not self.options.quick:
                seconds = time.monotonic() - self._began_s
                noted = [durations.write(self.options.out, self.origin, self._done, seconds)]
            datapackage.write(self.options.out, [*self._files.written, *noted])
        return Outcome(self._files.rows, tuple(self._files.written), tuple(self.failures))

    def _measure(self, cell: Cell) -> None:
        self.told = []
        try:
            found = [
                (name, row | self._rest_of(name, row))
                for name, row in self.experiment.rows(cell, self)
            ]
            self._files.put(found)
            self._done += 1
        except Exception as error:  # the other cells are measured even if one fails
            self.fail(f"{cell.label}: {words_of(error)}")
            self.tell("failed")
        number = self.cells.index(cell) + 1
        if more := len(self.cells) - number:  # assumes that the other cells take as long
            left_s = (time.monotonic() - self._began_s) / number * more
            self.tell(f"{durations.words(left_s)} left")
        self.progress(f"{number}/{len(self.cells)} {cell.label}: {', '.join(self.told)}")
        _free()

    def _rest_of(self, name: str, row: Row) -> Row:
        """Return the columns of a row's table that the recording knows and the row lacks."""
        known = {**self.origin, **self.sensors}
        columns = self.experiment.tables[name].columns
        return {key: known[key] for key in columns if key in known and key not in row}

    def _origin(self) -> Row:
        options = self.options
        commit, dirty = provenance.source_state(options.commit)
        origin = {
            "experiment": self.experiment.name,
            "commit": commit,
            "dirty": dirty,
            "device": CPU,
            "seed": options.seed,
            "repeats": options.repeats,
            "started_utc": provenance.utc_text(self.started),
        }
        if self.on_gpu:
            from labkernels.measure import telemetry

            origin |= telemetry.facts()
            origin["device"] = origin["gpu"]
        return origin


def gpu_missing() -> str | None:
    """Return why no kernel can run on a GPU of this machine, or None."""
    from labkernels.cuda.gpu import device

    return device.available()


def record(experiment: Experiment, options: Options) -> Outcome:
    """Measure an experiment on this machine, and write its files during the measurement.

    Raises: ValueError if no cell is chosen, if a part would replace committed data of the whole
    grid, or if the machine lacks what the experiment needs.
    """
    cells = experiment.chosen(options)
    _check(experiment, options)
    recording = Recording(experiment, options, cells)
    origin = recording.origin
    dirty = " with changes" if origin["dirty"] else ""
    recording.progress(
        f"{experiment.name} on {origin['device']}, {len(cells)} cells, "
        f"commit {origin['commit']}{dirty}, {durations.expected(experiment.name, len(cells))}"
    )
    return recording.run()


def check_place(experiment: Experiment, options: Options) -> None:
    """Raise ValueError if a recording may not stand in `data/`: of tiny workloads, or of a part."""
    if options.out == store.DATA_DIR and (options.quick or (options.only and experiment.whole)):
        if experiment.whole:
            raise ValueError("out is data/, where the table must be whole; allowed: --out FOLDER")
        raise ValueError("out is data/ and quick is on; allowed: --quick with --out FOLDER")


def _check(experiment: Experiment, options: Options) -> None:
    check_place(experiment, options)
    if options.repeats < 2:
        raise ValueError(f"repeats is {options.repeats}; allowed: 2 or more")
    reason = gpu_missing() if experiment.needs_gpu else None
    if reason:
        raise ValueError(f"{experiment.name} needs a GPU: {reason}")
    reason = experiment.missing() or _unreadable(experiment, options)
    if reason:
        raise ValueError(f"{experiment.name} cannot be recorded here: {reason}")


def _unreadable(experiment: Experiment, options: Options) -> str | None:
    """Return why rows that a recording would keep cannot be read here, or None."""
    paths = [options.out / name for name in experiment.renewed if experiment.keeps]
    lies = [path for path in paths if path.suffix == parquet.SUFFIX and path in store.parts(path)]
    reason = parquet.missing() if lies else None
    return reason and f"it keeps rows of {lies[0].name}, and {reason}; allowed: --out NEW FOLDER"


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
