"""Attention of dense batches, whose requests have equal lengths, by the ragged verb."""

from typing import Any

import torch

from labkernels.compat.arguments import require_dims
from labkernels.ops.attention import attention

DIMS = "[batch, tokens, heads, head_dim]"


def dense_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute attention that torch can differentiate; no length is read from a GPU.

    Shapes: q [batch, tokens, heads, head_dim], k, v [batch, keys, kv_heads, head_dim] -> out
    [batch, tokens, heads, head_dim of v], lse2 [batch, tokens, heads]. Options as in `attention`.

    >>> q, k, v = torch.randn(3, 2, 24, 4, 64).half()
    >>> out, lse2 = dense_attention(q, k, v, causal=True)
    >>> lse2.shape
    torch.Size([2, 24, 4])
    """
    require_dims(q=(q, DIMS), k=(k, DIMS), v=(v, DIMS))
    rows = (x.flatten(0, 1) for x in (q, k, v))
    lengths = {"q_lens": (q.shape[1],) * len(q), "kv_lens": (k.shape[1],) * len(k)}
    out, lse2 = attention(*rows, equal_ends(q), equal_ends(k), **lengths, **options)
    return out.unflatten(0, q.shape[:2]), lse2.unflatten(0, q.shape[:2])


def equal_ends(x: torch.Tensor) -> torch.Tensor:
    """Return the cumulative lengths [batch + 1] of the requests of x [batch, tokens, ...]."""
    batch, tokens = x.shape[:2]
    return torch.arange(batch + 1, dtype=torch.int32, device=x.device) * tokens
