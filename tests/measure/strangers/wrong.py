"""Bugs like those of other people's kernels, computed in float64 with a kernel's roundings.

A bug changes what a row reads, its scores, its weights or its output. It affects all rows, or one
KV head, one request or the late queries.
"""

from collections.abc import Callable

import torch

from labkernels.measure.mistakes.attention import Call, Work, attend, right_output

PARTS = ("all", "one KV head", "one request", "late queries")
Bug = Callable[[Work], torch.Tensor]


def scored(change: Callable) -> Callable:
    """Return a bug in the scores: change(work) returns them."""
    return lambda w: attend(change(w), w.v, w.call.q.dtype)


def valued(change: Callable) -> Callable:
    """Return a bug in the values: change(work) returns them."""
    return lambda w: attend(w.s, change(w), w.call.q.dtype)


def stored(change: Callable) -> Callable:
    """Return a bug in the output: change(work, right output) returns the output."""
    return lambda w: change(w, attend(w.s, w.v, w.call.q.dtype))


def keys_of(w: Work):
    """Return the numbers of the keys."""
    return torch.arange(w.k.shape[2])


def run(bug: Bug, call: Call, part: str = "all") -> torch.Tensor:
    """Return the output of a kernel with a bug in a part of its rows, right elsewhere."""
    work = Work.of(call)
    return torch.where(rows_of(call, part)[..., None], bug(work), right_output(work))


def rows_of(call: Call, part: str) -> torch.Tensor:
    """Return True for the rows of a part: [B, Hq, M]."""
    where = torch.zeros(call.q.shape[:3], dtype=torch.bool)
    if part == "one KV head":
        where[:, (call.k.shape[1] - 1) * call.group :] = True
    elif part == "one request":
        where[-1] = True
    elif part == "late queries":
        where[:, :, call.q.shape[2] // 2 :] = True
    else:
        where[:] = True
    return where
