"""Errors of outputs against float64, by request and head, and element by element."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from labkernels.kernels.operation import Operation
from labkernels.measure.benchmark import Measured
from labkernels.measure.judge.elements import Elements
from labkernels.measure.judge.judge import Judge, judge_of
from labkernels.measure.judge.outputs import SAMPLED

MOST_TOKENS = 64  # query tokens; a longer request is judged at the SAMPLED places


def judge_every_request(operation: Operation, inputs) -> Judge:
    """Return a judge of rows from every request: all tokens of a short one, some of a long one."""
    return judge_of(operation.name, inputs, list(_rows(inputs.workload)))


def _rows(workload) -> Iterator[list[int]]:
    """Yield rows of one request that are judged together."""
    first = 0
    for tokens in tokens_of(workload):
        if 0 < tokens <= MOST_TOKENS:
            yield list(range(first, first + tokens))
        elif tokens:
            places = {int(t * tokens) if isinstance(t, float) else t % tokens for t in SAMPLED}
            yield from ([first + place] for place in sorted(places))
        first += tokens


def tokens_of(workload) -> tuple[int, ...]:
    """Return the rows of the output that belong to each request."""
    if hasattr(workload, "q_lens"):
        return workload.q_lens
    return (getattr(workload, "q_len", 1),) * workload.batch


def error_rows(found: Measured, elements: list[Elements], workload) -> pd.DataFrame:
    """Return a row per tensor, request and head: rmse, bias along the truth, worst error, ratio."""
    cells = element_rows(elements, workload)
    cells = cells.assign(
        square=cells.error**2,
        along=cells.error * np.sign(cells.truth),
        size=cells.error.abs(),
    )
    grouped = cells.groupby(["tensor", "sample", "head"], sort=False)
    table = grouped.agg(
        rmse=("square", "mean"),
        bias=("along", "mean"),
        max_abs=("size", "max"),
        bound_ratio=("ratio", "max"),
    )
    return table.assign(rmse=np.sqrt(table.rmse)).reset_index()


def element_rows(elements: list[Elements], workload) -> pd.DataFrame:
    """Return a row per judged element: tensor, sample, head, truth, error, ratio to the bound."""
    ends = {
        "q": np.cumsum(tokens_of(workload)),
        "k": np.cumsum(workload.kv_lens),
    }
    frames = []
    for part in elements:
        sample = np.searchsorted(
            ends["k" if part.tensor in ("dk", "dv") else "q"], part.rows, "right"
        )
        rows, heads, channels = part.error.shape
        columns = {
            "sample": np.repeat(sample, heads * channels),
            "head": np.tile(np.repeat(part.heads, channels), rows),
            "truth": part.truth.ravel(),
            "error": part.error.ravel(),
            "ratio": part.ratio.ravel(),
        }
        frames.append(pd.DataFrame(columns).assign(tensor=part.tensor))
    return pd.concat(frames, ignore_index=True)
