"""What a cache holds, found by a wrong index: tokens of all requests, and scales.

Yields what `tensors` yields: (name, where, change, cost).
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics import rounding
from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.grammar.tensors import Change
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet, keys_of

_COUNTS = tuple(2**n for n in range(5, 13))
FORMATS = ("e4m3", "int8")
_OTHERS = 4  # most other heads or requests whose scales are tried
_LAWS: dict[str, Callable[..., Any]] = {
    "largest number": lambda x, axis: np.abs(x).max(axis, keepdims=True),
    "length": lambda x, axis: np.sqrt((x**2).mean(axis, keepdims=True)),
}
_LARGEST = {"e4m3": 448.0, "int8": 127.0}
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


def addresses(sheet: Sheet) -> Iterator[Change]:
    """Yield keys whose address is some elements off in rows that hold all heads of a token."""
    width = sheet.keys("k").shape[1]
    if sheet.problem.kv_heads < 2:
        return
    for part, around in itertools.product((2, 4, 8, width // 8), (True, False)):
        for step in (width // part, -(width // part)) if 0 < part < width else ():
            where = "in rows of all heads" + ", around" * around
            name = f"{{}} read with an address {step:+d} elements off"
            yield name, where, lambda s, w, d=step, a=around: _in_rows(s, w, d, around=a), 1.5


def _in_rows(sheet: Sheet, which: str, step: int, *, around: bool) -> Array:
    """Return keys that begin some elements off; around: within the row of their own token.

    The rows of all requests lie one after the other.
    """
    flat = sheet.once((which, "rows of all heads"), lambda: _rows(sheet, which))
    lens = sheet.problem.kv_lens
    width = flat.shape[1] // sheet.problem.kv_heads
    token = int(lens[: sheet.request].sum()) + np.arange(sheet.kv_len)[:, None]
    at = sheet.kv_head * width + np.arange(width) + step
    if around:
        found = flat[token, at % flat.shape[1]]
    else:
        found = flat.ravel()[(token * flat.shape[1] + at) % flat.size]
    return found[:, sheet.channels] if which == "v" else found


def _rows(sheet: Sheet, which: str) -> Array:
    """Return the tokens of all requests, each with the channels of all heads."""
    problem = sheet.problem
    each = (
        np.concatenate([keys_of(problem, which, h, r) for h in range(problem.kv_heads)], 1)
        for r in range(problem.batch)
    )
    return np.concatenate(list(each))


def _read(sheet: Sheet, which: str, index: Callable[..., Any]) -> Array:
    found = sheet.once(
        (which, "all requests", sheet.kv_head),
        lambda: np.concatenate([sheet.keys(which, request=r) for r in range(sheet.problem.batch)]),
    )
    first = int(sheet.problem.kv_lens[: sheet.request].sum())
    return found[index(first + np.arange(sheet.kv_len))]


def scales(sheet: Sheet, fmt: str = "") -> Iterator[Change]:
    """Yield keys whose scales are those of another head, request, key or channel.

    fmt: the format in which they are kept with their own scales; "" for one that loses nothing.
    """
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
    laws = dict(itertools.islice(_LAWS.items(), 1)) if fmt else _LAWS
    name = f"{{}} in {fmt} with a wrong scale" if fmt else "{} with scales of "
    for step in range(1, heads):
        yield (
            name + "another head" * (not fmt),
            f"the largest number of each head, of all requests, is that in KV head h + {step}",
            lambda s, w, d=step: _of_all_requests(s, w, d, fmt),
            1.5,
        )
    for (law, size), (of, axis) in itertools.product(laws.items(), _OF.items()):
        for whose, other in others:
            kind = "head" if "head" in whose else "request"
            yield (
                name + f"another {kind}" * (not fmt),
                f"the {law} of each {of} is that in {whose}",
                lambda s, w, n=size, a=axis, o=other: _scaled(s, w, n, a, o, fmt),
                1.5,
            )
        for step in (1, -1) if axis is not None else ():
            yield (
                name + f"other {of}s" * (not fmt),
                f"the {law} of each {of} is that of {of} {step:+d}",
                lambda s, w, n=size, a=axis, d=step: _moved(s, w, n, a, d, fmt),
                1.5,
            )


def _of_all_requests(sheet: Sheet, which: str, step: int, fmt: str) -> Array:
    """Return keys with the scale that another head has in all requests."""
    problem = sheet.problem
    heads = (sheet.kv_head, (sheet.kv_head + step) % problem.kv_heads)
    own, other = (
        max(float(np.abs(sheet.keys(which, h, r)).max(initial=0.0)) for r in range(problem.batch))
        for h in heads
    )
    return _kept(sheet.keys(which), np.array(own), fmt) * other


def _of_request(sheet: Sheet, which: str, step: int) -> Array:
    own = sheet.keys(which)
    other = sheet.keys(which, request=(sheet.request + step) % sheet.problem.batch)[: len(own)]
    return np.concatenate([other, own[len(other) :]])


def _kept(x: Array, size: Array, fmt: str) -> Array:
    """Return numbers in units of their scale, as a format keeps them."""
    x = x / np.maximum(size, 1e-300)
    if not fmt:
        return x
    largest = _LARGEST[fmt]
    x = x * largest
    return (np.rint(x) if fmt.startswith("int") else rounding.round_to(x, fmt)) / largest


def _scaled(
    sheet: Sheet,
    which: str,
    size: Callable[..., Any],
    axis: int | None,
    of: Callable[..., Any],
    fmt: str,
) -> Array:
    x = sheet.keys(which)
    return _kept(x, size(x, axis), fmt) * size(of(sheet, which), axis)


def _moved(
    sheet: Sheet, which: str, size: Callable[..., Any], axis: int, step: int, fmt: str
) -> Array:
    x = sheet.keys(which)
    each = size(x, axis)
    at = np.arange(each.size) + step
    at = np.where((at >= 0) & (at < each.size), at, np.arange(each.size))
    return _kept(x, each, fmt) * each.ravel()[at].reshape(each.shape)
