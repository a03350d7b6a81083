"""Attention of one request in torch: float64 as the truth, 16 bits as the baseline."""

import math

import torch


def attend(q, k, v, *, scale: float, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out and lse2 of some queries over their keys; each product rounds to q's dtype.

    Shapes: q [tokens, q_heads, D], k [keys, kv_heads, D], v [keys, kv_heads, Dv]; out [tokens,
    q_heads, Dv]; lse2 [tokens, q_heads] float64, base 2.
    A row without keys has -inf for all its scores, where a softmax is NaN: it becomes zero.
    """
    k, v = (x.transpose(0, 1) for x in (k, v))
    q = q.transpose(0, 1).unflatten(0, (len(k), q.shape[1] // len(k)))
    s = q @ k.unsqueeze(1).transpose(2, 3) * scale
    n, n_keys = s.shape[-2:]
    if causal:
        seen = torch.ones(n, n_keys, dtype=torch.bool, device=s.device).tril(n_keys - n)
        s = s.masked_fill(~seen, -math.inf)
    p = torch.softmax(s, dim=-1).nan_to_num()
    out = (p @ v.unsqueeze(1)).flatten(0, 1).transpose(0, 1)
    lse = torch.logsumexp(s.to(torch.float64), dim=-1)
    return out, (lse / math.log(2)).flatten(0, 1).transpose(0, 1)
