"""Paged decode with tensor cores on and off: our kernels and their peers, time and error.

A second experiment has a cache of 8 bits; our kernels run the same cache in 16 bits in its turns. A
third has scales of pages and of tokens beside scales of heads. A fourth has a query that e4m3
holds, and so also FlashInfer's kernels that multiply in 8 bits.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

from labkernels.experiments import rows as measured
from labkernels.experiments import timed
from labkernels.experiments.experiment import Cell, Experiment
from labkernels.experiments.harness import Recording
from labkernels.kernels.decode.operation import OPERATION
from labkernels.kernels.decode.workload import Decode
from labkernels.measure import timing
from labkernels.measure.implementation import (
    Implementation,
    implementations,
    of_peer,
    on_and_off,
)
from labkernels.measure.peers import flashinfer_8_bits
from labkernels.records import schema
from labkernels.records.store import Row
from labkernels.units import format_rate

DTYPES = ("fp16", "bf16")
GROUPS = (1, 2, 3, 4, 5, 6, 7, 8, 16)
PAGE_SIZES = (1, 16, 64)
KV_HEADS = 8
# Another head_dim would need six more builds of FlashInfer, which take minutes; no target needs it.
PEER_HEAD_DIMS = (128,)


def grid(*, quick: bool = False) -> list[timed.GridCell]:
    """Return the cells in the order of measurement, each workload once.

    `quick` keeps each kind of cell, with at most 4 requests and 1024 keys.
    """
    cells = [cell for dtype in DTYPES for cell in _of_dtype(dtype)]
    if quick:
        cells = [timed.GridCell(_shrunk(cell.workload), cell.why) for cell in cells]
    once: dict[Decode, timed.GridCell] = {}
    for cell in cells:
        once.setdefault(cell.workload, cell)
    return list(once.values())


def _of_dtype(dtype: str) -> list[timed.GridCell]:
    def cell(batch, kv_len, q_heads, why, **how):
        how = {"q_heads": q_heads, "kv_heads": KV_HEADS, "dtype": dtype, **how}
        return timed.GridCell(Decode.uniform(batch, kv_len, **how), why)

    return [
        cell(57, 8192, 32, "case 000"),
        *(cell(57, 8192, KV_HEADS * group, f"group {group}") for group in GROUPS),
        cell(1, 131072, 32, "one long request"),
        cell(1, 65536, 8, "one of eight ranks", kv_heads=1),
        cell(256, 1024, 32, "many short requests"),
        cell(32, 4096, 32, "a middling batch"),
        *(cell(57, 8192, 32, f"page {size}", page_size=size) for size in PAGE_SIZES),
        cell(32, 8192, 32, "head_dim 64", head_dim=64),
        cell(32, 8192, 32, "head_dim 256", head_dim=256),
    ]


def _shrunk(workload: Decode) -> Decode:
    return replace(workload, kv_lens=(min(workload.max_kv_len, 1024),) * min(workload.batch, 4))


def chosen(cell: timed.GridCell) -> Iterable[Implementation]:
    """Yield our kernels, and peers, of which FlashInfer is built for some head_dims alone."""
    for item in implementations(OPERATION.name, on_and_off).values():
        if item.library != "flashinfer" or cell.workload.head_dim in PEER_HEAD_DIMS:
            yield item


def _needed(workloads: Iterable[Decode]) -> set[tuple[str, int]]:
    return {(w.dtype, w.head_dim) for w in workloads if w.head_dim in PEER_HEAD_DIMS}


def with_ceilings(of: timed.Timed, title: str, name: str) -> Experiment:
    """Return an experiment whose first cell adds the rows of a copy's and a read's rate."""

    def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
        ceiling_rows = recording.once(_ceilings)
        while ceiling_rows:
            yield of.file, ceiling_rows.pop(0)
        yield from of.rows(cell, recording)

    return replace(of.experiment(title, name), rows=rows)


def _ceilings(recording: Recording) -> list[Row]:
    """Measure the copy, to whose rate percentages are relative, and the read; return their rows."""
    with recording.sampling():
        ceilings = timing.ceilings()
    times, moved_bytes = ceilings["copy"]
    recording.progress(f"copy ceiling {format_rate(moved_bytes / times.median_s)}")
    return [row | recording.sensors for row in measured.ceiling_rows(ceilings)]


SIXTEEN = timed.Timed(
    OPERATION,
    "performance/decode_tensor_cores.parquet",
    grid,
    chosen,
    built=_needed,
    graph=True,
    table=schema.MEASUREMENTS,
)
EXPERIMENT = with_ceilings(
    SIXTEEN,
    "Paged decode, tensor cores on and off, beside FlashInfer's three ways and torch SDPA",
    "decode_tensor_cores",
)

SCALES_FILE = "performance/decode_fp8_scales.parquet"
FP8_LENGTHS = ((57, 8192), (1, 131072), (1, 262144))
FP8_Q_HEADS = (32, 64)
FP8_LIBRARIES = ("cuda", "triton", "flashinfer")
FP8_OTHERS = (("fp16", "e4m3"), ("bf16", "e5m2"))  # formats of q and cache, on the first lengths


def fp8_grid(*, quick: bool = False) -> list[timed.GridCell]:
    """Return the cells of a cache of 8 bits; `quick` keeps each kind, with one request of 512."""
    shapes = [(*size, heads, "bf16", "e4m3") for heads in FP8_Q_HEADS for size in FP8_LENGTHS]
    shapes += [(*FP8_LENGTHS[0], heads, *kinds) for heads in FP8_Q_HEADS for kinds in FP8_OTHERS]
    found: dict[Decode, timed.GridCell] = {}
    for batch, kv_len, q_heads, dtype, kv_dtype in shapes:
        size = (1, 512) if quick else (batch, kv_len)
        how = {"q_heads": q_heads, "kv_heads": KV_HEADS, "dtype": dtype}
        work = Decode.uniform(*size, **how, kv_dtype=kv_dtype)
        baseline = {"baseline": replace(work, kv_dtype=None), "baseline_word": "16-bit"}
        found.setdefault(work, timed.GridCell(work, **baseline))
    return list(found.values())


def fp8_chosen(cell: timed.GridCell) -> Iterable[Implementation]:
    """Yield the kernels and peers that take the cache of a cell."""
    for item in implementations(OPERATION.name, on_and_off).values():
        takes = item.spec is None or cell.workload.kv_dtype in item.spec.kv_dtypes
        if item.library in FP8_LIBRARIES and takes:
            yield item


_FP8 = timed.Timed(
    OPERATION,
    "performance/decode_fp8.parquet",
    fp8_grid,
    fp8_chosen,
    graph=True,
    by_name=True,
    table=schema.MEASUREMENTS,
)


def scales_grid(*, quick: bool = False) -> list[timed.GridCell]:
    """Return the cells of a cache in e4m3 whose pages or tokens have scales, beside heads."""
    found = []
    for q_heads, keys in itertools.product(FP8_Q_HEADS, (16, 1)):
        how = {"q_heads": q_heads, "kv_heads": KV_HEADS, "kv_dtype": "e4m3"}
        heads = Decode.uniform(*((1, 512) if quick else FP8_LENGTHS[0]), **how)
        own = replace(heads, keys_per_scale=keys)
        found.append(timed.GridCell(own, baseline=heads, baseline_word="by head"))
    return found


def scales_chosen(cell: timed.GridCell) -> Iterable[Implementation]:
    """Yield our kernels, which alone take such scales."""
    return (item for item in fp8_chosen(cell) if item.is_ours)


def peers_chosen(cell: timed.GridCell) -> Iterable[Implementation]:
    """Yield what takes the cache, and FlashInfer's kernels that multiply in 8 bits."""
    yield from fp8_chosen(cell)
    yield from (of_peer(flashinfer_8_bits.OPERATION, peer) for peer in flashinfer_8_bits.PEERS)


_SCALES = replace(_FP8, file=SCALES_FILE, grid=scales_grid, chosen=scales_chosen)
_PEERS = replace(
    _FP8,
    operation=replace(OPERATION, inputs=flashinfer_8_bits.inputs),
    file="performance/decode_fp8_peers.parquet",
    grid=lambda **how: fp8_grid(**how)[:2],  # each has modules of FlashInfer's that are the same
    chosen=peers_chosen,
)
EXPERIMENTS = (
    _SCALES.experiment("Paged decode of e4m3 with scales of pages and tokens", "decode_fp8_scales"),
    with_ceilings(
        _FP8,
        "Paged decode of a cache of 8 bits, beside the cache of 16 bits and FlashInfer",
        "decode_fp8",
    ),
    _PEERS.experiment(
        "Paged decode of e4m3 beside FlashInfer's products in 8 bits", "decode_fp8_peers"
    ),
)
