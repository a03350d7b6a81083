"""What a cache holds, found by a wrong index: tokens of all requests, and scales.

Yields what `tensors` yields: (name, where, change, cost).
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.grammar.tensors import Change
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet

_COUNTS = tuple(2**n for n in range(5, 13))
_OTHERS = 4  # most other heads or requests whose scales are tried
_LAWS: dict[str, Callable[..., Any]] = {
    "largest number": lambda x, axis: np.abs(x).max(axis, keepdims=True),
    "length": lambda x, axis: np.sqrt((x**2).mean(axis, keepdims=True)),
}
_OF = {"key": 1, "channel": 0, "head": None}  # what has a scale, and the axes that it is over


def tokens(sheet: Sheet) -> Iterator[Change]:
    """Yield keys whose place among the tokens of all requests wraps around, or has a largest."""
    total = int(sheet.problem.kv_lens.sum())
    if sheet.problem.batch < 2:
        return
    for count in (n for n in _COUNTS if n < total):
        for words, index in (
            (f"t % {count}", lambda t, n=count: t % n),
            (f"min(t, {count - 1})", lambda t, n=count: np.minimum(t, n - 1)),
        ):
            where = f"token t of all requests, one after the other, reads token {words}"
            name = "{} read from other tokens, across requests"
            yield name, where, lambda s, w, of=index: _read(s, w, of), 1.5


def _read(sheet: Sheet, which: str, index: Callable[..., Any]) -> Array:
    found = sheet.once(
        (which, "all requests", sheet.kv_head),
        lambda: np.concatenate([sheet.keys(which, request=r) for r in range(sheet.problem.batch)]),
    )
    first = int(sheet.problem.kv_lens[: sheet.request].sum())
    return found[index(first + np.arange(sheet.kv_len))]


def scales(sheet: Sheet) -> Iterator[Change]:
    """Yield keys whose scales are those of another head, request, key or channel."""
    problem = sheet.problem
    heads = min(problem.kv_heads, _OTHERS)
    others: list[tuple[str, Callable[..., Any]]] = [
        (f"KV head h + {d}", lambda s, w, d=d: s.keys(w, (s.kv_head + d) % s.problem.kv_heads))
        for d in range(1, heads)
    ]
    others += [(f"KV head {h}", lambda s, w, h=h: s.keys(w, h)) for h in range(heads - 1)]
    others += [
        (f"request b + {d}", lambda s, w, d=d: _of_request(s, w, d))
        for d in range(1, min(problem.batch, _OTHERS))
    ]
    for (law, size), (of, axis) in itertools.product(_LAWS.items(), _OF.items()):
        for whose, other in others:
            kind = "head" if "head" in whose else "request"
            yield (
                f"{{}} with scales of another {kind}",
                f"the {law} of each {of} is that in {whose}",
                lambda s, w, n=size, a=axis, o=other: _scaled(s, w, n, a, o),
                1.5,
            )
        for step in (1, -1) if axis is not None else ():
            yield (
                f"{{}} with scales of other {of}s",
                f"the {law} of each {of} is that of {of} {step:+d}",
                lambda s, w, n=size, a=axis, d=step: _moved(s, w, n, a, d),
                1.5,
            )


def _of_request(sheet: Sheet, which: str, step: int) -> Array:
    own = sheet.keys(which)
    other = sheet.keys(which, request=(sheet.request + step) % sheet.problem.batch)[: len(own)]
    return np.concatenate([other, own[len(other) :]])


def _scaled(
    sheet: Sheet, which: str, size: Callable[..., Any], axis: int | None, of: Callable[..., Any]
) -> Array:
    x = sheet.keys(which)
    return x * size(of(sheet, which), axis) / np.maximum(size(x, axis), 1e-300)


def _moved(sheet: Sheet, which: str, size: Callable[..., Any], axis: int, step: int) -> Array:
    x = sheet.keys(which)
    each = size(x, axis)
    at = np.arange(each.size) + step
    at = np.where((at >= 0) & (at < each.size), at, np.arange(each.size))
    return x * each.ravel()[at].reshape(each.shape) / np.maximum(each, 1e-300)
