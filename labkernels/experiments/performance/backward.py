"""Backward: gradients of attention by our kernels and their peers, timed and judged."""

from collections.abc import Mapping
from typing import Any

from labkernels.experiments import rows as measured
from labkernels.experiments.performance.prefill import CHANNELS, HEAD_DIMS, LENGTHS, TOKENS
from labkernels.experiments.timed import GridCell, Timed
from labkernels.kernels.backward.operation import OPERATION
from labkernels.kernels.backward.workload import Backward
from labkernels.measure.implementation import implementations
from labkernels.records.store import Row


def grid(*, quick: bool = False) -> list[GridCell]:
    """Return the workloads in the order of measurement; `quick` gives them 1024 tokens."""
    tokens, channels = (1024, 256) if quick else (TOKENS, CHANNELS)
    return [
        GridCell(Backward(lengths, lengths, heads, heads, head_dim, causal=causal))
        for head_dim in HEAD_DIMS
        for heads in (channels // head_dim,)
        for causal in (False, True)
        for lengths in ((n,) * (tokens // n) for n in ((512,) if quick else LENGTHS))
    ]


def gradient_rows(base: Row, found: Mapping[str, Any]) -> list[Row]:
    """Return the errors of each gradient, and by head."""
    rows = []
    for name, errors in found.items():
        rows.append(measured.row(base, f"{name}_error", "max_abs", errors.max_abs, "1"))
        rows.append(measured.row(base, f"{name}_bound_ratio", "max", errors.bound_ratio, "1"))
        rows += [
            measured.row(base, f"{name}_error, head {head}", "rmse", rmse, "1")
            for head, rmse in zip(errors.heads, errors.rmse, strict=True)
        ]
    return rows


TIMED = Timed(
    OPERATION,
    "performance/backward.parquet",
    grid,
    lambda cell: implementations(OPERATION.name).values(),
    columns=lambda item: {},
    errors=gradient_rows,
)
EXPERIMENT = TIMED.experiment(
    "Backward, full and causal, beside torch SDPA's FlashAttention-2 and cuDNN"
)
