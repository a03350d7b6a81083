"""Measure every tile of the tunable prefill kernels that fits and compiles, to check the tuner."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from labkernels.cuda.gpu import device
from labkernels.experiments import rows as measured
from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.experiments.workers import all_cores
from labkernels.kernels.cuda_kernel import TunableKernel
from labkernels.kernels.kernel import Instance, Kernel
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.registry import discover
from labkernels.measure.tuning import search
from labkernels.measure.tuning.search import Candidate, Rejected, Run
from labkernels.records import schema
from labkernels.records.store import Row
from labkernels.units import format_time

DATA_FILE = "performance/tuning.parquet"
CHANNELS, LENGTH, BATCH = 2048, 4096, 4
SHAPES = ((64, False), (128, False), (128, True), (256, False))  # head_dim, causal


@dataclass(frozen=True)
class Search:
    """A kernel whose tiles are searched for a workload."""

    spec: Kernel
    workload: Prefill

    @property
    def label(self) -> str:
        """The search as text."""
        return f"{self.spec.name}/{self.workload.label}"


def grid(*, quick: bool = False) -> list[Search]:
    """Return the searches; `quick` keeps each kind, with 256 tokens and one head."""
    batch, length, channels = (1, 256, 1) if quick else (BATCH, LENGTH, CHANNELS)
    return [
        Search(spec, _workload(batch, length, max(1, channels // head_dim), head_dim, causal))
        for spec in discover().values()
        if isinstance(spec, TunableKernel)
        for head_dim, causal in SHAPES
        if head_dim in spec.head_dims
    ]


def cells(options: Options) -> Iterator[Cell]:
    """Yield a search for each tunable kernel and shape."""
    for found in grid(quick=options.quick):
        yield Cell(found.label, found)


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Search a kernel's tiles on this machine's GPU, if the GPU has the kernel's instructions."""
    gpu, task = device.planning_gpu(0), cell.of
    if not task.spec.needs.include(gpu.arch):
        recording.tell(
            f"left out: {task.spec.name} needs {task.spec.needs}, {gpu.name} is {gpu.arch}"
        )
        return
    kept, rejected = search.by_ledger(search.space(task.spec, task.workload), gpu)
    with all_cores() as pool:
        judged = list(search.by_compiler(kept, gpu, pool))
    rejected += [item for item in judged if isinstance(item, Rejected)]
    left = [item for item in judged if isinstance(item, Candidate)]
    how = {"repeats": recording.options.repeats, "seed": recording.options.seed}
    with recording.sampling():
        runs = search.measure(left, task.workload, **how)
    for run in runs:
        if not run.errors.passed:
            recording.fail(f"{task.label}: {_name(run)}")
    recording.tell(_line(rejected, runs))
    yield from ((DATA_FILE, row) for row in rows_of(task.workload, rejected, runs))


def rows_of(workload: Prefill, rejected: Iterable[Rejected], runs: Iterable[Run]) -> list[Row]:
    """Return a row for each cause of rejection, with a count and an example, and those of runs."""
    rows, by_cause = [], defaultdict(list)
    for item in rejected:
        by_cause[item.instance.kernel, item.by, item.cause].append(item)
    for (_, by, cause), items in by_cause.items():
        base = _base(workload, items[0].instance)
        row = measured.row(base, "rejected", "total", len(items), "tiles")
        rows.append(row | {"note": f"{by}: {cause}; {items[0].reason}"})
    for run in runs:
        base = _base(workload, run.candidate.instance)
        if not run.errors.passed:
            reason = f"worst error {run.errors.bound_ratio:.3g} of its bound, allowed: 1"
            rows.append(measured.reason_row(base, "failed", reason))
            continue
        rows += measured.quartile_rows(base, "time", run.times)
        for name, unit in (("registers", "registers"), ("smem_bytes", "bytes")):
            value = getattr(run.candidate, name)
            rows.append(measured.row(base, name, "exact", value, unit))
        held = run.candidate.blocks_per_sm
        rows.append(measured.row(base, "blocks_per_sm", "exact", held, "blocks"))
    return rows


def _workload(batch: int, length: int, heads: int, head_dim: int, causal: bool) -> Prefill:
    lengths = (length,) * batch
    return Prefill(lengths, lengths, heads, heads, head_dim, causal=causal)


def _base(workload: Prefill, instance: Instance) -> Row:
    return measured.base_row(
        workload,
        kernel=instance.kernel,
        backend="cuda",
        tensor_cores="on",
        tile=instance.tile.label,
        policy=instance.policy.label,
    )


def _name(run: Run) -> str:
    return run.candidate.instance.tile.label


def _line(rejected: list[Rejected], runs: list[Run]) -> str:
    right = [run for run in runs if run.errors.passed]
    text = f"{len(rejected)} rejected, {len(runs)} measured"
    if right:
        best = min(right, key=lambda run: run.times.median_s)
        text += f", best {_name(best)} {format_time(best.times.median_s)}"
    return text


EXPERIMENT = Experiment(
    "tuning",
    "Every tile of the tunable prefill kernels, beyond those that they list",
    {DATA_FILE: schema.PREFILL_MEASUREMENTS},
    cells,
    rows,
)
