"""MLA decode with tensor cores on and off: our kernels, and FlashInfer's fa2 and fa3."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from labkernels.experiments import rows as measured
from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.kernels.caches.latent import LATENT_DIM, ROPE_DIM
from labkernels.kernels.mla.operation import OPERATION
from labkernels.kernels.mla.workload import MlaDecode
from labkernels.measure.benchmark import Benchmark, Measured
from labkernels.measure.implementation import Implementation, implementations, on_and_off
from labkernels.records import schema
from labkernels.records.store import Row
from labkernels.units import format_time

DATA_FILE = "performance/mla.parquet"

SPEED = ((64, 4096, 128), (128, 8192, 16), (16, 32768, 128))  # requests, keys, heads
SMALL = ((32, 1024, 128), (4, 16384, 16), (1, 65536, 128))  # fewer tiles than an H200 has SMs
HEADS = (1, 2, 4, 8, 16, 32, 64, 128)
SWEEP = (64, 4096)  # requests and keys of the sweep over heads
PAGE_SIZES = (1, 16, 64)
MANY_TOKENS = (17, 37, 77)  # per request: FlashInfer's test has these numbers above one
MANY_BATCH, MANY_KEYS = 17, 1024  # the test has 1, 17 or 37 requests, and at most 1024 keys
TILES_OF_ROWS = 64  # on an H200 the kernel chooses the first of its tiles with so many rows
TILES_WHY = f"each tile of {TILES_OF_ROWS} rows"
PEER_DTYPE = "bf16"  # another dtype would need two more builds of FlashInfer, which take minutes
SLOWEST_FLOPS = 1e11  # kernels without tensor cores would take too long on larger workloads
# Lengths of a ragged batch relative to their mean.
SKEWED = (3.3, 1.6, 1.0, 0.7, 0.5, 0.4, 0.3, 0.2)


class GridCell(NamedTuple):
    """One workload of the grid, and why it is there."""

    workload: MlaDecode
    why: str


def grid(*, quick: bool = False) -> Iterator[GridCell]:
    """Yield each workload and why it is there; `quick` keeps each kind, with fewer keys."""
    short = 16 if quick else 1
    for batch, keys, heads in SPEED:
        for dtype in ("bf16", "fp16"):
            yield GridCell(MlaDecode((keys // short,) * batch, heads, dtype=dtype), "speed")
    for batch, keys, heads in SMALL:
        yield GridCell(MlaDecode((keys // short,) * batch, heads), "small batch")
    batch, keys = SWEEP
    for q_len in (1, 2):
        for heads in HEADS[::4] if quick else HEADS:
            yield GridCell(
                MlaDecode((keys // short,) * batch, heads, q_len=q_len), f"heads, {q_len} tokens"
            )
    for page_size in PAGE_SIZES:
        yield GridCell(
            MlaDecode((keys // short,) * batch, 16, page_size=page_size), f"page {page_size}"
        )
    lengths = [int(keys * share) // short for share in SKEWED] * (batch // len(SKEWED))
    yield GridCell(MlaDecode(lengths, 128), "ragged lengths")
    for q_len in MANY_TOKENS:
        many = (MANY_KEYS // short,) * (1 if quick else MANY_BATCH)
        yield GridCell(MlaDecode(many, 128, q_len=q_len, page_size=16), f"{q_len} tokens")
    for heads in (64, 128):
        yield GridCell(MlaDecode((keys // short,) * batch, heads), TILES_WHY)


def cells(options: Options) -> Iterator[Cell]:
    """Yield the workloads of the grid."""
    for found in grid(quick=options.quick):
        yield Cell(f"{found.workload.label} ({found.why})", found)


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Measure our kernels and their peers on a workload."""
    workload, why = cell.of
    missing = recording.once(_build_peers)
    if workload.dtype != PEER_DTYPE:
        missing = missing | {"flashinfer": f"built for {PEER_DTYPE} alone"}
    of_all = implementations(OPERATION.name, on_and_off)
    chosen = [
        item
        for item in (tiled(of_all["mla_mma"]) if why == TILES_WHY else of_all.values())
        if not (missing.get(item.library) or item.missing())
        and not (item.tensor_cores == "off" and workload.flops > SLOWEST_FLOPS)
    ]
    result = recording.benchmark(OPERATION, workload, chosen, graph=True)
    for item in result.measured.values():
        tera = workload.flops / item.times.median_s / 1e12
        recording.tell(f"{item.name} {format_time(item.times.median_s)} {tera:.0f} TFLOP/s")
    yield from ((DATA_FILE, row) for row in rows_of(workload, result))


def tiled(item: Implementation) -> Iterator[Implementation]:
    """Yield a kernel with each of its tiles of 64 rows, under a name with the tile's label."""
    shape = item.spec.shape(head_dim=LATENT_DIM + ROPE_DIM, rows=TILES_OF_ROWS)
    for tile in item.spec.tiles(shape, item.policy):
        if tile.q_rows == TILES_OF_ROWS:
            name = f"{item.kernel} {tile.label}"
            prepare = partial(item.prepare, tile=tile.label)
            yield replace(item, name=name, kernel=name, prepare=prepare)


def _build_peers(recording: Recording) -> dict[str, str]:
    """Build the modules of one dtype, whatever cells are chosen."""
    return recording.build_peers(OPERATION.name, [(PEER_DTYPE, LATENT_DIM)])


def rows_of(workload: MlaDecode, result: Benchmark) -> list[Row]:
    """Return a workload's rows: times, rates, errors and plan, or why there are no times."""
    rows = [row for item in result.measured.values() for row in _measured_rows(workload, item)]
    return rows + measured.reason_rows(workload, result)


def _measured_rows(workload: MlaDecode, item: Measured) -> list[Row]:
    plan, median_s = item.step.plan, item.times.median_s
    base = measured.implementation_row(workload, item.implementation, plan=plan)
    base |= {"note": workload.label, "repeats": item.times.repeats}
    rows = measured.graph_rows(base, item.times)
    rows.append(measured.row(base, "rate", "median", workload.flops / median_s, "FLOP/s"))
    bandwidth = workload.kv_bytes / median_s
    rows.append(measured.row(base, "bandwidth", "median", bandwidth, "bytes/s"))
    rows += measured.error_rows(base, item.errors)
    if plan is not None:
        rows += measured.plan_rows(base, plan)
    return rows


EXPERIMENT = Experiment(
    "mla",
    "MLA decode, tensor cores on and off, beside FlashInfer's fa2 and fa3",
    {DATA_FILE: schema.PREFILL_MEASUREMENTS},
    cells,
    rows,
)
