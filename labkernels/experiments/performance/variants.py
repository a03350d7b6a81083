"""What windows, soft caps, slopes and sinks cost: decode, prefill and backward, ours and the peers
that have them, on the shapes of published models; and what heads cost whose tiles zeros fill.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from labkernels.experiments.performance.backward import gradient_rows
from labkernels.experiments.timed import GridCell, Timed
from labkernels.kernels.backward.operation import OPERATION as BACKWARD
from labkernels.kernels.backward.workload import Backward
from labkernels.kernels.decode.operation import OPERATION as DECODE
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.kernel import PADDED_DIMS, tile_width
from labkernels.kernels.prefill.operation import OPERATION as PREFILL
from labkernels.kernels.prefill.workload import Prefill
from labkernels.measure.implementation import Implementation, implementations
from labkernels.records import schema
from labkernels.variant import FULL, AttentionVariant

WINDOWS = (128, 1024, 4096)
CAP = 50.0
SINKS = AttentionVariant(sinks=True)
CAPPED, SLOPES = AttentionVariant(soft_cap=CAP), AttentionVariant(alibi=True)
GPT_OSS = AttentionVariant(window_left=128, sinks=True)
# requests, length, query heads, KV heads, head_dim
LONG, LONGER = (4, 8192, 32, 8, 128), (1, 32768, 32, 8, 128)
GPT_OSS_SHAPE, GEMMA_SHAPE = (4, 8192, 64, 8, 64), (2, 8192, 16, 8, 256)
TRAINED_SHAPE = (16, 1024, 6, 2, 64)  # a step of the lab's own model
MANY_HEADS = (4, 8192, 16, 16, 128)  # torch's backends are timed without groups of heads
DECODES = {(57, 8192, 32, 8, 128): "", (8, 32768, 32, 8, 128): ""}
DECODES |= {(64, 8192, 64, 8, 64): "GPT-OSS", (32, 8192, 16, 8, 256): "Gemma 3"}
# peers that compile themselves for each head_dim, and so are left out where zeros fill the tiles
COMPILED = ("flashinfer", "flex")


def windowed(*windows: int) -> list[AttentionVariant]:
    """Return variants with a window on the left."""
    return [AttentionVariant(window_left=window) for window in windows]


def of_prefill(*, quick: bool = False) -> list[GridCell]:
    """Return the cells of the prefill, all causal; `quick` keeps each variant, at 512 tokens."""
    return _causal(Prefill, LONG, quick)


def of_backward(*, quick: bool = False) -> list[GridCell]:
    """Return the cells of the backward pass, most causal; `quick` keeps each, at 512 tokens."""
    cells = _causal(Backward, MANY_HEADS, quick)
    for batch, causal in product((2, 4), (False, True)):
        n = ((512,) if quick else (4096,)) * batch
        work = Backward(n, n, 16, 16, 192, causal=causal, head_dim_v=128)
        widened = replace(work, head_dim=256, head_dim_v=256)
        cells.append(GridCell(work, "DeepSeek", widened, "of 256 channels"))
    return cells


def _causal(kind: type, first: tuple[int, ...], quick: bool) -> list[GridCell]:
    both = replace(windowed(1024)[0], soft_cap=CAP)
    every = {
        first: ("", [FULL, *windowed(*WINDOWS), CAPPED, SINKS, SLOPES, both]),
        LONGER: ("", [FULL, *windowed(*WINDOWS)]),
        GPT_OSS_SHAPE: ("GPT-OSS", [FULL, GPT_OSS]),
        GEMMA_SHAPE: ("Gemma 3", [FULL, *windowed(1024), CAPPED]),
        TRAINED_SHAPE: ("a training step", [FULL]),
    }
    cells = []
    for (batch, length, *heads), (why, variants) in every.items():
        for variant in variants:
            n = ((512,) if quick else (length,)) * batch
            work = kind(n, n, *heads, causal=True, variant=replace(variant, causal=True))
            cells.append(GridCell(work, why))
    for head_dim, causal in product(PADDED_DIMS, (False, True)):
        n = ((512,) if quick else (4096,)) * 4
        cells.append(_padded(kind(n, n, 16, 16, head_dim, causal=causal)))
    return cells


def _padded(work: Any) -> GridCell:
    """Return the cell of heads whose tiles zeros fill, beside heads as wide as the tiles."""
    width = tile_width(work.head_dim)
    wide = {"head_dim": width} | ({"head_dim_v": width} if hasattr(work, "head_dim_v") else {})
    return GridCell(work, "padded", replace(work, **wide), f"of {width} channels")


def of_decode(*, quick: bool = False) -> list[GridCell]:
    """Return the cells of the decode; `quick` keeps each variant, with 1024 keys."""
    cells: dict[Decode, GridCell] = {}
    for (batch, length, q_heads, kv_heads, head_dim), why in DECODES.items():
        for variant in (FULL, *windowed(*WINDOWS), CAPPED, SINKS, SLOPES, GPT_OSS):
            how = {"q_heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim}
            size = (2, 1024) if quick else (batch, length)
            work = Decode.uniform(*size, **how, variant=variant)
            cells.setdefault(work, GridCell(work, why))
    for head_dim in PADDED_DIMS:
        size = (2, 1024) if quick else (57, 8192)
        padded = Decode.uniform(*size, q_heads=32, kv_heads=8, head_dim=head_dim)
        cells[padded] = _padded(padded)
    return list(cells.values())


def chosen(cell: GridCell) -> Iterator[Implementation]:
    """Yield what is timed; long prefills without a window have tensor cores on alone."""
    work = cell.workload
    operation = {Prefill: "prefill", Decode: "decode", Backward: "backward"}[type(work)]
    slow = operation != "decode" and "window" not in work.variant.features
    slow = slow and max(work.q_lens) > TRAINED_SHAPE[1]
    for item in implementations(operation).values():
        padded = cell.baseline is not None and item.name.startswith(COMPILED)
        if not padded and not (slow and item.tensor_cores == "off"):
            yield item


_PREFILL = Timed(PREFILL, "performance/prefill_variants.parquet", of_prefill, chosen, by_name=True)
_DECODE = Timed(
    DECODE,
    "performance/decode_variants.parquet",
    of_decode,
    chosen,
    graph=True,
    by_name=True,
    table=schema.MEASUREMENTS,
)
_BACKWARD = Timed(
    BACKWARD,
    "performance/backward_variants.parquet",
    of_backward,
    chosen,
    by_name=True,
    errors=gradient_rows,
)
EXPERIMENTS = (
    _PREFILL.experiment("Prefill of windows, soft caps, slopes and sinks", "prefill_variants"),
    _BACKWARD.experiment("Gradients of windows, soft caps, slopes and sinks", "backward_variants"),
    _DECODE.experiment("Decode of windows, soft caps, slopes and sinks", "decode_variants"),
)
