"""Errors of outputs against float64, by request and head, and element by element."""

import itertools
from collections.abc import Iterator

import numpy as np
import pandas as pd

from labkernels.bench.small import spread
from labkernels.kernels.operation import Operation
from labkernels.measure.judge.elements import Elements
from labkernels.measure.judge.judge import Judge, judge_of
from labkernels.measure.judge.outputs import SAMPLED

MOST_TOKENS = 64  # query tokens; a longer request is judged at the SAMPLED places
MOST_REQUESTS = 16  # of a larger batch, requests at equal distances are judged
NUMBERS = ("truth", "error", "ratio")  # of an element


def judge_requests(operation: Operation, inputs) -> Judge:
    """Return a judge of all tokens of short requests, and of some tokens of long ones.

    Of a large batch, MOST_REQUESTS requests are judged: the truth of all would take longer than
    everything else that a bench does on a GPU.
    """
    return judge_of(operation.name, inputs, list(_rows(inputs.workload)))


def _rows(workload) -> Iterator[list[int]]:
    """Yield rows of one request that are judged together."""
    lengths = tokens_of(workload)
    ends = list(itertools.accumulate(lengths, initial=0))
    for request in spread(len(lengths), MOST_REQUESTS):
        first, tokens = ends[request], lengths[request]
        if 0 < tokens <= MOST_TOKENS:
            yield list(range(first, first + tokens))
        elif tokens:
            places = {int(t * tokens) if isinstance(t, float) else t % tokens for t in SAMPLED}
            yield from ([first + place] for place in sorted(places))


def tokens_of(workload) -> tuple[int, ...]:
    """Return the rows of the output that belong to each request."""
    if hasattr(workload, "q_lens"):
        return workload.q_lens
    return (getattr(workload, "q_len", 1),) * workload.batch


def error_rows(elements: list[Elements], workload) -> pd.DataFrame:
    """Return a row per tensor, request and head: rmse, bias along the truth, worst error, ratio."""
    frames = []
    for part in elements:
        columns = _places(part, workload) | {
            "square": np.mean(part.error**2, axis=2).ravel(),
            "along": np.mean(part.error * np.sign(part.truth), axis=2).ravel(),
            "size": np.max(np.abs(part.error), axis=2).ravel(),
            "ratio": np.max(part.ratio, axis=2).ravel(),
        }
        frames.append(pd.DataFrame(columns).assign(tensor=part.tensor))
    rows = pd.concat(frames, ignore_index=True)
    # All rows of a tensor have as many channels, so that the mean of their means is the mean.
    table = rows.groupby(["tensor", "sample", "head"], sort=False).agg(
        rmse=("square", "mean"),
        bias=("along", "mean"),
        max_abs=("size", "max"),
        bound_ratio=("ratio", "max"),
    )
    return table.assign(rmse=np.sqrt(table.rmse)).reset_index()


def element_rows(elements: list[Elements], workload, *, most: int | None = None) -> pd.DataFrame:
    """Return a row per judged element: tensor, sample, head, truth, error, ratio to the bound.

    most: about how many rows to return, of elements at equal distances; None returns all.
    """
    step = 1 if most is None else max(1, sum(part.error.size for part in elements) // most)
    frames, before = [], 0
    for part in elements:
        chosen = slice(-before % step, None, step)
        before += part.error.size
        columns = {
            name: np.repeat(place, part.error.shape[2])[chosen]
            for name, place in _places(part, workload).items()
        }
        columns |= {name: getattr(part, name).ravel()[chosen] for name in NUMBERS}
        frames.append(pd.DataFrame(columns).assign(tensor=part.tensor))
    return pd.concat(frames, ignore_index=True)


def _places(part: Elements, workload) -> dict[str, np.ndarray]:
    """Return the request and the head of each row and head of the elements, in their order."""
    lengths = workload.kv_lens if part.tensor in ("dk", "dv") else tokens_of(workload)
    sample = np.searchsorted(np.cumsum(lengths), part.rows, "right")
    return {
        "sample": np.repeat(sample, len(part.heads)),
        "head": np.tile(part.heads, len(part.rows)),
    }
