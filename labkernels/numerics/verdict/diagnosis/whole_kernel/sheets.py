"""Rows that went wrong, a few of each KV head and request, with the data behind them.

A mistake of a whole kernel is one rule for all rows. On many rows at once a wrong guess fails, and
a right guess explains errors that are too weak in a single row.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from labkernels.numerics import rounding
from labkernels.numerics.arrays import Array, moved, to_numpy
from labkernels.numerics.truth.problem import Problem
from labkernels.units import LOG2_E

_SHEETS = 4
_GROWN_MOST = 1e3  # largest growth of a variance
_ROWS = 24  # most rows of a sheet
_START = 512  # keys of a long request that are searched first
_AS_OFTEN = 0.7  # least share of wrong rows there, relative to the share among all rows
_SHOWS = 3.0  # z by which a change of weights shows
_NUMBERS = 2**21  # rows times keys of a sheet: more would take seconds per mistake


@dataclass(frozen=True, eq=False)
class Sheet:
    """Some rows of one request and one KV head.

    Shapes: tokens, heads, n_keys [R]; out, truth, sigma [R, Dv]; q [R, D]. channels: those of Dv
    that went wrong, where others are right; all shapes have these alone. notes: kept results about
    these rows; shared: about the request's keys.
    """

    problem: Problem
    request: int
    kv_head: int
    tokens: np.ndarray
    heads: np.ndarray
    out: np.ndarray
    truth: np.ndarray
    sigma: np.ndarray
    p_format: str
    channels: np.ndarray | slice
    notes: dict[Any, Any] = field(default_factory=dict, repr=False)
    shared: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def n_keys(self) -> np.ndarray:
        """How many keys each row sees. Shapes: [R]."""
        return self.problem.n_keys[self.tokens]

    @property
    def kv_len(self) -> int:
        """How many keys the request has."""
        return int(self.problem.kv_lens[self.request])

    @functools.cached_property
    def q(self) -> np.ndarray:
        """The queries, times the scale, so that scores come in log2 units. Shapes: [R, D]."""
        return queries_of(self.problem, self.tokens, self.heads)

    @functools.cached_property
    def hidden(self) -> np.ndarray:
        """True where a row does not see a key. Shapes: [R, L]."""
        behind, variant = np.arange(self.kv_len) >= self.n_keys[:, None], self.problem.variant
        if variant is None:
            return behind
        keys = slice(0, self.kv_len)
        hides = variant.hides(self.tokens, 1, self.places, keys, self.out)
        return behind if hides is None else behind | hides

    @functools.cached_property
    def sink(self) -> Array:
        """The sink of each row in log2 units, -inf if there is none. Shapes: [R, 1]."""
        variant = self.problem.variant
        if variant is None or variant.sinks is None:
            return np.full((len(self.heads), 1), -np.inf)
        return np.asarray(variant.sinks, np.float64)[self.heads][:, None] * LOG2_E

    @property
    def has_sink(self) -> bool:
        """Whether the denominator holds a sink besides the weights."""
        return bool(np.isfinite(self.sink).any())

    @functools.cached_property
    def queries(self) -> np.ndarray:
        """The number of each row's query among those of its request. Shapes: [R]."""
        return self.tokens - int(self.problem.q_ends[self.request])

    @property
    def packed_rows(self) -> np.ndarray:
        """The number of each row where the heads of a group lie side by side. Shapes: [R]."""
        return self.queries * self.problem.group + self.heads % self.problem.group

    @functools.cached_property
    def places(self) -> np.ndarray:
        """The place of each row's query among the keys. Shapes: [R, 1]."""
        ends = self.problem.q_ends
        of = int(ends[self.request + 1] - ends[self.request])
        return (self.queries + self.kv_len - of)[:, None]

    def keys(self, which: str, head: int | None = None, request: int | None = None) -> np.ndarray:
        """Return K or V of the request, or of another, in float64. Shapes: [L, D]."""
        head = self.kv_head if head is None else head
        request = self.request if request is None else request

        def found() -> Array:
            whole = keys_of(self.problem, which, head, request)
            return whole[:, self.channels] if which == "v" else whole

        return self.once((which, head, request), found)

    def once(self, name: tuple[object, ...], make: Callable[..., Any]) -> Any:
        """Return a result about the request's keys; parts of a sheet compute it once per name."""
        if name not in self.shared:
            self.shared[name] = make()
        return self.shared[name]

    @functools.cached_property
    def k(self) -> np.ndarray:
        """The request's keys. Shapes: [L, D]."""
        return self.keys("k")

    @functools.cached_property
    def v(self) -> np.ndarray:
        """The request's values. Shapes: [L, Dv]."""
        return self.keys("v")

    @functools.cached_property
    def raw(self) -> np.ndarray:
        """Scores of all keys, hidden ones too. Shapes: [R, L]."""
        return self.shaped(self.q @ self.k.T)

    def shaped(self, scores: Array) -> np.ndarray:
        """Return products q k as the variant changes them. Shapes: [R, L]."""
        variant = self.problem.variant
        if variant is None:
            return scores
        return variant.shaped(scores, self.heads, self.places, np.arange(scores.shape[1]))

    def scores_of(self, q: Array, k: Array) -> np.ndarray:
        """Return the scores of other queries or keys, as the variant changes them, masked."""
        return self.masked(self.shaped(q @ k.T))

    @functools.cached_property
    def scores(self) -> np.ndarray:
        """Scores, -inf where hidden. Shapes: [R, L]."""
        return self.masked(self.raw)

    @functools.cached_property
    def weights(self) -> np.ndarray:
        """2^(s - m). Shapes: [R, L]."""
        return np.exp2(self.scores - self.scores.max(1, keepdims=True))

    def masked(self, scores: Array) -> np.ndarray:
        """Return the scores with those of hidden keys at -inf."""
        return np.where(self.hidden, -np.inf, scores)

    def attend(self, scores: Array, v: Array | None = None, *, sink: bool = True) -> np.ndarray:
        """Return softmax(scores) v; NaN for a row without keys. Shapes: [R, L] -> [R, Dv].

        sink: whether the problem's sink, where it has one, is in the denominator.
        """
        v = self.v if v is None else v
        if "attended" in self.notes:
            whole = scores.shape == self.scores.shape and v.shape == self.v.shape and sink
            self.notes["attended"] = (scores, v) if whole else None
            return self.truth
        m = scores.max(1, keepdims=True)
        with np.errstate(invalid="ignore"):
            p = np.exp2(scores - m)
            l = p.sum(1, keepdims=True) + (np.exp2(self.sink - m) if sink else 0.0)
        v = v[: p.shape[1]]
        if "squares" in self.notes:
            self.notes["squares"] = (p / l) ** 2 @ v**2
        return p @ v / l

    def attended(self, outputs: Callable[..., Any]) -> "tuple[np.ndarray, np.ndarray] | None":
        """Return scores [R, L] and values [L, Dv] of a mistake that calls attend, else None."""
        self.notes["attended"] = None
        given = outputs(self)
        found = self.notes.pop("attended")
        return None if given is None else found

    @functools.cached_property
    def weight_squares(self) -> np.ndarray:
        """Sum p^2 v^2 of the right weights, by which errors of weights grow. Shapes: [R, Dv]."""
        p = self.weights / self.weights.sum(1, keepdims=True)
        return p**2 @ self.v**2

    @functools.cached_property
    def reach(self) -> np.ndarray:
        """In how many directions the weights of keys move each row clearly. Shapes: [R].

        Where values lie in few directions, or few keys have weight, many channels give few
        equations.
        """
        p = self.weights / self.weights.sum(1, keepdims=True)
        rows = zip(p, self.truth, self.sigma, strict=True)
        return np.array([directions(w, self.v - o, s) for w, o, s in rows])

    def grown(self, outputs: Callable[..., Any]) -> np.ndarray:
        """Return the variance beyond sigma^2 if a mistake gives more weight to fewer or larger v.

        Shapes: [R, Dv]; outputs: of a mistake, which calls attend.
        """
        self.notes["squares"] = None
        outputs(self)
        squares = self.notes.pop("squares")
        if squares is None:
            return np.zeros_like(self.sigma)
        times = squares / np.maximum(self.weight_squares, 1e-300)
        return self.sigma**2 * np.clip(times - 1, 0.0, _GROWN_MOST)

    def largest(self, which: str) -> float:
        """Return the largest absolute value of K or V, of all heads and requests."""
        problem = self.problem
        parts = (
            keys_of(problem, which, head, request)[
                :, self.channels if which == "v" else slice(None)
            ]
            for request in range(problem.batch)
            for head in range(problem.kv_heads)
        )
        return max(float(np.abs(part).max(initial=0.0)) for part in parts)

    def squares(self, outputs: Array, fmt: str, noise: Array | float = 0.0) -> np.ndarray:
        """Return z^2 of the rows against other outputs, with more variance. Shapes: [R, Dv]."""
        store = rounding.quantum(outputs, fmt) ** 2 / 12
        variance = np.maximum(self.sigma**2, store) + noise
        with np.errstate(invalid="ignore", divide="ignore"):
            error = self.out - outputs
            return np.where(error == 0, 0.0, error**2 / variance)


@dataclass(frozen=True)
class Cut:
    """How keys are cut into tiles: `size` keys each, or -`size` parts as equal as can be."""

    size: int

    def starts(self, n: int) -> np.ndarray:
        """Return the first keys of the tiles of n keys."""
        if self.size > 0:
            return np.arange(0, n, self.size)
        parts = min(-self.size, n)
        return np.arange(parts) * n // parts

    @property
    def words(self) -> str:
        """Which tiles they are."""
        return f"tiles of {self.size} keys" if self.size > 0 else f"{-self.size} equal parts"


def queries_of(problem: Problem, tokens: Array, heads: Array | slice) -> np.ndarray:
    """Return rows of Q in float64, times the scale in log2 units. Shapes: [R, D]."""
    return problem.q_here[tokens, heads].astype(np.float64) * (problem.scale * LOG2_E)


def keys_of(problem: Problem, which: str, head: int, request: int) -> np.ndarray:
    """Return K or V of a head of a request, in float64. Shapes: [L, D]."""
    pool = problem.k_pool if which == "k" else problem.v_pool
    length, size = int(problem.kv_lens[request]), pool.shape[1]
    pages = problem.page_table[request][: -(-length // size)]
    found = to_numpy(pool[:, :, head][moved(pages, pool)]).astype(np.float64)
    return found.reshape(-1, pool.shape[-1])[:length]


def of_rows(
    problem: Problem,
    out: Array,
    truth: Array,
    sigma: Array,
    bad: Array,
    p_format: str,
    channels: Array | None = None,
) -> list[Sheet]:
    """Return at most four sheets of bad rows, from KV heads and requests as different as can be.

    Shapes: bad [total_q, Hq], by how much each row went wrong, 0 where it did not. channels: those
    that went wrong, where others are right.
    """
    some = slice(None) if channels is None else channels
    group = problem.group
    heads = bad.reshape(len(bad), -1, group).max(-1)
    ends = problem.q_ends
    pairs = [
        (float(part.max()), request, head)
        for request in range(problem.batch)
        if ends[request + 1] > ends[request]
        for head, part in enumerate(heads[ends[request] : ends[request + 1]].T)
        if part.max() > 0
    ]
    found = []
    for request, head in _different(sorted(pairs, reverse=True)):
        part = bad[ends[request] : ends[request + 1], head * group : (head + 1) * group]
        rows = np.argwhere(part > 0)
        most = max(2, min(_ROWS, _NUMBERS // max(1, int(problem.kv_lens[request]))))
        rows = rows[np.unique(np.linspace(0, len(rows) - 1, most).astype(int))]
        tokens, of_head = rows[:, 0] + ends[request], rows[:, 1] + head * group
        mine, right, spread = (x[tokens, of_head][:, some] for x in (out, truth, sigma))
        where = problem, request, head, tokens, of_head
        found.append(Sheet(*where, mine, right, spread, p_format, some))
    return found


def of_start(
    problem: Problem, out: Array, truth: Array, sigma: Array, bad: Array, p_format: str
) -> list[Sheet]:
    """Return sheets of a problem that ends after a few hundred keys; none where that shows less.

    A causal problem without its last tokens is a causal problem. Shapes: as those of of_rows.
    """
    if not problem.causal or problem.variant or int(problem.kv_lens.max()) < 2 * _START:
        return []
    asked = np.diff(problem.q_ends)
    kept = np.clip(_START - (problem.kv_lens - asked), 0, asked)
    tokens = np.concatenate(
        [np.arange(first, first + n) for first, n in zip(problem.q_ends, kept, strict=False)]
    )
    if len(tokens) == 0 or (bad[tokens] > 0).mean() < _AS_OFTEN * (bad > 0).mean():
        return []
    short = replace(
        problem,
        q=problem.q[moved(tokens, problem.q)],
        kv_lens=problem.kv_lens - asked + kept,
        cu_seqlens_q=np.append(0, np.cumsum(kept)),
    )
    return of_rows(short, out[tokens], truth[tokens], sigma[tokens], bad[tokens], p_format)


def _different(pairs: list[tuple[float, int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the worst pair, then pairs of other requests and heads than before, then the rest."""
    chosen: list[tuple[int, int]] = []
    while pairs and len(chosen) < _SHEETS:
        requests, heads = {r for r, _ in chosen}, {h for _, h in chosen}
        new = [(r not in requests) + (h not in heads) for _, r, h in pairs]
        i = new.index(max(new))
        chosen.append(pairs.pop(i)[1:])
    return iter(chosen)


def directions(p: Array, v: Array, sigma: Array) -> int:
    """Return in how many directions sums of p v show. Shapes: p [L], v [L, Dv], sigma [Dv]."""
    z = p[:, None] * v / np.where(sigma > 0, sigma, np.inf)
    square = z.T @ z if len(z) > z.shape[1] else z @ z.T
    if not np.isfinite(square).all():
        return z.shape[1]
    return int((np.linalg.eigvalsh(square) > _SHOWS**2).sum())


def part(sheet: Sheet, rows: slice | Array) -> Sheet:
    """Return the sheet with some of its rows."""
    arrays = ("tokens", "heads", "out", "truth", "sigma")
    return replace(sheet, notes={}, **{name: getattr(sheet, name)[rows] for name in arrays})
