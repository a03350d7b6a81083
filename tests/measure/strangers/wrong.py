"""Bugs like those of other people's kernels, computed in float64 with a kernel's roundings.

A bug changes what a row reads, its scores, its weights or its output.
"""

from collections.abc import Callable

import torch

from labkernels.measure.mistakes.attention import Call, Work, attend

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


def run(bug: Bug, call: Call) -> torch.Tensor:
    """Return the output of a kernel with a bug."""
    return bug(Work.of(call))
