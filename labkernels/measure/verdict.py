"""`labkernels.verdict` and `compare`: torch or NumPy tensors in, rounding or a bug out."""

import math
from dataclasses import dataclass

import numpy as np

from labkernels.numerics import rounding
from labkernels.numerics.problem import Problem
from labkernels.numerics.rounds import Rounds
from labkernels.numerics.verdict import BUG, ROUNDING, Verdict, judge

_FORMATS = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "uint16": "bf16"}


def verdict(
    out,
    q,
    k=None,
    v=None,
    *,
    kv_len=None,
    cu_seqlens=None,
    cache=None,
    lse2=None,
    scale: float | None = None,
    p_format: str | None = None,
    denominator: str | None = None,
    exp2: str = "mufu",
) -> Verdict:
    """Say whether an attention output differs from float64 by rounding or by a bug.

    Decode only: one query token a request, no causal mask; other shapes raise ValueError.
    Shapes: q, out [B, Hq, D] or [B, Hq, 1, D]; k, v [B, Hkv, L, D] with kv_len [B] where lengths
    differ, or [total, Hkv, D] with cu_seqlens [B + 1], or neither and a cache with k, v [pages,
    page_size, Hkv, D], page_table and kv_len, as PagedKV; lse2 [B, Hq], base 2.
    Units: torch or NumPy tensors; a NumPy uint16 holds the bits of bf16. p_format: that of the
    probabilities in the second product, by default that of q; denominator None: either kind.
    Raises: ValueError naming the argument, its value and what is allowed.
    """
    out_format, in_format = _format("out", out), _format("q", q)
    q, out = _token("q", _array("q", q)), _token("out", _array("out", out))
    if out.shape[:2] != q.shape[:2]:
        raise ValueError(f"out.shape = {out.shape}, allowed: {q.shape[:2]} and any Dv, as q")
    scale = 1 / math.sqrt(q.shape[2]) if scale is None else scale
    if not 0 < scale < math.inf:
        raise ValueError(f"scale = {scale}, allowed: a positive number")
    problem = _problem(q, k, v, kv_len, cu_seqlens, cache, scale)
    rounds = Rounds(p_format or in_format, out_format, denominator, exp2)
    lse2 = None if lse2 is None else _array("lse2", lse2).reshape(q.shape[:2])
    return judge(problem, out, rounds=rounds, lse2=lse2)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two outputs for one input: a verdict on each, and where they differ first.

    first: [sample, head, channel], or None where they are equal; different: share of elements.
    """

    a: Verdict
    b: Verdict
    different: float
    first: tuple[int, int, int] | None

    @property
    def wrong(self) -> str:
        """Which of the two is wrong: "a", "b", "both", "neither", or "inconclusive"."""
        bugs = [name for name, v in (("a", self.a), ("b", self.b)) if v.answer == BUG]
        if bugs:
            return "both" if len(bugs) == 2 else bugs[0]
        sound = self.a.answer == self.b.answer == ROUNDING
        return "neither" if sound else "inconclusive"

    def summary(self) -> str:
        """Text: which is wrong, where they differ first, and both verdicts."""
        where = "nowhere" if self.first is None else f"first at {list(self.first)}"
        return (
            f"wrong: {self.wrong}. They differ in {self.different:.2%} of the elements, {where}.\n"
            f"a is {self.a.summary()}\nb is {self.b.summary()}"
        )


def compare(
    out_a,
    out_b,
    q,
    k=None,
    v=None,
    *,
    kv_len=None,
    cu_seqlens=None,
    cache=None,
    scale: float | None = None,
    p_format: str | None = None,
    denominator: str | None = None,
    exp2: str = "mufu",
) -> Comparison:
    """Judge two outputs of one input, each against float64; arguments as for `verdict`."""
    a, b = (
        verdict(
            out,
            q,
            k,
            v,
            kv_len=kv_len,
            cu_seqlens=cu_seqlens,
            cache=cache,
            scale=scale,
            p_format=p_format,
            denominator=denominator,
            exp2=exp2,
        )
        for out in (out_a, out_b)
    )
    left, right = (_token("out", _array("out", out)) for out in (out_a, out_b))
    differs = ~((left == right) | (np.isnan(left) & np.isnan(right)))
    places = np.argwhere(differs)
    first = tuple(int(x) for x in places[0]) if len(places) else None
    return Comparison(a, b, float(differs.mean()) if differs.size else 0.0, first)


def _format(name: str, tensor) -> str:
    kind = str(getattr(tensor, "dtype", type(tensor).__name__)).removeprefix("torch.")
    if kind not in _FORMATS:
        allowed = "float16, bfloat16, float32, uint16 (bits of bf16)"
        raise ValueError(f"{name}.dtype = {kind}, allowed: {allowed}")
    return _FORMATS[kind]


def _array(name: str, tensor) -> np.ndarray:
    """A float32 array of the same values."""
    _format(name, tensor)
    if hasattr(tensor, "detach"):
        return tensor.detach().float().cpu().numpy()
    array = np.asarray(tensor)
    return rounding.from_bits(array, "bf16") if array.dtype == np.uint16 else np.float32(array)


def _integers(name: str, tensor) -> np.ndarray:
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu().numpy()
    array = np.asarray(tensor)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name}.dtype = {array.dtype}, allowed: integers")
    return array.astype(np.int64)


def _token(name: str, array: np.ndarray) -> np.ndarray:
    """One query token a request as [B, H, D]."""
    if array.ndim == 4 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim != 3:
        allowed = "[B, H, D] or [B, H, 1, D], one query token a request"
        raise ValueError(f"{name}.shape = {array.shape}, allowed: {allowed}")
    return array


def _problem(q, k, v, kv_len, cu_seqlens, cache, scale: float) -> Problem:
    """The problem of K and V of any of the three kinds."""
    if cache is not None:
        if not (k is None and v is None and kv_len is None and cu_seqlens is None):
            raise ValueError("cache is given, allowed: without k, v, kv_len and cu_seqlens")
        pools = (_array("cache.k", cache.k), _array("cache.v", cache.v))
        table = _integers("cache.page_table", cache.page_table)
        return Problem(q, *pools, table, _integers("cache.kv_len", cache.kv_len), scale)
    if k is None or v is None:
        raise ValueError(f"{'k' if k is None else 'v'} is missing, allowed: k and v, or a cache")
    k, v = _array("k", k), _array("v", v)
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(f"v.shape = {v.shape}, allowed: {k.shape[:-1]} and any Dv, as k")
    if cu_seqlens is not None:
        return Problem.packed(q, k, v, _integers("cu_seqlens", cu_seqlens), scale=scale)
    lengths = None if kv_len is None else _integers("kv_len", kv_len)
    return Problem.dense(q[:, :, None], k, v, kv_lens=lengths, scale=scale)
