"""Blocks of a problem's rows against blocks of keys, read in float64: scores, weights, values."""

import math
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from labkernels.kept import computed_once
from labkernels.numerics.arrays import ZERO, Array, converted, float64, moved, namespace
from labkernels.numerics.truth.softmax import Softmax
from labkernels.units import LOG2_E

if TYPE_CHECKING:
    from labkernels.numerics.truth.problem import Problem


@dataclass(frozen=True, eq=False)
class Rows:
    """Query tokens first to last of one request, in some KV heads: Hkv of them in shapes here.

    The query heads of a KV head lie side by side: R = tokens * group. Row r of a KV head is token
    first + r // group and the head's query head r % group.
    """

    problem: "Problem"
    request: int
    first: int
    last: int
    kv_first: int
    kv_last: int
    step: int  # keys per block

    @property
    def place(self) -> tuple[slice, slice]:
        """The tokens and query heads of the rows in arrays [total_q, Hq, ...]."""
        group = self.problem.group
        heads = slice(self.kv_first * group, self.kv_last * group)
        return slice(self.first, self.last), heads

    @computed_once
    def q_log2(self) -> Array:
        """Queries that give scores in log2 units. Shapes: [Hkv, R, D], float64."""
        return float64(self.of(self.problem.q)) * (self.problem.scale * LOG2_E)

    @computed_once
    def n_keys(self) -> Array:
        """How many keys each row sees. Shapes: [R], float64."""
        counts = np.repeat(self.problem.n_keys[self.first : self.last], self.problem.group)
        return moved(counts.astype(np.float64), self.problem.q)

    def of(self, values: Array) -> Array:
        """Return the rows [Hkv, R, ...] of values [total_q, Hq, ...]."""
        tokens, group = values[self.place], self.problem.group
        grouped = tokens.reshape(len(tokens), -1, group, *tokens.shape[2:])
        heads = grouped.shape[1]
        return namespace(values).swapaxes(grouped, 0, 1).reshape(heads, -1, *tokens.shape[2:])

    def put(self, target: Array, rows: Array) -> None:
        """Write rows [Hkv, R, ...] into their place in target [total_q, Hq, ...]."""
        target[self.place] = self.by_token(rows)

    def by_token(self, rows: Array) -> Array:
        """Return rows [Hkv, R, ...] as [tokens, query heads, ...]."""
        heads, _, *rest = rows.shape
        grouped = rows.reshape(heads, -1, self.problem.group, *rest)
        tokens = namespace(rows).swapaxes(grouped, 0, 1)
        return tokens.reshape(len(tokens), -1, *rest)

    def blocks(self) -> "Iterator[Block]":
        """Yield blocks of the keys that any of the rows sees, in order."""
        for begin in range(0, self.keys, self.step):
            yield Block(self, begin, min(begin + self.step, self.keys))

    @computed_once
    def softmax(self) -> Softmax:
        """The results of two passes over the keys: the largest scores first, then the sums."""
        return Softmax(self._peaks[0], self._sums[0], *self._peaks[1:])

    @computed_once
    def _peaks(self) -> tuple[Array, Array, Array]:
        """The largest score or sink, the largest size of both, and the key of the largest score."""
        xp = namespace(self.problem.q)
        largest, top = (self.problem.zeros(*self.q_log2.shape[:2]) for _ in range(2))
        m = largest - math.inf
        heads, places = (xp.arange(n, device=m.device) for n in m.shape)
        for block in self.blocks():
            score = block.score_log2
            unseen = block.hidden if block.unbiased else score == -math.inf
            seen = score if unseen is None else xp.where(unseen, 0.0, score)
            at = xp.argmax(score, -1)
            highest = score[heads[:, None], places, at]
            top = xp.where(highest > m, at + float(block.first), top)
            m = xp.maximum(m, highest)
            largest = xp.maximum(largest, xp.maximum(highest, -xp.amin(seen, -1)))
        m = xp.where(m == -math.inf, 0.0, m)
        if self.sinks is not None:  # -inf is the sink of a head without one
            sizes = xp.where(xp.isfinite(self.sinks), abs(self.sinks), 0.0)
            m, largest = xp.maximum(m, self.sinks), xp.maximum(largest, sizes)
        return m, largest, top

    @computed_once
    def _sums(self) -> tuple[Array, Array]:
        """The sums of the weights 2^(s - m), with the sink's, and of weights times values."""
        l, total = self.problem.zeros(*self.q_log2.shape[:2]), ZERO
        for block, _, weights in self.weighted_blocks():
            l = l + weights.sum(-1)
            total = total + weighted_sum(weights, block.v)
        return l if self.sinks is None else l + self.sink_weight[..., 0], total

    @computed_once
    def heads(self) -> np.ndarray:
        """The query head of each row. Shapes: [Hkv, R]."""
        group = self.problem.group
        of_row = np.arange((self.last - self.first) * group) % group
        return np.arange(self.kv_first, self.kv_last)[:, None] * group + of_row

    @computed_once
    def tokens(self) -> np.ndarray:
        """The token of each row. Shapes: [R]."""
        return np.repeat(np.arange(self.first, self.last), self.problem.group)

    @computed_once
    def places(self) -> Array:
        """The place of each row's query among the keys. Shapes: [R, 1], float64."""
        p = self.problem
        places = np.repeat(p.places_here[self.first : self.last], p.group)
        return moved(places.astype(np.float64)[:, None], p.q)

    @computed_once
    def sinks(self) -> Array | None:
        """The sink of each row, in log2 units; None if there is none. Shapes: [Hkv, R]."""
        variant = self.problem.variant
        if variant is None or variant.sinks is None:
            return None
        return moved(np.asarray(variant.sinks, np.float64)[self.heads] * LOG2_E, self.problem.q)

    @computed_once
    def sink_weight(self) -> Array | float:
        """2^(sink - m), the sink's part of l; 0 without a sink. Shapes: [Hkv, R, 1]."""
        if self.sinks is None:
            return 0.0
        return namespace(self.sinks).exp2(self.sinks - self._peaks[0])[..., None]

    @computed_once
    def o(self) -> Array:
        """The output. Shapes: [Hkv, R, Dv]."""
        return self._sums[1] / self.softmax.divisor

    @computed_once
    def keys(self) -> int:
        """How many keys, from the first on, any of the rows sees."""
        return int(self.problem.n_keys[self.first : self.last].max(initial=0))

    @computed_once
    def kept(self) -> dict[tuple[int, int], Array]:
        """The kept scores of blocks, by the block's first key and last."""
        return {}

    @computed_once
    def kept_weights(self) -> dict[tuple[int, int], Array]:
        """The kept weights of blocks in fp32, where exp2 takes longer than a look into memory."""
        return {}

    @computed_once
    def shares_keys(self) -> bool:
        """Whether other rows of the request take what a CPU made of its keys in these heads."""
        begin, end = self.problem.q_ends[self.request : self.request + 2]
        return self.problem.machine == "cpu" and self.last - self.first < end - begin

    @property
    def keeps_scores(self) -> bool:
        """Whether scores are kept, for good or while `holding`."""
        return self.problem.keeps_scores or self.__dict__.get("holds", False)

    @property
    def keeps_keys(self) -> bool:
        """Whether keys and values are kept, while `holding`."""
        return self.__dict__.get("holds", False)

    @computed_once
    def held(self) -> dict[Hashable, Array]:
        """Keys and values that are kept meanwhile, by their name and place."""
        return {}

    @contextmanager
    def holding(self, most: int) -> Iterator[None]:
        """Keep scores and keys meanwhile, if they are at most so many numbers, for all passes."""
        rows = (self.last - self.first) * self.problem.group
        numbers = (self.kv_last - self.kv_first) * self.keys * max(rows, self.q_log2.shape[-1])
        self.__dict__["holds"] = numbers <= most
        try:
            yield
        finally:
            self.__dict__["holds"] = False
            self.held.clear()
            if not self.problem.keeps_scores:
                self.kept.clear()
                self.kept_weights.clear()

    def weighted_blocks(self, *, narrow: bool = False) -> Iterator[tuple[Any, ...]]:
        """Yield (block, scores in log2 units, weights 2^(s - m)) of each block of keys.

        narrow: the weights in fp32.
        """
        m, xp = self._peaks[0][..., None], namespace(self.problem.q)
        for block in self.blocks():
            score, weights = block.score_log2, self.kept_weights.get(block.keys)
            if weights is None or not narrow:
                with np.errstate(invalid="ignore"):
                    below = score - m
                below = xp.asarray(below, dtype=xp.float32) if narrow else below
                weights = xp.exp2(below, out=below)
                if block.keys in self.kept and self.problem.machine == "cpu":
                    self.kept_weights[block.keys] = xp.asarray(weights, dtype=xp.float32)
            yield block, score, weights


@dataclass(frozen=True, eq=False)
class Block:
    """Keys first to last of a request, against some of its rows. Shapes: n = last - first."""

    rows: Rows
    first: int
    last: int

    @property
    def keys(self) -> tuple[int, int]:
        """The first key, and the end."""
        return self.first, self.last

    @property
    def k(self) -> Array:
        """Keys in float64. Shapes: [Hkv, n, D]."""
        return self._shared("k", lambda: float64(self.stored("k")))

    @property
    def v(self) -> Array:
        """Values in float64. Shapes: [Hkv, n, Dv]."""
        return self._shared("v", lambda: float64(self.stored("v")))

    def sizes(self, *, narrow: bool) -> tuple[Array, Array]:
        """Return |k| and |v|, in fp32 if narrow. Shapes: [Hkv, n, D], [Hkv, n, Dv]."""
        xp = namespace(self.rows.problem.q)
        dtype = xp.float32 if narrow else xp.float64

        def made() -> tuple[Array, ...]:
            return tuple(abs(xp.asarray(self.stored(name), dtype=dtype)) for name in "kv")

        return self._shared(f"sizes, {narrow}", made)

    @property
    def longest(self) -> Array:
        """The length of the longest key. Shapes: [Hkv, 1, 1]."""
        return self._shared("longest", lambda: _longest(self.stored("k")))

    def stored(self, name: str) -> Array:
        """Return K or V, by its name, in float64, or fp32 if it has 16 bits. Shapes: [Hkv, n, D].

        These formats hold all values. To convert 16 bits takes long, so that it is done once.
        """
        pool = getattr(self.rows.problem, f"{name}_pool")
        return self._shared(f"stored {name}", lambda: self._gathered(pool))

    def _shared(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what is made of the block's keys, which other rows or passes need, too."""
        rows, key = self.rows, (name, self.rows.request, self.rows.kv_first, *self.keys)
        kept = rows.problem.of_keys if rows.shares_keys else rows.held
        found = kept.get(key)  # another thread may drop it at any time
        if found is None:
            found = make()
            if rows.shares_keys or (rows.keeps_keys and name.startswith("stored")):
                kept[key] = found
        return found

    @computed_once
    def hidden(self) -> Array | None:
        """True where a row does not see a key; None if all rows see all keys. Shapes: [R, n]."""
        rows, problem, xp = self.rows, self.rows.problem, namespace(self.rows.problem.q)
        found = None
        if problem.variant is not None:
            tokens, keys = slice(rows.first, rows.last), slice(self.first, self.last)
            found = problem.variant.hides(tokens, problem.group, rows.places, keys, problem.q)
        if self.last <= problem.n_keys[rows.first : rows.last].min():
            return found
        keys = xp.arange(self.first, self.last, device=problem.q.device)
        behind = keys >= rows.n_keys[:, None]
        return behind if found is None else found | behind

    def shaped(self, score: Array) -> Array:
        """Return products q k in log2 units as the variant changes them. Shapes: [Hkv, R, n]."""
        variant, rows = self.rows.problem.variant, self.rows
        if variant is None:
            return score
        keys = namespace(score).arange(self.first, self.last, device=score.device)
        score = variant.shaped(score, rows.heads, rows.places, keys)
        return variant.biased(score, rows.tokens, rows.heads, slice(self.first, self.last))

    @computed_once
    def steepness(self) -> Array | float:
        """The derivative of the cap at each score; 1 without a cap. Shapes: [Hkv, R, n]."""
        variant = self.rows.problem.variant
        if variant is None or variant.soft_cap is None:
            return 1.0
        with np.errstate(invalid="ignore"):
            return variant.steepness(self.rows.q_log2 @ namespace(self.k).swapaxes(self.k, 1, 2))

    @property
    def unbiased(self) -> bool:
        """Whether no bias is added, which might hide keys as well."""
        variant = self.rows.problem.variant
        return variant is None or variant.bias is None

    @property
    def score_log2(self) -> Array:
        """Scores in log2 units, -inf where a row does not see a key. Shapes: [Hkv, R, n]."""
        if self.keys in self.rows.kept:
            return self.rows.kept[self.keys]
        xp = namespace(self.k)
        with np.errstate(invalid="ignore"):
            score = self.shaped(self.rows.q_log2 @ xp.swapaxes(self.k, 1, 2))
        if self.hidden is not None:
            score = xp.where(self.hidden, -math.inf, score)
        if self.rows.keeps_scores:
            self.rows.kept[self.keys] = score
        return score

    def _gathered(self, pool: Array) -> Array:
        size = pool.shape[1]
        pages = self.rows.problem.page_table[self.rows.request]
        pages = pages[self.first // size : -(-self.last // size)]
        if (np.diff(pages) == 1).all():  # adjacent pages need no copy
            taken = pool[int(pages[0]) : int(pages[-1]) + 1]
        else:
            taken = pool[moved(pages, pool)]
        keys = taken.reshape(-1, *pool.shape[2:])[: self.last - self.first]
        rows = self.rows
        keys = namespace(pool).swapaxes(keys[:, rows.kv_first : rows.kv_last], 0, 1)
        return converted(keys, rows.problem.q, narrow=pool.itemsize == 2)


def _longest(k: Array) -> Array:
    xp = namespace(k)
    return xp.sqrt(xp.amax((k * k).sum(-1), -1))[:, None, None]


def weighted_sum(weights: Array, values: Array) -> Array:
    """Return the sum over keys of weights times values, where 0 times NaN or inf is 0.

    Shapes: weights [..., R, n], values [..., n, Dv] -> [..., R, Dv].
    """
    xp = namespace(weights)
    with np.errstate(invalid="ignore"):
        total = weights @ values
        if not xp.isnan(total).any():
            return total
        wild = ~xp.isfinite(values)
        seen = float64(weights != 0) @ float64(wild) > 0
        return xp.where(seen, total, weights @ xp.where(wild, 0.0, values))
