"""K, V or Q as a sum of several tensors, or through another function of each number: few factors.

A tile that is added to what lay there, neighbours that are averaged, another head or the other
tensor that is mixed in: all of them are sums, whose factors all rows share. A function of numbers
is a sum of splines.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.structure import scores
from labkernels.numerics.verdict.diagnosis.structure.gathered import Block, equations_of
from labkernels.numerics.verdict.diagnosis.structure.linear import Terms, fitted, too_many
from labkernels.numerics.verdict.diagnosis.structure.operands import descended
from labkernels.numerics.verdict.diagnosis.structure.weights import Found
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet, queries_of
from labkernels.units import LOG2_E

_NEAR = (-1, 1, -2, 2)
_TILES = (8, 16, 32, 64, 128)
_OTHERS = 4  # most other heads or requests in a sum
_PIECES = (4, 12)  # of a spline
_TOLD = 5
_NONE = 2e-3  # a factor below this counts as 0

Tensor = Callable[[Block, str], np.ndarray]  # K or V of a block [L, D]


def _at(step: int, edge: str) -> Tensor:
    def of(block: Block, which: str) -> Array:
        x = getattr(block.sheet, which)
        at = np.arange(len(x)) + step
        if edge == "around":
            return x[at % len(x)]
        there = ((at >= 0) & (at < len(x)))[:, None]
        own = x if edge == "own" else 0 * x
        return np.where(there, x[np.clip(at, 0, len(x) - 1)], own)

    return of


def _of_head(step: int) -> Tensor:
    def of(block: Block, which: str) -> Array:
        sheet = block.sheet
        return sheet.keys(which, (sheet.kv_head + step) % sheet.problem.kv_heads)

    return of


def _of_request(step: int) -> Tensor:
    def of(block: Block, which: str) -> Array:
        sheet = block.sheet
        own = getattr(sheet, which)
        x = sheet.keys(which, request=(sheet.request + step) % sheet.problem.batch)[: len(own)]
        return np.concatenate([x, 0 * own[len(x) :]])

    return of


def _other(block: Block, which: str) -> Array:
    """Return V for K and K for V, as far as both are equally wide."""
    own, other = getattr(block.sheet, which), getattr(block.sheet, "v" if which == "k" else "k")
    n = min(own.shape[1], other.shape[1])
    return np.pad(other[:, :n], ((0, 0), (0, own.shape[1] - n)))


def _constant(of: Callable[[Array], Array]) -> Tensor:
    return lambda block, which: of(getattr(block.sheet, which)) + 0 * getattr(block.sheet, which)


def _sums(block: Block) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Yield what may be added: a name, and tensors with words for each."""
    problem = block.sheet.problem
    for edge in ("own", "none", "around"):
        name = "{} is a sum of several keys'"
        yield name, {f"that of key {d:+d}": _at(d, edge) for d in _NEAR}
        for size in _TILES:
            if size < block.sheet.kv_len:
                yield name, {f"that of key {d:+d}": _at(d, edge) for d in (size, -size)}
    heads, requests = (min(n - 1, _OTHERS) for n in (problem.kv_heads, problem.batch))
    if heads:
        each = {f"that of KV head {d:+d}": _of_head(d) for d in range(1, heads + 1)}
        yield "{} is a sum of several heads'", each
    if requests:
        each = {f"that of request {d:+d}": _of_request(d) for d in range(1, requests + 1)}
        yield "{} is a sum of several requests'", each
    if isinstance(block.sheet.channels, slice):
        yield "{} is a sum of K and V", {"the other": _other}
    yield (
        "{} with means added or taken off",
        {
            "1": _constant(lambda x: np.ones((1, 1))),
            "its mean over the keys": _constant(lambda x: x.mean(0)),
            "its mean over the channels": _constant(lambda x: x.mean(1, keepdims=True)),
            "that of the first key": _constant(lambda x: x[:1]),
            "that of the last key": _constant(lambda x: x[-1:]),
        },
    )


def of_sums(blocks: list[Block], was: float) -> Iterator[Found]:
    """Fit factors on the tensors that K, V or both are sums of."""
    for (name, parts), which in itertools.product(list(_sums(blocks[0])), "vk"):
        own = {"its own": lambda block, w: getattr(block.sheet, w)} | parts
        tensors = list(own.values())
        fit = _of_values(blocks, tensors, was) if which == "v" else _of_keys(blocks, tensors, was)
        if fit is None:
            continue
        factors, rms = fit
        told = [
            f"{words} times {x:.3g}"
            for words, x in zip(own, factors, strict=True)
            if abs(x) > _NONE
        ]
        if len(told) > 1:
            yield Found(name.format(which.upper()), ", ".join(told), rms)
            return


def _of_values(
    blocks: list[Block], tensors: list[Tensor], was: float
) -> tuple[Array, float] | None:
    """Return the factors of a sum that V is, and the rms that they leave; None if none explain."""
    n = len(tensors)
    if too_many(n, equations_of(blocks)):
        return None
    terms = []
    for block in blocks:
        p = np.where(block.seen, block.p, 0.0)
        terms.append(block.terms(np.stack([p @ of(block, "v") for of in tensors], 1), None))
    return _explaining(terms, n, was)


def _explaining(terms: list[Terms], n: int, was: float) -> tuple[Array, float] | None:
    fit = fitted(terms, n, was)
    return (fit.x, fit.rms) if fit is not None and fit.explains else None


def _of_keys(blocks: list[Block], tensors: list[Tensor], was: float) -> tuple[Array, float] | None:
    def shapes(block: Block) -> Array:
        return np.stack([block.sheet.q @ of(block, "k").T for of in tensors], -1)

    found = descended(blocks, shapes, len(tensors), was)
    if found is None:
        return None
    x, rms = found
    return np.append(1 + x[0], x[1:]), rms


def _queries(sheet: Sheet) -> Iterator[tuple[str, dict[str, Callable[[Sheet], np.ndarray]]]]:
    """Yield what may be added to queries [R, D], in units of scaled queries."""
    heads, asked = sheet.problem.q.shape[1], int(np.diff(sheet.problem.q_ends).max())
    unit = sheet.problem.scale * LOG2_E

    def of(queries: int, over: int) -> Callable[[Sheet], np.ndarray]:
        def row(sheet: Sheet) -> Array:
            first, end = (int(sheet.problem.q_ends[sheet.request + i]) for i in (0, 1))
            token = np.clip(sheet.tokens + queries, first, end - 1)
            return queries_of(sheet.problem, token, (sheet.heads + over) % heads)

        return row

    if asked > 1:
        yield (
            "Q is a sum of several queries'",
            {f"that of query {d:+d}": of(d, 0) for d in (-1, 1, -2, 2)},
        )
    if heads > 1:
        some = range(1, min(heads, 2 * _OTHERS))
        yield "Q is a sum of several heads'", {f"that of head {d:+d}": of(0, d) for d in some}
    yield (
        "Q with means added or taken off",
        {
            "the keys' mean": lambda s: 0 * s.q + unit * s.k.mean(0),
            "its mean over the channels": lambda s: 0 * s.q + s.q.mean(1, keepdims=True),
            "its own key": lambda s: unit * s.k[np.clip(s.places[:, 0], 0, s.kv_len - 1)],
            "the first key": lambda s: 0 * s.q + unit * s.k[:1],
        },
    )


def of_queries(blocks: list[Block], was: float) -> Iterator[Found]:
    """Fit factors on the tensors that Q is a sum of."""
    for name, parts in _queries(blocks[0].sheet):
        own = {"its own": lambda sheet: sheet.q} | parts
        tensors = list(own.values())

        def shapes(block: Block, tensors: list[Any] = tensors) -> Array:
            return np.stack([of(block.sheet) @ block.sheet.k.T for of in tensors], -1)

        found = descended(blocks, shapes, len(tensors), was)
        if found is None:
            continue
        factors = np.append(1 + found[0][0], found[0][1:])
        pairs = zip(own, factors, strict=True)
        told = [f"{words} times {x:.3g}" for words, x in pairs if abs(x) > _NONE]
        if len(told) > 1:
            yield Found(name, ", ".join(told), found[1])
            return


def of_functions(blocks: list[Block], was: float) -> Iterator[Found]:
    """Fit a spline through which each number of V, K, Q or the output went."""
    for which, pieces in itertools.product(("v", "k", "q", "out"), _PIECES):
        if which == "out":
            values = np.concatenate([block.sheet.truth.ravel() for block in blocks])
        else:
            values = np.concatenate([getattr(b.sheet, which).ravel() for b in blocks[:_OTHERS]])
        knots = scores.knots_of(values, pieces)
        if knots is None or knots[-1] <= knots[0]:
            continue
        n = len(knots) - 4
        found = _of_function(blocks, which, knots, n, was)
        if found is None:
            continue
        x, rms = found
        at = np.quantile(values, np.linspace(0.01, 0.99, _TOLD))
        unit = blocks[0].sheet.problem.scale * LOG2_E if which == "q" else 1.0
        own = at if which in "kq" else 0.0
        bent = scores.basis(at, knots) @ x + own
        told = ", ".join(f"{a / unit:.3g} is {b / unit:.3g}" for a, b in zip(at, bent, strict=True))
        what = which if which == "out" else which.upper()
        yield Found(f"{what} through another function of each number", told, rms)
        return


def _of_function(
    blocks: list[Block], which: str, knots: Array, n: int, was: float
) -> tuple[Array, float] | None:
    if which in ("v", "out"):
        if too_many(n, equations_of(blocks)):
            return None
        terms = []
        for block in blocks:
            if which == "out":
                above = np.moveaxis(scores.basis(block.sheet.truth, knots), -1, 1)
            else:
                p = np.where(block.seen, block.p, 0.0)
                bent = scores.basis(block.sheet.v, knots)  # [L, Dv, G]
                above = np.einsum("rl,ldg->rgd", p, bent, optimize=True)
            terms.append(block.terms(above, None))
        return _explaining(terms, n, was)

    def shapes(block: Block) -> Array:
        q, k = block.sheet.q, block.sheet.k
        if which == "k":
            return np.einsum("rd,ldg->rlg", q, scores.basis(k, knots), optimize=True)
        return np.einsum("rdg,ld->rlg", scores.basis(q, knots), k, optimize=True)

    return descended(blocks, shapes, n, was)


ALL = (of_sums, of_queries, of_functions)
