"""Bugs like those of other people's kernels, computed in float64 with a kernel's roundings.

A bug changes what a row reads, its scores, its weights or its output. It affects all rows, or one
KV head, one request or the late queries.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from labkernels.measure.strangers.inputs import Call
from labkernels.measure.strangers.right import grouped, hidden_of

PARTS = ("all", "one KV head", "one request", "late queries")


@dataclass(frozen=True)
class Work:
    """One call in float64, which a bug is given.

    Shapes: q [B, Hq, M, D]; k, v [B, Hq, L, D], repeated for the query heads that share them;
    s [B, Hq, M, L], -inf where hidden; hidden [M, L].
    """

    call: Call
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    s: torch.Tensor
    hidden: torch.Tensor

    @classmethod
    def of(cls, call: Call) -> "Work":
        """Return the work of a call."""
        q, k, v = grouped(call, torch.float64)
        hidden = hidden_of(call)
        return cls(call, q, k, v, _scores(call, q, k, hidden), hidden)

    def scores(self, q=None, k=None):
        """Return the scores of other queries or keys."""
        return _scores(
            self.call, self.q if q is None else q, self.k if k is None else k, self.hidden
        )


Bug = Callable[[Work], torch.Tensor]


def _scores(call, q, k, hidden):
    s = q @ k.mT * call.scale
    if cap := call.asked.soft_cap:
        s = cap * torch.tanh(s / cap)
    if call.slopes is not None:
        s = s - call.slopes.double()[:, None, None] * distances(s)
    return s.masked_fill(hidden, -math.inf)


def distances(s):
    """Return how many keys each key [M, L] lies before the last one that a causal mask shows."""
    m, n = s.shape[-2:]
    return (torch.arange(m)[:, None] + (n - m) - torch.arange(n)).double()


def attend(s, v, dtype, weights=None, sinks=None) -> torch.Tensor:
    """Return softmax(s) v; P, relative to the row's maximum, and the output are rounded.

    weights: factors on P in both sums; sinks: logits [Hq] that count in the denominator alone.
    Shapes: s [B, Hq, M, L], v [B, Hq, L, Dv].
    """
    m = s.amax(-1, keepdim=True)
    p = torch.exp(s - m.masked_fill(m == -math.inf, 0.0))
    if weights is not None:
        p = p * weights
    l = p.sum(-1, keepdim=True)
    if sinks is not None:
        l = l + torch.exp(sinks.double()[:, None, None] - m)
    rounded = p.to(dtype).double() if dtype != torch.float32 else p
    return (rounded @ v / torch.where(l == 0, torch.ones_like(l), l)).to(dtype)


def parts(w: Work, keys: int):
    """Return m (base e), l and o (not normalised) of splits of `keys` keys."""
    found = []
    for first in range(0, w.s.shape[-1], keys):
        s, v = w.s[..., first : first + keys], w.v[:, :, first : first + keys]
        m = s.amax(-1, keepdim=True)
        p = torch.exp(s - m.masked_fill(m == -math.inf, 0.0))
        found.append((m, p.sum(-1, keepdim=True), p @ v))
    return (torch.stack(x) for x in zip(*found, strict=True))


def masked(s, hide):
    """Return the scores, with -inf where hide is True."""
    return s.masked_fill(hide, -math.inf)


def places(w: Work):
    """Return the place of each query and of each key among the keys: [M, 1], [1, L]."""
    m, n = w.s.shape[-2:]
    return torch.arange(m)[:, None] + (n - m), torch.arange(n)[None]


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


def right_output(w: Work) -> torch.Tensor:
    """Return the output of a kernel without a bug."""
    return attend(w.s, w.v, w.call.q.dtype, sinks=w.call.sinks)


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
