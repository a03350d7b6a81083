"""The function that records an experiment: a sweep of its cells over any executor.

`record` checks the options, has each cell measured, notes it on the disk as it comes, writes the
tables at the end, collects failures, and notes how long the recording took. Workers may die: no
cell is lost or written twice.
"""

import time
from collections.abc import Iterator
from concurrent.futures import Executor, as_completed
from dataclasses import replace
from datetime import UTC, datetime

from labkernels.experiments import durations, workers
from labkernels.experiments.experiment import Cell, Experiment, Options, Outcome
from labkernels.experiments.files import Files
from labkernels.experiments.harness import Found, checked_origin, measured, recording
from labkernels.experiments.unfinished import Unfinished
from labkernels.records import datapackage, parquet, provenance, store


class Sweep:
    """The measurement of cells by an executor, whose workers write no tables: this process does."""

    def __init__(self, experiment: Experiment, options: Options, pool: Executor) -> None:
        self.experiment, self.options, self.pool = experiment, options, pool
        self.cells, self.failures = experiment.chosen(options), list[str]()
        if not isinstance(pool, workers.InTurn):
            self.options = replace(options, say=print, out=options.out.absolute())
        self.asked = (experiment, self.options)
        self.origin = pool.submit(checked_origin, *self.asked).result()
        self.origin["started_utc"] = provenance.utc_text(datetime.now(UTC))
        self.unfinished = Unfinished(experiment, self.options, self.origin)
        self.origin["started_utc"] = self.unfinished.started_utc
        known = self.unfinished.cells.values()
        self.before_s = max((found.seconds for found in known), default=0.0)
        self.began_s = time.monotonic()
        self.files = Files(experiment, self.options)

    def run(self) -> Outcome:
        """Measure every cell; an interruption keeps what was measured, and is raised again."""
        name, cells, known = self.experiment.name, len(self.cells), self.unfinished.cells
        dirty = " with changes" if self.origin["dirty"] else ""
        self._say(
            f"{name} on {self.origin['device']}, {cells} cells, commit {self.origin['commit']}"
            f"{dirty}, {durations.expected(name, cells)}"
        )
        left = [cell for cell in self.cells if cell.label not in known]
        if known:
            self._say(f"goes on: {len(known)} cells are in {self.unfinished.path}")
        try:
            for number, found in enumerate(self._found(left), 1):
                self._keep(found)
                self._tell(found, number, len(left))
        finally:
            noted, whole = [], self._write()
            if whole and not self.options.quick:
                took = (len(self.cells), self._elapsed_s())
                noted = [durations.write(self.options.out, self.origin, *took)]
            datapackage.write(self.options.out, [*self.files.written, *noted])
            if whole:
                self.unfinished.path.unlink(missing_ok=True)
            recording.cache_clear()
        return Outcome(self.files.rows, tuple(self.files.written), tuple(self.failures))

    def _write(self) -> bool:
        """Put what was measured into the tables, in the order of the cells; return if it is all."""
        known = self.unfinished.cells
        done = [known[cell.label] for cell in self.cells if cell.label in known]
        complete = len(done) == len(self.cells)
        for found in done:
            self.failures += found.failures
            for name in found.written:
                self.files.other(name)
        rows = (row for found in done for row in found.rows or ())
        self.files.put(rows, complete=complete)
        return complete

    def _found(self, left: list[Cell]) -> Iterator[Found]:
        """Yield what workers say of cells, in the order in which they are done."""
        what = (*self.asked, self.origin["started_utc"])
        futures = {self.pool.submit(measured, *what, cell.label): cell.label for cell in left}
        in_turn = isinstance(self.pool, workers.InTurn)  # which works when it is asked
        for future in futures if in_turn else as_completed(futures):
            try:
                yield future.result()
            except Exception as error:  # of the worker, since a cell's own are in what it says
                words = f"{futures[future]}: {' '.join(str(error).split())}"
                yield Found(futures[future], None, [words], ["failed"], [], self.origin)

    def _keep(self, found: Found) -> None:
        other = [name for name, value in self.origin.items() if found.origin.get(name) != value]
        if other:
            here, there = self.origin[other[0]], found.origin.get(other[0])
            words = f"its worker has {other[0]} = {there!r}; allowed: {here!r}, as at the beginning"
            found = replace(found, rows=None, failures=[f"{found.label}: {words}"])
        if found.rows is None:
            self.failures += found.failures
        else:
            self.unfinished.add(replace(found, seconds=self._elapsed_s()))

    def _elapsed_s(self) -> float:
        return self.before_s + time.monotonic() - self.began_s

    def _say(self, text: str) -> None:
        """Print a line of progress that begins with the elapsed time."""
        self.options.say(f"[{self._elapsed_s():6.1f} s] {text}")

    def _tell(self, found: Found, number: int, of: int) -> None:
        told, done = list(found.told), len(self.cells) - of + number
        if more := of - number:  # assumes that the other cells take as long
            left_s = (time.monotonic() - self.began_s) / number * more
            told.append(f"{durations.words(left_s)} left")
        self._say(f"{done}/{len(self.cells)} {found.label}: {', '.join(told)}")


def record(experiment: Experiment, options: Options) -> Outcome:
    """Measure an experiment, and write its files.

    Raises: ValueError if no cell is chosen, if a part would replace committed data of the whole
    grid, if a machine lacks what the experiment needs, if a table that lies there cannot be read,
    or if another recording is unfinished.
    """
    experiment.chosen(options)
    _check(experiment, options)
    with workers.executor(options.scheduler, alone=experiment.alone) as pool:
        return Sweep(experiment, options, pool).run()


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
    try:
        for name in experiment.tables:  # one that cannot be read is told before hours of measuring
            if store.lying(options.out / name):
                store.read(options.out / name)
    except parquet.Missing as error:
        raise ValueError(f"{error}; allowed: --out NEW FOLDER, and --gather it later") from None
