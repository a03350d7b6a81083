"""Calls of attention with what they ask for, drawn from a seed: the same bits on every machine."""

from collections.abc import Callable
from dataclasses import dataclass, replace

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


@dataclass(frozen=True)
class Asked:
    """Options of a call besides a causal mask; a row sees its last window_left + 1 keys."""

    window_left: int | None = None
    soft_cap: float | None = None
    alibi: bool = False
    sinks: bool = False


@dataclass(frozen=True, eq=False)
class Call:
    """One attention call. Shapes: q [B, Hq, M, D], k [B, Hkv, L, D], v [B, Hkv, L, Dv]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    causal: bool
    scale: float
    asked: Asked = Asked()

    @property
    def slopes(self) -> torch.Tensor | None:
        """The slopes of ALiBi [Hq], or None if the call does not ask for ALiBi."""
        heads = self.q.shape[1]
        every = torch.arange(1, heads + 1, dtype=torch.float32)
        return torch.exp2(-8 * every / heads) if self.asked.alibi else None

    @property
    def sinks(self) -> torch.Tensor | None:
        """Logits [Hq] that count in the denominator alone, or None if the call has no sinks."""
        return torch.linspace(-0.5, 2.5, self.q.shape[1]) if self.asked.sinks else None

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.q.shape[1] // self.k.shape[1]


_Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


def normal(rng, shape: Shape) -> _Arrays:
    """Draw standard normal q, k and v."""
    s = shape
    v_dim = s.v_dim or s.dim
    return (
        rng.standard_normal((s.batch, s.q_heads, s.queries, s.dim)),
        rng.standard_normal((s.batch, s.kv_heads, s.keys, s.dim)),
        rng.standard_normal((s.batch, s.kv_heads, s.keys, v_dim)),
    )


def changed(change: Callable) -> Callable:
    """Return a family that changes normal q, k and v: change(rng, q, k, v) returns the three."""

    def family(rng, shape: Shape) -> _Arrays:
        return change(rng, *normal(rng, shape))

    return family


def drawn(draw: Callable) -> Callable:
    """Return a family that draws q, k and v alike: draw(rng, shape) returns one of them."""

    def family(rng, shape: Shape) -> _Arrays:
        return tuple(draw(rng, x.shape) for x in normal(rng, shape))

    return family


def asking(call: Call, asked: Asked) -> Call:
    """Return the call with other options; a window makes the call causal."""
    return replace(call, asked=asked, causal=call.causal or asked.window_left is not None)


def drawn_call(draw: Callable, seed: list[int], shape: Shape, dtype: str) -> Call:
    """Return the call that a family draws from a seed."""
    arrays = draw(np.random.default_rng(seed), shape)
    q, k, v = (torch.from_numpy(np.array(x)).to(DTYPES[dtype]) for x in arrays)
    return Call(q, k, v, shape.causal, shape.dim**-0.5)
