"""What a call's output is in float64, with the keys that each query sees."""

import math

import torch

from labkernels.measure.strangers.inputs import Call


def grouped(call: Call, dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return q, k, v in a dtype, each KV head repeated for the query heads that share it."""
    k, v = (x.repeat_interleave(call.group, 1).to(dtype) for x in (call.k, call.v))
    return call.q.to(dtype), k, v


def hidden_of(call: Call) -> torch.Tensor:
    """Return True where a query does not see a key: [M, L]."""
    m, n = call.q.shape[2], call.k.shape[2]
    key, place = torch.arange(n)[None], torch.arange(m)[:, None] + (n - m)
    hidden = key > place if call.causal else torch.zeros(m, n, dtype=torch.bool)
    left = call.asked.window_left
    return hidden if left is None else hidden | (key < place - left)


def exact(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """Return output and log-sum-exp (base e) in float64."""
    q, k, v = grouped(call, torch.float64)
    s = (q @ k.mT * call.scale).masked_fill(hidden_of(call), -math.inf)
    return torch.softmax(s, -1).nan_to_num() @ v, torch.logsumexp(s, -1)
