"""ALiBi by another distance, sinks with a value, and masks by tiles of rows or of keys.

Functions take sheets and a misfit, as those of `fitted` do.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit, best
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet
from labkernels.units import LOG2_E

_TILES = (2, 4, 8, 16, 32, 64, 128)
_OWN = "without its sign, as it should be"
_DIVISORS = (2.0, 4.0, 8.0)
_CAPS = (8, 15, 16, 31, 32, 63, 64, 127, 128, 255)
_MORE_HEADS = (2, 4, 8, 16, 32, 64)  # of a model, of which a rank has some

Distance = Callable[..., Any]  # of places of queries, of keys, and numbers of queries


def _distances() -> Iterator[tuple[str, Distance]]:
    yield _OWN, lambda i, j, r: np.abs(i - j)
    for n in _TILES:
        yield f"that in whole tiles of {n}", lambda i, j, r, n=n: (i - j) // n * n
        yield f"that in tiles of {n}", lambda i, j, r, n=n: (i - j) // n
        yield f"that from the tile of {n} of the key", lambda i, j, r, n=n: i - j // n * n
        yield f"that to the tile of {n} of the query", lambda i, j, r, n=n: i // n * n - j
        yield f"that within a tile of {n}", lambda i, j, r, n=n: (i - j) % n
        yield f"that from the first query of each {n}", lambda i, j, r, n=n: i - r % n - j
        yield f"that from the last query of each {n}", lambda i, j, r, n=n: i - r % n + n - 1 - j
        yield f"that of the key within its tile of {n}", lambda i, j, r, n=n: i - j % n
    for n in _CAPS:
        yield f"at most {n}", lambda i, j, r, n=n: np.minimum(i - j, n)
    for x in _DIVISORS:
        yield f"that divided by {x:g}", lambda i, j, r, x=x: (i - j) / x
    yield "one more", lambda i, j, r: i - j + 1
    yield "its square", lambda i, j, r: (i - j) ** 2.0
    yield "its square root", lambda i, j, r: np.sqrt(np.maximum(i - j, 0.0))
    yield "log2(1 + it)", lambda i, j, r: np.log2(1 + np.maximum(i - j, 0.0))
    yield "the place of the key, counted from the last", lambda i, j, r: j.max() - j
    yield "the place of the key, with a wrong sign", lambda i, j, r: j + 0 * i
    yield "that from the query's number", lambda i, j, r: r - j
    yield "that from the query's number, without its sign", lambda i, j, r: np.abs(r - j)
    yield "that from the query's number, at least 0", lambda i, j, r: np.maximum(r - j, 0)
    yield "that of the last query", lambda i, j, r: j.max() - j + 0 * i
    yield "that of the first query", lambda i, j, r: i - r - j


def _slopes(sheet: Sheet) -> Iterator[tuple[str, np.ndarray]]:
    """Yield slopes of each head, in natural units. Shapes: [Hq]."""
    problem = sheet.problem
    own = np.asarray(problem.variant and problem.variant.alibi, np.float64)
    n, group = len(own), problem.group
    head, kv_heads = np.arange(n), problem.kv_heads
    yield "", own
    yield "2^(-8 (k + 1) / n) of KV head k of n", 2.0 ** (-8 * (head // group + 1) / kv_heads)
    yield "2^(-8 (h + 1) / n) of head h of n", 2.0 ** (-8 * (head + 1) / n)
    yield "2^(-8 h / n) of head h of n", 2.0 ** (-8 * head / n)
    for more in _MORE_HEADS:
        if more > n:
            said = f"2^(-8 (h + 1) / {more}) of head h of {more}"
            yield said, 2.0 ** (-8 * (head + 1) / more)
    yield "of the first head of its group", own[head // group * group]
    yield "of the last head of its group", own[head // group * group + group - 1]
    yield "of the head with its KV head's number", own[head // group]
    yield "of its number in the group", own[head % group]
    yield "of the first head", own[0 * head]
    yield "times log2(e)", own * LOG2_E
    yield "divided by log2(e)", own / LOG2_E
    yield "of head h modulo the KV heads", own[head % kv_heads]


_LIMITS: dict[str, Callable[..., Any]] = {
    "": lambda x: x,
    ", at least 0": lambda x: np.maximum(x, 0),
    ", without its sign": np.abs,
}
_CAPPED = "soft cap after the ALiBi slopes, not before them"


def of_distances(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """ALiBi was asked for, and its slopes or distances are others, or a soft cap bends them."""
    variant = sheets[0].problem.variant
    if variant is None or variant.alibi is None:
        return
    found = []
    capped = (False, True) if variant.soft_cap is not None else (False,)
    for inside, limit, (words, of), (whose, slopes) in itertools.product(
        capped, _LIMITS, _distances(), _slopes(sheets[0])
    ):
        if words == _OWN and (limit or (not whose and not inside)):
            continue

        def outputs(
            sheet: Sheet,
            of: Distance = of,
            slopes: Array = slopes,
            least: Callable[..., Any] = _LIMITS[limit],
            cap_last: bool = inside,
        ) -> Array:
            key = np.arange(sheet.kv_len)[None]
            distance = least(of(sheet.places, key, sheet.queries[:, None]))
            bias = LOG2_E * slopes[sheet.heads][:, None] * distance
            return sheet.attend(sheet.masked(_biased(sheet, bias, cap_last=cap_last)))

        name = "ALiBi slopes of another head" if words == _OWN else "ALiBi by another distance"
        said = [f"slopes {whose}"] * bool(whose) + [words + limit] * (words != _OWN)
        name = _CAPPED if inside else name
        cost = 1.0 + 0.5 * (len(said) > 1) + 0.5 * bool(limit)
        found.append(Mistake(name, ", ".join(said), outputs, cost=cost))
    yield from best(misfit, found)


def _biased(sheet: Sheet, bias: Array, *, cap_last: bool) -> Array:
    """Return products less a bias, under the soft cap that was asked for, before it or after it."""
    products = sheet.q @ sheet.k.T
    cap = sheet.problem.variant and sheet.problem.variant.soft_cap
    if not cap:
        return products - bias
    c = float(cap) * LOG2_E
    if cap_last:
        return c * np.tanh((products - bias) / c)
    return c * np.tanh(products / c) - bias


def of_sinks(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """The sink that was asked for has a value, as a key has."""
    if not sheets[0].has_sink:
        return
    for words, of in (
        ("that of the first key", lambda v: v[:1]),
        ("that of the last key", lambda v: v[-1:]),
        ("the mean of all", lambda v: v.mean(0, keepdims=True)),
        ("the sum of all", lambda v: v.sum(0, keepdims=True)),
    ):

        def outputs(sheet: Sheet, of: Callable[[np.ndarray], np.ndarray] = of) -> Array:
            top = sheet.scores.max(1, keepdims=True)
            sink = np.exp2(sheet.sink - top)
            above = sheet.weights @ sheet.v + sink * of(sheet.v)
            return above / (sheet.weights.sum(1, keepdims=True) + sink)

        yield Mistake("sinks with a value", words, outputs, cost=1.0)


def _moved(sheet: Sheet, kind: str, size: int, last: bool) -> np.ndarray:
    """Return the places of the first or last rows of each row's tile. Shapes: [R, 1]."""
    row = (sheet.queries if kind == "tokens" else sheet.packed_rows)[:, None]
    edge = row // size * size + (size - 1 if last else 0)
    step = (edge - row) // (1 if kind == "tokens" else sheet.problem.group)
    end = sheet.kv_len - 1 - sheet.places
    return sheet.places + np.minimum(step, end)


def of_masks(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """The mask or the window is that of the first or last row of a tile, or of whole tiles."""
    variant = sheets[0].problem.variant
    if not any(sheet.hidden.any() for sheet in sheets) or (variant and variant.mask is not None):
        return
    left = None if variant is None else variant.window_left
    bounds: dict[str, Callable[..., Any]] = {"its own": lambda sheet: sheet.places}
    for kind, size, last in itertools.product(("tokens", "packed rows"), _TILES, (False, True)):
        said = f"the {'last' if last else 'first'} row's of each {size} {kind}"
        bounds[said] = lambda s, k=kind, n=size, e=last: _moved(s, k, n, e)
    for size in _TILES:
        said = f"the {{}} of its tile of {size} keys"
        bounds[said.format("start")] = lambda s, n=size: s.places // n * n
        bounds[said.format("end")] = lambda s, n=size: s.places // n * n + n - 1
    pairs = [("its own", b) for b in bounds if left is not None] + [(b, "its own") for b in bounds]
    pairs += [(b, b) for b in bounds if left is not None]
    found = []
    for of_last, of_first in dict.fromkeys(pairs):

        def outputs(sheet: Sheet, a: str = of_last, b: str = of_first) -> Array:
            key = np.arange(sheet.kv_len)[None]
            seen = key <= bounds[a](sheet)
            if left is not None:
                seen = seen & (key >= bounds[b](sheet) - left)
            scores = np.where(seen, sheet.raw, -np.inf)
            return sheet.attend(np.where(seen.any(1, keepdims=True), scores, sheet.scores))

        where = f"its end is {of_last}" + f", its start {of_first}" * (left is not None)
        asked = "mask" if left is None else "window or mask"
        name = f"another {asked}: keys that the mask hides, or keys left out"
        found.append(Mistake(name, where, outputs, cost=1.0))
    yield from best(misfit, found)


ALL = (of_distances, of_sinks, of_masks)
