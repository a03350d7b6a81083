"""One experiment for every operation: its implementations, timed and judged on a grid."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from labkernels.experiments import rows as measured
from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.kernels.operation import Operation
from labkernels.measure.benchmark import Benchmark, Measured
from labkernels.measure.implementation import Implementation
from labkernels.records import schema
from labkernels.records.store import Row
from labkernels.units import format_time


@dataclass(frozen=True)
class GridCell:
    """One workload of a grid, and why it is there.

    baseline: a simpler workload of about the same FLOPs, which is timed in the same turns: ragged
    if this workload is paged, of one length if its lengths are skewed. baseline_word: the word that
    is added to an implementation's name when it runs the baseline.
    """

    workload: Any
    why: str = ""
    baseline: Any = None
    baseline_word: str = ""


@dataclass(frozen=True)
class Timed:
    """The implementations of an operation on a grid of workloads.

    chosen(cell): what is timed, if it can run here. built(workloads): each dtype and head_dim for
    which libraries compile modules. graph: whether replays of a CUDA graph are timed, else calls in
    succession. table: of the rows. by_name: whether rows have the name of the implementation, not
    its kernel's. columns(item), errors(base, errors): further columns of the rows, and the rows of
    what the judge found.
    """

    operation: Operation
    file: str
    grid: Callable[..., Iterable[GridCell]]
    chosen: Callable[[GridCell], Iterable[Implementation]]
    built: Callable[[list[Any]], Iterable[tuple[str, int]]] | None = None
    graph: bool = False
    table: schema.Table = schema.PREFILL_MEASUREMENTS
    by_name: bool = False
    columns: Callable[[Measured], Row] = lambda item: {
        "note": item.inputs.workload.label,
        "repeats": item.times.repeats,
    }
    errors: Callable[[Row, Any], list[Row]] = measured.error_rows

    def experiment(self, title: str, name: str = "") -> Experiment:
        """Return the experiment, by default under the name of the operation."""
        tables = {self.file: self.table}
        return Experiment(name or self.operation.name, title, tables, self.cells, self.rows)

    def cells(self, options: Options) -> Iterator[Cell]:
        """Yield the workloads of the grid."""
        for found in self.grid(quick=options.quick):
            why = f" ({found.why})" if found.why else ""
            yield Cell(f"{found.workload.label}{why}", found)

    def rows(self, cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
        """Measure our kernels and their peers on a workload."""
        of, missing = cell.of, recording.once(self._build_peers)
        baseline = of.baseline and (of.baseline_word, of.baseline)
        chosen = [
            item for item in self.chosen(of) if not (missing.get(item.library) or item.missing())
        ]
        how = {"baseline": baseline, "graph": self.graph}
        result = recording.benchmark(self.operation, of.workload, chosen, **how)
        for item in result.measured.values():
            tera = item.inputs.workload.flops / item.times.median_s / 1e12
            recording.tell(f"{item.name} {format_time(item.times.median_s)} {tera:.0f} TFLOP/s")
        yield from ((self.file, row) for row in self.rows_of(of.workload, result))

    def _build_peers(self, recording: Recording) -> dict[str, str]:
        """Compile the libraries' own modules; return why a library cannot run here, by library."""
        work = [cell.of.workload for cell in recording.cells]
        return recording.build_peers(self.operation.name, self.built(work)) if self.built else {}

    def rows_of(self, workload: Any, result: Benchmark) -> list[Row]:
        """Return a workload's rows: times, rates, errors and plan, or why there are no times."""
        rows = [row for item in result.measured.values() for row in self._rows_of(workload, item)]
        return rows + measured.reason_rows(workload, result, by_name=self.by_name)

    def _rows_of(self, workload: Any, item: Measured) -> list[Row]:
        plan, timed, median_s = item.step.plan, item.inputs.workload, item.times.median_s
        name = item.name if self.by_name else ""
        base = measured.implementation_row(workload, item.implementation, kernel=name, plan=plan)
        base |= self.columns(item)
        metric = "time_graph" if item.graph else "time_eager" if item.eager else "time"
        rows = measured.quartile_rows(base, metric, item.times)
        if item.eager:
            rows.append(measured.reason_row(base, "not_captured", item.note))
        rows.append(measured.row(base, "rate", "median", timed.flops / median_s, "FLOP/s"))
        if self.graph:  # a step so short that its bytes may count
            rate = timed.kv_bytes / median_s
            rows.append(measured.row(base, "bandwidth", "median", rate, "bytes/s"))
        rows += self.errors(base, item.errors)
        return rows + (measured.plan_rows(base, plan) if plan is not None else [])
