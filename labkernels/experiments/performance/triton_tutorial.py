"""Compare our Triton prefill with the tutorial kernel that comes with Triton, in one run."""

from collections.abc import Iterator

from labkernels.experiments import rows as measured
from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.kernels.prefill.operation import OPERATION
from labkernels.kernels.prefill.workload import Prefill
from labkernels.measure.benchmark import Benchmark, Measured
from labkernels.measure.implementation import Implementation, implementations, of_peer
from labkernels.measure.peers import triton_tutorial
from labkernels.records import schema
from labkernels.records.store import Row
from labkernels.units import format_time

DATA_FILE = "performance/triton_tutorial.csv"
HEAD_DIMS = (64, 128)
LENGTH, TOKENS, CHANNELS = 4096, 16384, 2048
QUICK_LENGTH = 512
PARTS = 3
OTHERS = ("triton_prefill", "torch_fa2")  # ours, and the backend that users of torch have


def cells(options: Options) -> Iterator[Cell]:
    """Yield requests of one length, in fp16; `quick` gives each a single request of 512 tokens."""
    length, tokens = (QUICK_LENGTH,) * 2 if options.quick else (LENGTH, TOKENS)
    lengths = (length,) * (tokens // length)
    for head_dim in HEAD_DIMS:
        heads = CHANNELS // head_dim
        for causal in (False, True):
            work = Prefill(lengths, lengths, heads, heads, head_dim, causal=causal, dtype="fp16")
            yield Cell(work.label, work)


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Time the implementations in turns on a workload."""
    recording.once(_compile)
    of = participants(cell.of, recording.options)
    result = recording.benchmark(OPERATION, cell.of, of, graph=True)
    for name, item in result.measured.items():
        recording.tell(f"{name} {format_time(item.times.median_s)}")
    yield from ((DATA_FILE, row) for row in rows_of(cell.of, result))


def participants(work: Prefill, options: Options) -> list[Implementation]:
    """Return our Triton kernel, torch's flash backend, and each way of the tutorial's kernel."""
    found = implementations(OPERATION.name)
    tutorial = triton_tutorial.peers_from(options.peer_path, causal=work.causal)
    return [found[name] for name in OTHERS] + [of_peer(OPERATION.name, peer) for peer in tutorial]


def _compile(recording: Recording) -> None:
    """Compile the tutorial's candidates on all cores, if its file is there."""
    path = recording.options.peer_path
    if triton_tutorial.missing(path) is None:
        recording.progress(f"compiling the candidates of {path.name}")
        jobs = list(triton_tutorial.compile_jobs(path, HEAD_DIMS, PARTS))
        refused = [
            words for words in recording.pool.map(triton_tutorial.compile_part, jobs) if words
        ]
        recording.progress(f"compiled; {len(refused)} parts failed")


def rows_of(work: Prefill, result: Benchmark) -> list[Row]:
    """Return a workload's rows: times and rate, or why an implementation has no times."""
    found = [row for item in result.measured.values() for row in _measured_rows(work, item)]
    found += measured.reason_rows(work, result, by_name=True)
    return [_with_mask(row, work) for row in found]


def _measured_rows(work: Prefill, item: Measured) -> list[Row]:
    base = measured.implementation_row(
        work, item.implementation, kernel=item.name, plan=item.step.plan
    )
    base |= {"repeats": item.times.repeats, "note": item.note}
    metric = "time_graph" if item.graph else "time_eager"
    rate = measured.row(base, "rate", "median", work.flops / item.times.median_s, "FLOP/s")
    return [*measured.quartile_rows(base, metric, item.times), rate]


def _with_mask(row: Row, work: Prefill) -> Row:
    """Return a row whose name says the mask, for which the table has no column."""
    named = {**row, "kernel": f"{row['kernel']}, {'causal' if work.causal else 'full'}"}
    return {key: value for key, value in named.items() if key not in ("q_len", "causal")}


EXPERIMENT = Experiment(
    "triton_tutorial",
    "The Triton prefill beside Triton's own tutorial kernel, and torch's flash backend",
    {DATA_FILE: schema.MEASUREMENTS},
    cells,
    rows,
)
