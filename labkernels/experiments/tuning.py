"""Every tile of the tunable prefill kernels that fits and compiles, measured: the tuner's proof."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from labkernels import hardware
from labkernels.experiments import Options, Outcome, commit_text
from labkernels.experiments import _decode_rows as decode_rows
from labkernels.experiments._prefill_rows import workload_columns
from labkernels.kernels.spec import Instance, KernelSpec, discover
from labkernels.measure import device, tuner
from labkernels.measure.tuner import Candidate, Rejected, Run
from labkernels.records import datapackage, provenance, schema, store
from labkernels.records.store import Row
from labkernels.units import format_time
from labkernels.workload import Prefill

NAME = "tuning"
TITLE = "Every tile of the tunable prefill kernels, beyond those that they list"
DATA_FILE = "tuning.csv"
CHANNELS, LENGTH, BATCH = 2048, 4096, 4
SHAPES = ((64, False), (128, False), (128, True), (256, False))  # head_dim, causal


@dataclass(frozen=True)
class Cell:
    """One kernel and workload, whose tiles are searched."""

    spec: KernelSpec
    workload: Prefill

    @property
    def label(self) -> str:
        """What `--only` is looked for in."""
        return f"{self.spec.name}/{self.workload.label}"


def grid(*, quick: bool = False) -> list[Cell]:
    """Return the cells; `quick` keeps their kinds, at 256 tokens of one head."""
    batch, length, channels = (1, 256, 1) if quick else (BATCH, LENGTH, CHANNELS)
    return [
        Cell(spec, _workload(batch, length, max(1, channels // head_dim), head_dim, causal))
        for spec in discover().values()
        if spec.space and spec.work
        for head_dim, causal in SHAPES
        if head_dim in spec.head_dims
    ]


def run(options: Options) -> Outcome:
    """Search and measure on this machine's GPU, and write the data file as it goes.

    Raises: ValueError if there is no GPU, no commit, nothing to measure, or a quick run would
    write among the committed data.
    """
    from labkernels.cuda import device as cuda_device

    if options.quick and options.out == store.DATA_DIR:
        raise ValueError("out is data/ and quick is on; allowed: --quick with --out FOLDER")
    reason = cuda_device.available()
    if reason:
        raise ValueError(f"{NAME} needs a GPU: {reason}")
    gpu = cuda_device.planning_gpu(0)
    cells = [cell for cell in grid(quick=options.quick) if cell.spec.runs_on(gpu.arch)]
    cells = [cell for cell in cells if options.picks(cell.label)]
    if not cells:
        raise ValueError(f"only is {options.only!r} and matches nothing; allowed: 'd128, causal'")
    started, commit, facts = datetime.now(UTC), commit_text(options), device.facts()
    options.progress(f"{facts['gpu']}, {len(cells)} searches, commit {commit}")
    path, failures, total, fresh = options.out / DATA_FILE, [], 0, options.replace
    compiled = compile_all(cells, gpu)
    options.progress(f"{len(compiled)} tiles compiled")
    for cell in cells:
        with device.sampling() as reading:
            rejected, runs = search(cell, compiled, gpu, repeats=options.repeats, seed=options.seed)
        origin = provenance.collect(
            {**facts, **reading.sensors},
            seed=options.seed,
            repeats=options.repeats,
            commit=commit,
            started=started,
        )
        rows = [origin | row for row in rows_of(cell.workload, rejected, runs)]
        put = store.replace if fresh else store.append
        total, fresh = total + put(path, rows, schema.PREFILL_MEASUREMENTS), False
        failures += [f"{cell.label}: {_name(run)}" for run in runs if not run.errors.passed]
        options.progress(_line(cell, rejected, runs))
    datapackage.write(options.out)
    return Outcome(total, (path,), tuple(failures))


def compile_all(cells: Iterable[Cell], gpu: hardware.Gpu) -> dict[Instance, Candidate | Rejected]:
    """Return what the compiler makes of every tile that fits, all cells on all cores at once."""
    kept = {}
    for cell in cells:
        kept |= dict.fromkeys(tuner.by_ledger(tuner.space(cell.spec, cell.workload), gpu)[0])
    return dict(zip(kept, tuner.by_compiler(list(kept), gpu), strict=True))


def search(
    cell: Cell,
    compiled: Mapping[Instance, Candidate | Rejected],
    gpu: hardware.Gpu,
    *,
    repeats: int,
    seed: int,
) -> tuple[list[Rejected], list[Run]]:
    """Return what ledger and compiler reject of a cell's tiles, and the runs of all others."""
    kept, rejected = tuner.by_ledger(tuner.space(cell.spec, cell.workload), gpu)
    judged = [compiled[instance] for instance in kept]
    rejected += [item for item in judged if isinstance(item, Rejected)]
    candidates = [item for item in judged if isinstance(item, Candidate)]
    return rejected, tuner.measure(candidates, cell.workload, repeats=repeats, seed=seed)


def rows_of(workload: Prefill, rejected: Iterable[Rejected], runs: Iterable[Run]) -> list[Row]:
    """Return what was rejected, counted by cause with an example each, and every run."""
    rows, by_cause = [], defaultdict(list)
    for item in rejected:
        by_cause[item.instance.kernel, item.by, item.cause].append(item)
    for (_, by, cause), items in by_cause.items():
        base = _base(workload, items[0].instance)
        row = decode_rows.row(base, "rejected", "total", len(items), "tiles")
        rows.append(row | {"note": f"{by}: {cause}; {items[0].reason}"})
    for run in runs:
        base = _base(workload, run.candidate.instance)
        if not run.errors.passed:
            reason = f"worst error {run.errors.bound_ratio:.3g} of its bound, allowed: 1"
            rows.append(decode_rows.word_row(base, "failed", reason))
            continue
        rows += decode_rows.quartile_rows(base, "time", run.times)
        for name, unit in (("registers", "registers"), ("smem_bytes", "bytes")):
            value = getattr(run.candidate, name)
            rows.append(decode_rows.row(base, name, "exact", value, unit))
        held = run.candidate.blocks_per_sm
        rows.append(decode_rows.row(base, "blocks_per_sm", "exact", held, "blocks"))
    return rows


def _workload(batch: int, length: int, heads: int, head_dim: int, causal: bool) -> Prefill:
    lengths = (length,) * batch
    return Prefill(lengths, lengths, heads, heads, head_dim, causal=causal)


def _base(workload: Prefill, instance) -> Row:
    return {
        "experiment": NAME,
        "kernel": instance.kernel,
        "backend": "cuda",
        "tensor_cores": "on",
        "tile": instance.tile.label,
        "policy": instance.policy.label,
        **workload_columns(workload),
    }


def _name(run: Run) -> str:
    return run.candidate.instance.tile.label


def _line(cell: Cell, rejected: list[Rejected], runs: list[Run]) -> str:
    right = [run for run in runs if run.errors.passed]
    text = f"{cell.label}: {len(rejected)} rejected, {len(runs)} measured"
    if right:
        best = min(right, key=lambda run: run.times.median_s)
        text += f", best {_name(best)} {format_time(best.times.median_s)}"
    return text
