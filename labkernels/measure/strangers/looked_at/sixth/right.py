"""Right implementations that were held out with two sets."""

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


def einsums(call: Call) -> torch.Tensor:
    """torch.einsum with groups of heads as an axis of their own, P in the input's format."""
    b, h, m, d = call.q.shape
    q = call.q.float().reshape(b, call.k.shape[1], call.group, m, d)
    s = torch.einsum("bkgmd,bknd->bkgmn", q, call.k.float()) * call.scale
    s = s.masked_fill(hidden_of(call), -math.inf)
    p = torch.exp(s - _top(s))
    used = p.to(call.q.dtype).float()
    o = torch.einsum("bkgmn,bknd->bkgmd", used, call.v.float())
    return _divided(o, p.sum(-1, keepdim=True), call).reshape(b, h, m, -1)


def numpy_in_float64_but_scores(call: Call) -> torch.Tensor:
    """Scores in float32, the rest in NumPy's float64."""
    s, v = _scores(call)
    s = s.double().numpy()
    p = np.exp(s - np.maximum(s.max(-1, keepdims=True), -1e30))
    return torch.from_numpy(p @ v.double().numpy() / p.sum(-1, keepdims=True)).to(call.q.dtype)


def maxima_of_columns(call: Call) -> torch.Tensor:
    """The maximum over all queries of a head stands for each row's, where it is near enough."""
    s, v = _scores(call)
    m = torch.minimum(s.amax((-1, -2), keepdim=True), _top(s) + 10.0)
    p = torch.exp(s - m)
    return _divided(p @ v, p.sum(-1, keepdim=True), call)


def odd_keys_after_even_ones(call: Call) -> torch.Tensor:
    """Even keys, then odd ones, each half with sums of its own."""
    s, v = _scores(call)
    m = _top(s)
    o = l = 0.0
    for start in (0, 1):
        p = torch.exp(s[..., start::2] - m)
        o, l = o + p @ v[:, :, start::2], l + p.sum(-1, keepdim=True)
    return _divided(o, l, call)


def linear_layers(call: Call) -> torch.Tensor:
    """A product for each query, as torch's linear layers have it."""
    s, v = _scores(call)
    p = torch.exp(s - _top(s))
    rows = [torch.matmul(p[:, :, i : i + 1], v) for i in range(p.shape[2])]
    return _divided(torch.cat(rows, 2), p.sum(-1, keepdim=True), call)


RIGHT: dict[str, Callable[[Call], torch.Tensor]] = {
    "einsums with groups": einsums,
    "float64 but for the scores": numpy_in_float64_but_scores,
    "maxima of columns": maxima_of_columns,
    "odd keys after even ones": odd_keys_after_even_ones,
    "a product for each query": linear_layers,
    "flash, blocks of 48, weights up to 2^3": Flash(48, start=3.0, reciprocal=True),
    "flash, 3 splits of blocks of 8, backward": Flash(8, "backward", splits=3, rounded_sum=True),
}
