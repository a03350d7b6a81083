"""Dense attention in float64 with a kernel's roundings, on inputs drawn from a seed."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True)
class Shape:
    """Sizes of a dense call: B requests, Hq and Hkv heads, M queries, L keys, D and Dv channels."""

    batch: int
    q_heads: int
    kv_heads: int
    queries: int
    keys: int
    dim: int
    causal: bool = False
    v_dim: int | None = None


@dataclass(frozen=True, eq=False)
class Call:
    """One attention call; a row sees its last window_left + 1 keys.

    Shapes: q [B, Hq, M, D], k [B, Hkv, L, D], v [B, Hkv, L, Dv].
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    causal: bool
    scale: float
    window_left: int | None = None

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.q.shape[1] // self.k.shape[1]


def normal(rng, shape: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw standard normal q, k and v."""
    s = shape
    v_dim = s.v_dim or s.dim
    return (
        rng.standard_normal((s.batch, s.q_heads, s.queries, s.dim)),
        rng.standard_normal((s.batch, s.kv_heads, s.keys, s.dim)),
        rng.standard_normal((s.batch, s.kv_heads, s.keys, v_dim)),
    )


def drawn_call(draw: Callable, seed: list[int], shape: Shape, dtype: str) -> Call:
    """Return the call that a family draws from a seed: the same bits on every machine."""
    arrays = draw(np.random.default_rng(seed), shape)
    q, k, v = (torch.from_numpy(np.array(x)).to(DTYPES[dtype]) for x in arrays)
    return Call(q, k, v, shape.causal, shape.dim**-0.5)


def grouped(call: Call, dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return q, k, v in a dtype, each KV head repeated for the query heads that share it."""
    k, v = (x.repeat_interleave(call.group, 1).to(dtype) for x in (call.k, call.v))
    return call.q.to(dtype), k, v


def hidden_of(call: Call) -> torch.Tensor:
    """Return True where a query does not see a key: [M, L]."""
    m, n = call.q.shape[2], call.k.shape[2]
    key, place = torch.arange(n)[None], torch.arange(m)[:, None] + (n - m)
    hidden = key > place if call.causal else torch.zeros(m, n, dtype=torch.bool)
    left = call.window_left
    return hidden if left is None else hidden | (key < place - left)


@dataclass(frozen=True)
class Work:
    """One call in float64, which a mistake is given.

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
        return cls(call, q, k, v, masked(q @ k.mT * call.scale, hidden), hidden)

    def scores(self, k: torch.Tensor) -> torch.Tensor:
        """Return the scores of other keys."""
        return masked(self.q @ k.mT * self.call.scale, self.hidden)


def distances(s: torch.Tensor) -> torch.Tensor:
    """Return how many keys each key [M, L] lies before the last one that a causal mask shows."""
    m, n = s.shape[-2:]
    return (torch.arange(m)[:, None] + (n - m) - torch.arange(n)).double()


def masked(s: torch.Tensor, hide: torch.Tensor) -> torch.Tensor:
    """Return the scores, with -inf where hide is True."""
    return s.masked_fill(hide, -math.inf)


def attend(s, v, dtype, weights=None) -> torch.Tensor:
    """Return softmax(s) v; P, relative to the row's maximum, and the output are rounded.

    weights: factors on P in both sums. Shapes: s [B, Hq, M, L], v [B, Hq, L, Dv].
    """
    m = s.amax(-1, keepdim=True)
    p = torch.exp(s - m.masked_fill(m == -math.inf, 0.0))
    if weights is not None:
        p = p * weights
    l = p.sum(-1, keepdim=True)
    rounded = p.to(dtype).double() if dtype != torch.float32 else p
    return (rounded @ v / torch.where(l == 0, torch.ones_like(l), l)).to(dtype)


def right_output(w: Work) -> torch.Tensor:
    """Return the output of a kernel without a mistake."""
    return attend(w.s, w.v, w.call.q.dtype)


def parts(w: Work, keys: int):
    """Return m (base e), l and o (not normalised) of splits of `keys` keys."""
    found = []
    for first in range(0, w.s.shape[-1], keys):
        s, v = w.s[..., first : first + keys], w.v[:, :, first : first + keys]
        m = s.amax(-1, keepdim=True)
        p = torch.exp(s - m.masked_fill(m == -math.inf, 0.0))
        found.append((m, p.sum(-1, keepdim=True), p @ v))
    return (torch.stack(x) for x in zip(*found, strict=True))


def exact(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """Return output and log-sum-exp (base e) in float64."""
    w = Work.of(call)
    return torch.softmax(w.s, -1).nan_to_num() @ w.v, torch.logsumexp(w.s, -1)
