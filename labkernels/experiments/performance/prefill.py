"""Prefill with tensor cores on and off, ragged and paged: our kernels and their peers."""

from collections.abc import Iterator
from dataclasses import dataclass

from labkernels.experiments import rows as measured
from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.kernels.prefill.operation import OPERATION
from labkernels.kernels.prefill.workload import Prefill
from labkernels.measure.benchmark import Benchmark, Measured
from labkernels.measure.implementation import implementations
from labkernels.records import schema
from labkernels.records.store import Row
from labkernels.units import format_time

DATA_FILE = "performance/prefill.parquet"
TOKENS = 16384  # per batch, with heads x head_dim = 2048, as in FlashAttention's papers
CHANNELS = 2048
HEAD_DIMS = (64, 128, 256)
LENGTHS = (512, 2048, 8192, 16384)
# Keys per page, by head_dim. Pages of 1, the default of SGLang, 2 and 4 hold no TMA box of 8 keys.
PAGE_SIZES = {64: (1, 16, 64), 128: (1, 2, 4, 8, 16, 64), 256: (1, 16, 64)}
PAGED_LENGTHS = (2048, 16384)
# Lengths in proportion; `_skewed` scales them to the FLOPs of eight equal lengths.
SKEWED = (0.82, 0.46, 0.26, 0.15, 0.1, 0.08, 0.06, 0.05)
CUDA_CORES_LENGTHS = (2048,)  # alone: prefill_fma takes about ten times as long as prefill_mma


@dataclass(frozen=True)
class GridCell:
    """One workload of the grid, and why it is there.

    baseline: a simpler workload of about the same FLOPs, which is timed in the same turns: ragged
    if this workload is paged, of one length if its lengths are skewed. baseline_word: the word that
    is added to an implementation's name when it runs the baseline.
    """

    workload: Prefill
    why: str
    baseline: Prefill | None = None
    baseline_word: str = ""


def grid(*, quick: bool = False) -> list[GridCell]:
    """Return the cells in the order of measurement; `quick` keeps each kind, with 1024 tokens."""
    tokens, channels = (1024, 256) if quick else (TOKENS, CHANNELS)
    lengths = (512,) if quick else LENGTHS
    cells = [
        GridCell(_uniform(tokens, length, channels, head_dim, causal), f"length {length}")
        for head_dim in HEAD_DIMS
        for causal in (False, True)
        for length in lengths
    ]
    for head_dim in HEAD_DIMS:
        for page_size in PAGE_SIZES[head_dim]:
            for causal in (False, True):
                for length in (512,) if quick else PAGED_LENGTHS:
                    plain = _uniform(tokens, length, channels, head_dim, causal)
                    paged = _uniform(tokens, length, channels, head_dim, causal, page_size)
                    cells.append(GridCell(paged, f"page {page_size}", plain, "ragged"))
    for head_dim in HEAD_DIMS:
        for causal in (False, True):
            cells.append(_skewed(128 if quick else 2048, channels, head_dim, causal))
    cells.append(GridCell(_deepseek(tokens, 512 if quick else 8192), "DeepSeek's prefill"))
    return cells


def _uniform(
    tokens: int,
    length: int,
    channels: int,
    head_dim: int,
    causal: bool,
    page_size: int | None = None,
) -> Prefill:
    lengths, heads = (length,) * (tokens // length), channels // head_dim
    return Prefill(lengths, lengths, heads, heads, head_dim, causal=causal, page_size=page_size)


def _skewed(length: int, channels: int, head_dim: int, causal: bool) -> GridCell:
    """Pair eight requests of very different lengths with eight of one length, of similar FLOPs."""
    wanted = len(SKEWED) * length**2
    scale = (wanted / sum(part**2 for part in SKEWED)) ** 0.5
    lengths = tuple(round(part * scale / 16) * 16 for part in SKEWED)
    heads = channels // head_dim
    skewed = Prefill(lengths, lengths, heads, heads, head_dim, causal=causal)
    same = (length,) * len(SKEWED)
    return GridCell(
        skewed,
        "skewed lengths",
        Prefill(same, same, heads, heads, head_dim, causal=causal),
        "uniform",
    )


def _deepseek(tokens: int, length: int) -> Prefill:
    lengths = (length,) * (tokens // length)
    return Prefill(lengths, lengths, 16, 16, 192, causal=True, head_dim_v=128)


def cells(options: Options) -> Iterator[Cell]:
    """Yield the workloads of the grid, each with its baseline."""
    for found in grid(quick=options.quick):
        yield Cell(f"{found.workload.label} ({found.why})", found)


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Measure our kernels and their peers on a workload."""
    missing = recording.once(_build_peers)
    work, other, word = cell.of.workload, cell.of.baseline, cell.of.baseline_word
    longest = {max(timed.q_lens) for timed in (work, other) if timed is not None}
    slow = longest.isdisjoint(CUDA_CORES_LENGTHS)
    chosen = [
        item
        for item in implementations(OPERATION.name).values()
        if not (missing.get(item.library) or item.missing())
        and not (slow and item.tensor_cores == "off")
    ]
    baseline = None if other is None else (word, other)
    result = recording.benchmark(OPERATION, work, chosen, baseline=baseline, graph=False)
    for item in result.measured.values():
        tera = item.inputs.workload.flops / item.times.median_s / 1e12
        recording.tell(f"{item.name} {format_time(item.times.median_s)} {tera:.0f} TFLOP/s")
    yield from ((DATA_FILE, row) for row in rows_of(cell.of, result))


def _build_peers(recording: Recording) -> dict[str, str]:
    """Compile the libraries' own modules; return why a library cannot run here, by library."""
    work = {cell.of.workload for cell in recording.cells}
    return recording.build_peers(OPERATION.name, {(w.dtype, w.head_dim) for w in work})


def rows_of(cell: GridCell, result: Benchmark) -> list[Row]:
    """Return a cell's rows: times, rate, errors and plan, or why an implementation has no times."""
    rows = [row for item in result.measured.values() for row in _measured_rows(cell, item)]
    return rows + measured.reason_rows(cell.workload, result, by_name=True)


def _measured_rows(cell: GridCell, item: Measured) -> list[Row]:
    plan, timed = item.step.plan, item.inputs.workload
    base = measured.implementation_row(
        cell.workload, item.implementation, kernel=item.name, plan=plan
    )
    base |= {"note": timed.label, "repeats": item.times.repeats}
    rows = measured.quartile_rows(base, "time", item.times)
    rate = timed.flops / item.times.median_s
    rows.append(measured.row(base, "rate", "median", rate, "FLOP/s"))
    rows += measured.error_rows(base, item.errors)
    if plan is not None:
        rows += measured.plan_rows(base, plan)
    return rows


EXPERIMENT = Experiment(
    "prefill",
    "Prefill, tensor cores on and off, ragged and paged, beside torch SDPA and FlashInfer",
    {DATA_FILE: schema.PREFILL_MEASUREMENTS},
    cells,
    rows,
)
