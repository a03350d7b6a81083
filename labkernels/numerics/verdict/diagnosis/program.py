"""Attention as a small program whose steps can be edited: loads, scores, mask, weights, sums.

A block is some rows of one request and one query head. An edited program gives Terms: what each key
adds above and below the fraction, so that the keys that an edit concerns enter linearly.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labkernels.numerics import rounding
from labkernels.numerics.arrays import Array
from labkernels.numerics.truth.problem import Problem, keys_of
from labkernels.numerics.verdict.diagnosis.match import Edit
from labkernels.units import LOG2_E

TINY = 1e-300  # in place of a division by 0
LARGEST = 100.0  # log2 units by which an edited score may exceed the right maximum
_GROWN_MOST = 1e3  # most by which an edit's rounding may exceed the right row's, as a ratio


@dataclass(frozen=True, eq=False)
class Case:
    """A wrong output. Shapes: out, truth, sigma [total_q, Hq, Dv]; bad, rows that are wrong."""

    problem: Problem
    out: np.ndarray
    truth: np.ndarray
    sigma: np.ndarray
    bad: np.ndarray
    out_format: str
    p_format: str
    notes: dict[Any, Any] = field(default_factory=dict, repr=False)

    def keys(self, which: str, request: int, kv_head: int) -> np.ndarray:
        """Return K or V ("k", "v") of a request and KV head, made once. Shapes: [L, D]."""
        name = which, request, kv_head
        if name not in self.notes:
            self.notes[name] = keys_of(self.problem, which, kv_head, request)
        found: np.ndarray = self.notes[name]
        return found


@dataclass(frozen=True, eq=False)
class Terms:
    """Weights above and below the fraction [R, L], values [L, Dv], what else is below [R, 1]."""

    above: np.ndarray
    below: np.ndarray
    v: np.ndarray
    more: np.ndarray

    @property
    def sums(self) -> np.ndarray:
        """The denominator, 1 where it is 0. Shapes: [R, 1]."""
        found = self.below.sum(1, keepdims=True) + self.more
        return np.where(found == 0, 1.0, found)

    def output(self) -> np.ndarray:
        """Return the rows. Shapes: [R, Dv]."""
        return self.above @ self.v / self.sums


@dataclass(frozen=True, eq=False)
class Block:
    """Rows of one request and query head. Shapes: tokens [R]; channels: those of Dv that count."""

    case: Case
    request: int
    head: int
    tokens: np.ndarray
    channels: Any

    def _of(self, name: str) -> np.ndarray:
        found: np.ndarray = getattr(self.case, name)[self.tokens, self.head][:, self.channels]
        return found

    @functools.cached_property
    def out(self) -> np.ndarray:
        """The output that is judged. Shapes: [R, Dv]."""
        return self._of("out")

    @functools.cached_property
    def truth(self) -> np.ndarray:
        """The right output. Shapes: [R, Dv]."""
        return self._of("truth")

    @functools.cached_property
    def sigma(self) -> np.ndarray:
        """The standard deviation of rounding. Shapes: [R, Dv]."""
        return np.maximum(self._of("sigma"), TINY)

    @property
    def problem(self) -> Problem:
        """The problem that the rows belong to."""
        return self.case.problem

    @property
    def kv_head(self) -> int:
        """The KV head of the rows."""
        return self.head // self.problem.group

    @property
    def n(self) -> int:
        """How many keys the request has."""
        return int(self.problem.kv_lens[self.request])

    @property
    def keys(self) -> np.ndarray:
        """The numbers of the keys. Shapes: [L]."""
        return np.arange(self.n)

    @property
    def queries(self) -> np.ndarray:
        """The number of each row's query in its request. Shapes: [R, 1]."""
        return (self.tokens - int(self.problem.q_ends[self.request]))[:, None]

    @property
    def n_queries(self) -> int:
        """How many queries the request has."""
        return int(np.diff(self.problem.q_ends)[self.request])

    @property
    def places(self) -> np.ndarray:
        """The place of each row's query among the keys. Shapes: [R, 1]."""
        return self.problem.places_here[self.tokens][:, None]

    @functools.cached_property
    def seen(self) -> np.ndarray:
        """True where a row sees a key. Shapes: [R, L]."""
        seen = self.keys < self.problem.n_keys[self.tokens][:, None]
        if self.problem.variant is None:
            return seen
        whole = slice(0, self.n)
        hides = self.problem.variant.hides(self.tokens, 1, self.places, whole, self.out)
        return seen if hides is None else seen & ~hides

    def queries_of(self, tokens: Array, head: int) -> np.ndarray:
        """Return rows of Q that give scores in log2 units. Shapes: [R, D]."""
        rows: np.ndarray = self.problem.q_here[tokens, head].astype(np.float64)
        return rows * (self.problem.scale * LOG2_E)

    @functools.cached_property
    def q(self) -> np.ndarray:
        """The rows of Q. Shapes: [R, D]."""
        return self.queries_of(self.tokens, self.head)

    @functools.cached_property
    def k(self) -> np.ndarray:
        """The keys. Shapes: [L, D]."""
        return self.case.keys("k", self.request, self.kv_head)

    @functools.cached_property
    def v(self) -> np.ndarray:
        """The values. Shapes: [L, Dv]."""
        return self.case.keys("v", self.request, self.kv_head)[:, self.channels]

    @functools.cached_property
    def v_squares(self) -> np.ndarray:
        """The squares of the values. Shapes: [L, Dv]."""
        return self.v**2

    def other(self, which: str, request: int, kv_head: int) -> np.ndarray:
        """Return K or V of another request or head, as long as the own: its last key repeats."""
        name = "other", which, request, kv_head, self.n, str(self.channels)
        if name not in self.case.notes:
            found = self.case.keys(which, request, kv_head)
            found = found if which == "k" else found[:, self.channels]
            if not len(found):
                found = np.zeros((self.n, found.shape[1]))
            if len(found) != self.n:
                found = found[np.minimum(self.keys, len(found) - 1)]
            self.case.notes[name] = found
        kept: np.ndarray = self.case.notes[name]
        return kept

    @functools.cached_property
    def products(self) -> np.ndarray:
        """The products of Q and K, with the scale, in log2 units. Shapes: [R, L]."""
        return self.q @ self.k.T

    def shaped(self, products: Array) -> np.ndarray:
        """Return products as the variant's cap and slopes change them. Shapes: [R, L]."""
        variant = self.problem.variant
        if variant is None:
            return products
        heads = np.full(len(self.tokens), self.head)
        return variant.shaped(products, heads, self.places, np.arange(products.shape[1]))

    @functools.cached_property
    def raw(self) -> np.ndarray:
        """Scores of all keys, hidden ones too. Shapes: [R, L]. Units: log2 units."""
        return self.shaped(self.products)

    @functools.cached_property
    def top(self) -> np.ndarray:
        """The largest score of each row, 0 if it sees no key. Shapes: [R, 1]."""
        found = np.where(self.seen, self.raw, -np.inf).max(1, keepdims=True, initial=-np.inf)
        return np.where(np.isinf(found), 0.0, found)

    @functools.cached_property
    def w(self) -> np.ndarray:
        """The weights, relative to the largest. Shapes: [R, L]."""
        return self.weights(self.raw)

    def weights(self, scores: Array, seen: Array | None = None) -> np.ndarray:
        """Return the weights of scores, 0 where a row does not see a key. Shapes: [R, L]."""
        below = np.where(self.seen if seen is None else seen, scores - self.top, -np.inf)
        return np.exp2(np.minimum(below, LARGEST))

    @property
    def sink_logit(self) -> float:
        """The sink of the head in log2 units; -inf if there is none."""
        variant = self.problem.variant
        if variant is None or variant.sinks is None:
            return -np.inf
        return float(np.asarray(variant.sinks)[self.head]) * LOG2_E

    @property
    def sink(self) -> np.ndarray:
        """The sink's weight. Shapes: [R, 1]."""
        return np.exp2(np.minimum(self.sink_logit - self.top, LARGEST))

    @functools.cached_property
    def sums(self) -> np.ndarray:
        """The denominator. Shapes: [R, 1]."""
        return np.maximum(self.w.sum(1, keepdims=True) + self.sink, TINY)

    def by_weights(self, w: Array, v: Array | None = None, below: Array | None = None) -> Terms:
        """Return the terms of other weights, values, or weights in the denominator."""
        return Terms(w, w if below is None else below, self.v if v is None else v, self.sink)

    def by_scores(self, s: Array, v: Array | None = None, seen: Array | None = None) -> Terms:
        """Return the terms of other scores, values, or another mask."""
        return self.by_weights(self.weights(s, seen), v)

    def by_load(
        self, q: Array | None = None, k: Array | None = None, v: Array | None = None
    ) -> Terms:
        """Return the terms of other queries, keys or values."""
        if q is None and k is None:
            return self.by_weights(self.w, v)
        products = (self.q if q is None else q) @ (self.k if k is None else k).T
        return self.by_scores(self.shaped(products), v)

    @functools.cached_property
    def _per_weight(self) -> float:
        """The variance that P's rounding adds per p^2 v^2, as sigma itself has it."""
        p = self.w / self.sums
        room = np.maximum(self.sigma**2 - store(self.truth, self.case.out_format), 0)
        return float(np.median(room / np.maximum(p**2 @ self.v_squares, TINY)))

    def squares(self, predicted: Array | Terms) -> np.ndarray:
        """Return z^2 against an edited program, with its own roundings. Shapes: [R, Dv]."""
        fmt = self.case.out_format
        if isinstance(predicted, Terms):
            rows = predicted.output()
            p = predicted.above / predicted.sums
            v_squares = self.v_squares if predicted.v is self.v else predicted.v**2
            grown = self._per_weight * (p**2 @ v_squares) + store(rows, fmt)
        else:
            rows = predicted
            size, right = ((x**2).mean(1, keepdims=True) for x in (rows, self.truth))
            times = np.minimum(size / np.maximum(right, TINY), _GROWN_MOST)
            grown = np.maximum(self.sigma**2 * times, store(rows, fmt))
        z2 = (self.out - rows) ** 2 / np.maximum(self.sigma**2, grown)
        return np.where(np.isfinite(z2), np.minimum(z2, 1e20), 1e20)


@dataclass(frozen=True, eq=False)
class Trial:
    """An edit of the program, by which a wrong output may be explained.

    of: the Terms of a block's rows, or the rows, under the edit at all keys; with a grid, of(block,
    x). cost: how much it takes to say. scoped: it may concern some keys alone. factors: the shares
    in which a key may follow it; none: any number. grid: numbers among which one is fitted.
    """

    kind: str
    edit: Edit
    of: Callable[..., Any]
    cost: float = 1.0
    scoped: bool = False
    factors: tuple[float, ...] = (1.0,)
    grid: np.ndarray | None = None
    precision: bool = False


def store(x: Array, fmt: str) -> np.ndarray:
    """Return the variance of a store in a format. Shapes: as x."""
    return rounding.quantum(x, fmt) ** 2 / 12


def joined(block: Block, other: Terms, share: Array) -> Terms:
    """Return the terms where a share of each key, [L] or [R, L], is that of an edit."""
    if other.v is block.v:
        above, v = block.w + share * (other.above - block.w), block.v
    else:
        above = np.concatenate([block.w * (1 - share), other.above * share], 1)
        v = np.concatenate([block.v, other.v])
    return Terms(above, block.w + share * (other.below - block.w), v, other.more)


def mean_square(blocks: "list[Block]", predicted: list[Any]) -> float:
    """Return mean z^2 of all rows of some blocks against what an edit gives."""
    squares = [b.squares(x) for b, x in zip(blocks, predicted, strict=True)]
    return sum(float(x.sum()) for x in squares) / max(1, sum(x.size for x in squares))
