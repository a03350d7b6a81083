"""Backward: gradients of attention by our kernels and their peers, timed and judged."""

from collections.abc import Iterator

from labkernels.experiments import rows as measured
from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.experiments.performance.prefill import CHANNELS, HEAD_DIMS, LENGTHS, TOKENS
from labkernels.kernels.backward.operation import OPERATION
from labkernels.kernels.backward.workload import Backward
from labkernels.measure.benchmark import Benchmark, Measured
from labkernels.measure.implementation import implementations
from labkernels.records import schema
from labkernels.records.store import Row
from labkernels.units import format_time

DATA_FILE = "performance/backward.parquet"


def grid(*, quick: bool = False) -> list[Backward]:
    """Return the workloads in the order of measurement; `quick` gives them 1024 tokens."""
    tokens, channels = (1024, 256) if quick else (TOKENS, CHANNELS)
    return [
        Backward((n,) * (tokens // n), (n,) * (tokens // n), heads, heads, head_dim, causal=causal)
        for head_dim in HEAD_DIMS
        for heads in (channels // head_dim,)
        for causal in (False, True)
        for n in ((512,) if quick else LENGTHS)
    ]


def cells(options: Options) -> Iterator[Cell]:
    """Yield the workloads of the grid."""
    for work in grid(quick=options.quick):
        yield Cell(work.label, work)


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Measure our kernels and their peers on a workload."""
    work = cell.of
    chosen = [i for i in implementations(OPERATION.name).values() if not i.missing()]
    result = recording.benchmark(OPERATION, work, chosen, graph=False)
    for item in result.measured.values():
        tera = work.flops / item.times.median_s / 1e12
        ratio = max(error.bound_ratio for error in item.errors.values())
        time = format_time(item.times.median_s)
        recording.tell(f"{item.name} {time} {tera:.0f} TFLOP/s ({ratio:.2f} of the bound)")
    yield from ((DATA_FILE, row) for row in rows_of(work, result))


def rows_of(work: Backward, result: Benchmark) -> list[Row]:
    """Return a workload's rows: times, rate, errors by head and plan, or why there are no times."""
    rows = [row for item in result.measured.values() for row in _measured_rows(work, item)]
    return rows + measured.reason_rows(work, result)


def _measured_rows(work: Backward, item: Measured) -> list[Row]:
    plan = item.step.plan
    base = measured.implementation_row(work, item.implementation, plan=plan)
    rows = measured.quartile_rows(base, "time", item.times)
    rate = work.flops / item.times.median_s
    rows.append(measured.row(base, "rate", "median", rate, "FLOP/s"))
    for name, errors in item.errors.items():
        rows.append(measured.row(base, f"{name}_error", "max_abs", errors.max_abs, "1"))
        rows.append(measured.row(base, f"{name}_bound_ratio", "max", errors.bound_ratio, "1"))
        rows += [
            measured.row(base, f"{name}_error, head {head}", "rmse", rmse, "1")
            for head, rmse in zip(errors.heads, errors.rmse, strict=True)
        ]
    if plan is not None:
        rows += measured.plan_rows(base, plan)
    return rows


EXPERIMENT = Experiment(
    "backward",
    "Backward, full and causal, beside torch SDPA's FlashAttention-2 and cuDNN",
    {DATA_FILE: schema.PREFILL_MEASUREMENTS},
    cells,
    rows,
)
