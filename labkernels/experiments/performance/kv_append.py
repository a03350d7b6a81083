"""Appending to a paged cache: bytes per second of our kernel, of peers and of a plain copy."""

from collections.abc import Iterator

from labkernels.experiments import rows as measured
from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.kernels.append.inputs import AppendInputs
from labkernels.kernels.append.operation import OPERATION
from labkernels.kernels.append.workload import Append
from labkernels.measure.benchmark import Benchmark
from labkernels.measure.implementation import implementations
from labkernels.measure.peers.copies import plain_copy
from labkernels.measure.timing import Quartiles
from labkernels.records import schema
from labkernels.records.store import Row
from labkernels.units import format_rate, format_time

DATA_FILE = "performance/kv_append.parquet"
PLAN_FACTS = {"blocks": "blocks", "launches": "1"}


def shape(
    batch: int, before: int, new: int, kv_heads: int, head_dim: int, page_size: int = 16
) -> Append:
    """Return requests that hold `before` keys each and get `new` more."""
    return Append((before,) * batch, (new,) * batch, kv_heads, head_dim, page_size)


SHAPES = (
    *(shape(16, 1024, 4096, 8, 128, page_size) for page_size in (1, 16, 64, 256)),
    shape(4, 1024, 16384, 8, 64),
    shape(4, 1024, 16384, 8, 256),
    shape(64, 1024, 1024, 1, 128),
    shape(57, 8191, 1, 8, 128),
)
QUICK_SHAPE = shape(4, 100, 200, 2, 64)


def label_of(work: Append) -> str:
    """Return the shape as text, for the notes of the table."""
    heads = f"{work.kv_heads} heads of {work.head_dim}"
    lengths = f"{work.batch} x {work.new_lens[0]} after {work.kv_lens[0]}"
    return f"{lengths}, {heads}, page {work.page_size}"


def cells(options: Options) -> Iterator[Cell]:
    """Yield the shapes; `quick` has a small one."""
    for work in (QUICK_SHAPE,) if options.quick else SHAPES:
        yield Cell(label_of(work), work)


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Time all implementations on a shape; times are recorded only if the timed bits are right."""
    work = cell.of
    chosen = [item for item in implementations(OPERATION.name).values() if not item.missing()]
    result = recording.benchmark(OPERATION, work, chosen, beside=plain_copies, graph=True)
    for name, took in _times(result).items():
        rate = format_rate(work.bytes / took.median_s)
        recording.tell(f"{name} {format_time(took.median_s)} {rate}")
    yield from ((DATA_FILE, row) for row in rows_of(work, result))


def plain_copies(inputs: AppendInputs) -> dict:
    """Return a copy of the same bytes from and to contiguous memory, by its name in the table."""
    return {"torch_copy": plain_copy(inputs.k_new, inputs.v_new)}


def _times(result: Benchmark) -> dict[str, Quartiles]:
    """Return the graph times of right implementations, and the times of what is not judged."""
    right = {name: item.graph for name, item in result.measured.items() if item.graph}
    return dict(result.beside) | right


def rows_of(work: Append, result: Benchmark) -> list[Row]:
    """Return a shape's rows: quartiles, bytes per second and plan, or why there are no times."""
    base = {
        "batch": work.batch,
        "kv_len": work.kv_lens[0] + work.new_lens[0],
        "q_heads": 0,
        "kv_heads": work.kv_heads,
        "head_dim": work.head_dim,
        "page_size": work.page_size,
        "dtype": work.dtype,
        "note": label_of(work),
    }
    rows = []
    for name, took in _times(result).items():
        item = result.measured.get(name)
        plan, library = (item.step.plan, item.implementation.library) if item else (None, "torch")
        own = base | {"kernel": name, "backend": library, "tile": plan.tile if plan else ""}
        rows += measured.graph_rows(own, took)
        rate = work.bytes / took.median_s
        bandwidth = measured.row(own, "bandwidth", "median", rate, "bytes/s")
        rows.append(bandwidth | {"repeats": took.repeats})
        if plan is not None:
            rows += [
                measured.row(own, fact, "exact", getattr(plan, fact), unit)
                for fact, unit in PLAN_FACTS.items()
            ]
    for reason in result.reasons:
        named = {"kernel": reason.name, "backend": reason.implementation.library}
        rows.append(measured.reason_row(base | named, "failed", reason.words))
    return rows


EXPERIMENT = Experiment(
    "kv_append",
    "Appending keys and values to a paged cache, beside torch's copies and FlashInfer",
    {DATA_FILE: schema.MEASUREMENTS},
    cells,
    rows,
)
