"""Right implementations of the fifth set."""

import math
from collections.abc import Callable

import numpy as np
import torch

from labkernels.measure.strangers.inputs import Call
from labkernels.measure.strangers.right import Flash, grouped, hidden_of


def _scores(call: Call, dtype=torch.float32):
    q, k, v = grouped(call, dtype)
    return (q @ k.mT * call.scale).masked_fill(hidden_of(call), -math.inf), v


def _top(s):
    m = s.amax(-1, keepdim=True)
    return m.masked_fill(m == -math.inf, 0.0)


def _divided(o, l, call: Call):
    return (o / torch.where(l == 0, torch.ones_like(l), l)).to(call.q.dtype)


def mean_for_a_maximum(call: Call) -> torch.Tensor:
    """The mean of the row's scores in place of their maximum, where it is near enough."""
    s, v = _scores(call)
    seen = s > -math.inf
    mean = torch.where(seen, s, torch.zeros_like(s)).sum(-1, keepdim=True) / seen.sum(
        -1, keepdim=True
    ).clamp(min=1)
    m = torch.maximum(mean, _top(s) - 8.0)
    p = torch.exp(s - m)
    return _divided(p @ v, p.sum(-1, keepdim=True), call)


def products_in_rows_of_numpy(call: Call) -> torch.Tensor:
    """NumPy, a row at a time, in float32, pairwise sums."""
    s, v = (x.numpy() for x in _scores(call))
    p = np.exp(s - np.maximum(s.max(-1, keepdims=True), -1e30))
    o = np.stack([(p[..., j : j + 1, :] @ v)[..., 0, :] for j in range(p.shape[-2])], -2)
    return torch.from_numpy(o / p.sum(-1, keepdims=True)).to(call.q.dtype)


def keys_sorted(call: Call) -> torch.Tensor:
    """The smallest weights first."""
    s, v = _scores(call)
    p, order = torch.exp(s - _top(s)).sort(-1)
    if v.shape[2] * p.shape[2] > 20_000:  # each row gathers its own values
        return _divided(torch.exp(s - _top(s)) @ v, p.sum(-1, keepdim=True), call)
    values = torch.take_along_dim(v[:, :, None], order[..., None], 3)
    return _divided((p[..., None] * values).sum(3), p.sum(-1, keepdim=True), call)


def heads_as_rows(call: Call) -> torch.Tensor:
    """The heads of a group as rows of one product, P in the input's format."""
    q, k, v = call.q.float(), call.k.float(), call.v.float()
    b, h, m, d = q.shape
    rows = q.reshape(b, k.shape[1], call.group * m, d)
    s = (rows @ k.mT * call.scale).reshape(b, h, m, -1)
    s = s.masked_fill(hidden_of(call), -math.inf)
    p = torch.exp(s - _top(s))
    used = p.to(call.q.dtype).float().reshape(b, k.shape[1], call.group * m, -1)
    return _divided((used @ v).reshape(b, h, m, -1), p.sum(-1, keepdim=True), call)


def logsumexp_first(call: Call) -> torch.Tensor:
    """Two passes: the log-sum-exp, then weights that need no division."""
    s, v = _scores(call)
    lse = torch.logsumexp(s, -1, keepdim=True)
    p = torch.exp(s - lse.masked_fill(lse == -math.inf, 0.0))
    return (p @ v).to(call.q.dtype)


RIGHT: dict[str, Callable[[Call], torch.Tensor]] = {
    "mean for a maximum": mean_for_a_maximum,
    "rows of NumPy": products_in_rows_of_numpy,
    "keys sorted": keys_sorted,
    "heads as rows of one product": heads_as_rows,
    "log-sum-exp first": logsumexp_first,
    "flash, blocks of 12, 5 splits": Flash(12, splits=5),
    "flash, shuffled, lag of 4, exp": Flash(24, "shuffled", lag=4.0, natural=True),
}
