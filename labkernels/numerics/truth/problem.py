"""An attention problem: which query sees which keys, checked once and read in float64 blocks.

Arrays are NumPy's, or torch's on any device: the functions of numerics that take a Problem work in
the namespace that its q belongs to, and give arrays of that namespace.
"""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labkernels.kept import computed_once
from labkernels.numerics.arrays import ZERO, Array, float64, moved, namespace, to_numpy
from labkernels.numerics.truth import checks, layouts
from labkernels.numerics.truth.softmax import Softmax
from labkernels.numerics.truth.variant import VariantTensors
from labkernels.units import LOG2_E
from labkernels.variant import AttentionVariant

# Keys and scores per block: few enough for a CPU's cache, and enough to keep a GPU busy. The scores
# of one token in all heads may be more. A problem with at most KEPT_SCORES scores keeps them.
BLOCK_KEYS = {"cpu": 256, "gpu": 1024}
BLOCK_SCORES = {"cpu": 2**17, "gpu": 2**25}
KEPT_SCORES = {"cpu": 2**26, "gpu": 2**29}


@dataclass(frozen=True, eq=False)
class Problem:
    """Queries of some requests, and where the keys of each request lie in a paged pool.

    Shapes: q [total_q, Hq, D]; pools [pages, page_size, Hkv, D or Dv]; page_table [B, max_pages];
    kv_lens [B]; cu_seqlens_q [B + 1], ends of the requests' queries; None: one query per request.
    causal: query i of n, in a request of L keys, sees the keys 0 to L - n + i. variant: the other
    changes of the scores.
    Raises: ValueError, naming the argument, where shapes disagree or a number is out of range.
    """

    q: np.ndarray
    k_pool: np.ndarray
    v_pool: np.ndarray
    page_table: np.ndarray
    kv_lens: np.ndarray
    scale: float
    cu_seqlens_q: np.ndarray | None = None
    causal: bool = False
    variant: VariantTensors | None = None

    def __post_init__(self) -> None:
        for name in ("page_table", "kv_lens", "cu_seqlens_q"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, layouts.integers(name, getattr(self, name)))
        checks.check_shapes(self)
        checks.check_numbers(self)
        if self.variant is not None:
            self.variant.check(self.q.shape[0], self.q.shape[1], int(self.kv_lens.max(initial=0)))

    @classmethod
    def packed(
        cls, q: Array, k: Array, v: Array, cu_seqlens_k: Array | list[int], **how: Any
    ) -> "Problem":
        """Return the problem of k, v [total_k, Hkv, D] whose requests end at cu_seqlens_k."""
        return cls(q, *layouts.of_packed(k, v, cu_seqlens_k), **how)

    @classmethod
    def dense(
        cls, q: Array, k: Array, v: Array, *, kv_lens: list[int] | None = None, **how: Any
    ) -> "Problem":
        """Return the problem of q [B, Hq, M, D] and k, v [B, Hkv, L, D], cut to kv_lens [B]."""
        if q.ndim != 4:
            raise ValueError(f"q.shape = {tuple(q.shape)}, allowed: [B, Hq, M, D]")
        ends = np.arange(len(q) + 1) * q.shape[2]
        pools = layouts.of_dense(k, v, kv_lens)
        return cls(layouts.tokens(q), *pools, **{"cu_seqlens_q": ends, **how})

    def in_numpy(self) -> "Problem":
        """Return the problem in NumPy, from any device; from torch, in float64."""
        if namespace(self.q) is np:
            return self
        q, k, v = (to_numpy(x).astype(np.float64) for x in (self.q, self.k_pool, self.v_pool))
        return replace(self, q=q, k_pool=k, v_pool=v)

    @property
    def batch(self) -> int:
        """Number of requests."""
        return len(self.kv_lens)

    @property
    def kv_heads(self) -> int:
        """Heads of K and V."""
        return self.k_pool.shape[2]

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.q.shape[1] // self.kv_heads

    @property
    def out_shape(self) -> tuple[int, int, int]:
        """Shape of the output, [total_q, Hq, Dv]."""
        return (*self.q.shape[:2], self.v_pool.shape[-1])

    @functools.cached_property
    def q_ends(self) -> np.ndarray:
        """Where the queries of each request begin, and the end of the last. Shapes: [B + 1]."""
        return np.arange(self.batch + 1) if self.cu_seqlens_q is None else self.cu_seqlens_q

    @functools.cached_property
    def q_here(self) -> np.ndarray:
        """The queries in NumPy, moved once; floats of 16 bits as float32. Shapes: as q."""
        return to_numpy(self.q)

    @functools.cached_property
    def request_of(self) -> np.ndarray:
        """The request of each query token. Shapes: [total_q]."""
        return np.repeat(np.arange(self.batch), np.diff(self.q_ends))

    @functools.cached_property
    def n_keys(self) -> np.ndarray:
        """How many keys each query token sees, with those a variant hides. Shapes: [total_q]."""
        request = self.request_of
        query = np.arange(len(request)) - self.q_ends[:-1][request]
        q_lens = np.diff(self.q_ends)[request]
        return AttentionVariant(self.causal).seen(query, q_lens, self.kv_lens[request])

    def row_name(self, token: int, head: int) -> str:
        """Return a row in words: its sample, its query where a sample has several, its head."""
        sample = int(self.request_of[token])
        first, last = (int(end) for end in self.q_ends[sample : sample + 2])
        query = f", query {token - first}" if last - first > 1 else ""
        return f"sample {sample}{query}, head {head}"

    def zeros(self, *shape: int) -> Array:
        """Return zeros in float64, where q lies."""
        return namespace(self.q).zeros(shape, dtype=namespace(self.q).float64, device=self.q.device)

    @property
    def machine(self) -> str:
        """Where q lies, "cpu" or "gpu"."""
        return "cpu" if str(self.q.device) == "cpu" else "gpu"

    def row_blocks(self) -> "tuple[Rows, ...]":
        """Return blocks of tokens of one request in which a row sees a key; always the same."""
        return self._row_blocks

    @functools.cached_property
    def _row_blocks(self) -> "tuple[Rows, ...]":
        found = []
        for b in range(self.batch):
            begin, end = int(self.q_ends[b]), int(self.q_ends[b + 1])
            keys = min(BLOCK_KEYS[self.machine], max(1, int(self.kv_lens[b])))
            tokens = max(1, BLOCK_SCORES[self.machine] // (self.q.shape[1] * keys))
            for first in range(begin, end, tokens):
                last = min(first + tokens, end)
                if self.n_keys[first:last].any():
                    found.append(Rows(self, b, first, last))
        return tuple(found)

    @functools.cached_property
    def keeps_scores(self) -> bool:
        """Whether scores, once computed, are kept."""
        return int(self.n_keys.sum()) * self.q.shape[1] <= KEPT_SCORES[self.machine]


@dataclass(frozen=True, eq=False)
class Rows:
    """Query tokens first to last of one request, their heads side by side: R = tokens * group.

    Row r of a KV head is token first + r // group and the head's query head r % group.
    """

    problem: Problem
    request: int
    first: int
    last: int

    @computed_once
    def q_log2(self) -> Array:
        """Queries that give scores in log2 units. Shapes: [Hkv, R, D], float64."""
        q = float64(self.problem.q[self.first : self.last])
        return self.take(q) * (self.problem.scale * LOG2_E)

    @computed_once
    def n_keys(self) -> Array:
        """How many keys each row sees. Shapes: [R], float64."""
        counts = np.repeat(self.problem.n_keys[self.first : self.last], self.problem.group)
        return moved(counts.astype(np.float64), self.problem.q)

    def take(self, tokens: Array) -> Array:
        """Return values [tokens, Hq, ...] as rows [Hkv, R, ...]."""
        p = self.problem
        grouped = tokens.reshape(len(tokens), p.kv_heads, p.group, *tokens.shape[2:])
        return namespace(tokens).swapaxes(grouped, 0, 1).reshape(p.kv_heads, -1, *tokens.shape[2:])

    def put(self, target: Array, rows: Array) -> None:
        """Write rows [Hkv, R, ...] into their place in target [total_q, Hq, ...]."""
        p = self.problem
        grouped = rows.reshape(p.kv_heads, -1, p.group, *rows.shape[2:])
        tokens = namespace(rows).swapaxes(grouped, 0, 1)
        target[self.first : self.last] = tokens.reshape(target[self.first : self.last].shape)

    def blocks(self) -> "Iterator[Block]":
        """Yield blocks of the keys that any of the rows sees, in order."""
        keys = int(self.problem.n_keys[self.first : self.last].max(initial=0))
        for begin in range(0, keys, self.step):
            yield Block(self, begin, min(begin + self.step, keys))

    @property
    def step(self) -> int:
        """Keys per block, in whole pages."""
        size = self.problem.k_pool.shape[1]
        return max(1, BLOCK_KEYS[self.problem.machine] // size) * size

    @computed_once
    def softmax(self) -> Softmax:
        """The results of two passes over the keys: the largest scores first, then the sums."""
        return Softmax(self._peaks[0], self._sums[0], *self._peaks[1:])

    @computed_once
    def _peaks(self) -> tuple[Array, Array, Array]:
        """The largest score or sink, the largest |s|, and the key of the largest score."""
        xp = namespace(self.problem.q)
        largest, top = (self.problem.zeros(*self.q_log2.shape[:2]) for _ in range(2))
        m = largest - math.inf
        for block in self.blocks():
            score = block.score_log2
            seen = score if block.hidden is None else xp.where(block.hidden, 0.0, score)
            highest = xp.amax(score, -1)
            top = xp.where(highest > m, xp.argmax(score, -1) + float(block.first), top)
            m = xp.maximum(m, highest)
            largest = xp.maximum(largest, xp.maximum(xp.amax(seen, -1), -xp.amin(seen, -1)))
        m = xp.where(m == -math.inf, 0.0, m)
        return m if self.sinks is None else xp.maximum(m, self.sinks), largest, top

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
        return np.arange(self.problem.kv_heads)[:, None] * group + of_row

    @computed_once
    def places(self) -> Array:
        """The place of each row's query among the keys. Shapes: [R, 1], float64."""
        p, tokens = self.problem, np.arange(self.first, self.last)
        place = tokens + int(p.kv_lens[self.request]) - int(p.q_ends[self.request + 1])
        return moved(np.repeat(place, p.group).astype(np.float64)[:, None], p.q)

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
    def kept(self) -> dict[tuple[int, int], Array]:
        """The kept scores of blocks, by the block's first key and last."""
        return {}

    @computed_once
    def kept_weights(self) -> dict[tuple[int, int], Array]:
        """The kept weights of blocks in fp32, where exp2 takes longer than a look into memory."""
        return {}

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

    @computed_once
    def k(self) -> Array:
        """Keys in float64. Shapes: [Hkv, n, D]."""
        return self.gathered(self.rows.problem.k_pool)

    @computed_once
    def v(self) -> Array:
        """Values in float64. Shapes: [Hkv, n, Dv]."""
        return self.gathered(self.rows.problem.v_pool)

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
        return variant.shaped(score, rows.heads, rows.places, keys)

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
        if self.rows.problem.keeps_scores:
            self.rows.kept[self.keys] = score
        return score

    def gathered(self, pool: Array, dtype: Any = None) -> Array:
        """Return the block's keys in a pool, in float64 or another dtype. Shapes: [Hkv, n, D]."""
        size = pool.shape[1]
        pages = self.rows.problem.page_table[self.rows.request]
        pages = pages[self.first // size : -(-self.last // size)]
        if (np.diff(pages) == 1).all():  # adjacent pages need no copy
            taken = pool[int(pages[0]) : int(pages[-1]) + 1]
        else:
            taken = pool[moved(pages, pool)]
        keys = taken.reshape(-1, *pool.shape[2:])[: self.last - self.first]
        xp = namespace(pool)
        return xp.swapaxes(xp.asarray(keys, dtype=dtype or xp.float64), 0, 1)


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
