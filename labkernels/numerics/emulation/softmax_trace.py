"""The sums of a kernel's chains after each step, in float64; roundings scale with these sums."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.emulation.summation_order import MMA_KEYS, SummationOrder
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.truth.rows import Rows

_BLOCK_ELEMENTS = 2**20  # elements of a plane [C, mmas, R, Dv], one slice per mma: 8 MiB


@dataclass(frozen=True, eq=False)
class Place:
    """Where some rows of a KV head lie in an output of [total_q, Hq, Dv]."""

    rows: Rows
    head: int
    some: slice

    def put(self, target: np.ndarray, values: np.ndarray) -> None:
        """Write values [R, Dv] into the target."""
        view = self.rows.of(target)
        view[self.head, self.some] = values
        self.rows.put(target, view)


@dataclass(frozen=True, eq=False)
class SoftmaxTrace:
    """Some rows of one KV head, their keys laid out as a summation order takes them.

    There are C chains (splits times warps) of T steps of K keys. A place without a key has
    score -inf and v = 0. `index` is the place of each key among the C * T * K.
    Shapes: q [R, D]; k [n, D]; score_log2 [C, T, R, K]; v [C, T, K, Dv]; index [n].
    Units: m and scores in log2 units; p and sums of p v in those of the step, 1 at its maximum;
    `weight` turns these into units of the output.
    """

    order: SummationOrder
    q: np.ndarray
    k: np.ndarray
    score_log2: np.ndarray
    v: np.ndarray
    index: np.ndarray

    @cached_property
    def m(self) -> np.ndarray:
        """The running maximum of each step. Shapes: [C, T, R]."""
        return np.maximum.accumulate(self.score_log2.max(axis=-1), axis=1)

    @cached_property
    def largest(self) -> np.ndarray:
        """The maximum of each row. Shapes: [R]."""
        return self.m[:, -1].max(axis=0)

    @cached_property
    def p(self) -> np.ndarray:
        """P as its chain sees it. Shapes: [C, T, R, K]."""
        return np.exp2(self.score_log2 - shift(self.m)[..., None])

    @cached_property
    def weight(self) -> np.ndarray:
        """2^(m - largest) / l. Shapes: [C, T, R]."""
        l = np.exp2(self.score_log2 - self.largest[:, None]).sum(axis=(0, 1, 3))
        return np.exp2(self.m - self.largest) / l

    @cached_property
    def rescale(self) -> np.ndarray:
        """2^(m_old - m_new) of each step, 1 at the first key of a chain. Shapes: [C, T, R]."""
        before = self.before(self.m, -np.inf)
        return np.exp2(np.where(before == -np.inf, 0.0, before - shift(self.m)))

    @cached_property
    def softmax(self) -> np.ndarray:
        """The probabilities, that sum to 1. Shapes: [C, T, R, K]."""
        return self.p * self.weight[..., None]

    @cached_property
    def part_o(self) -> np.ndarray:
        """What each step adds to the output. Shapes: [C, T, R, Dv]."""
        return self.softmax @ self.v

    @cached_property
    def o(self) -> np.ndarray:
        """The output. Shapes: [R, Dv]."""
        return self.part_o.sum(axis=(0, 1))

    def before(self, after: np.ndarray, start: float = 0.0) -> np.ndarray:
        """Return the sums before each step, or mma, given the sums after it.

        Shapes: [C, mmas, ...].
        """
        return np.concatenate([np.full_like(after[:, :1], start), after[:, :-1]], axis=1)

    def held(self, added: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Return running sums of what each step or mma adds, all in the step's own units.

        Shapes: added [C, mmas, ...]; weight like it or broadcastable
        """
        total = np.cumsum(added * weight, axis=1)
        # where a weight is 0, all keys so far are negligible beside the row's largest score
        return np.where(weight > 0, total / np.where(weight > 0, weight, 1.0), added)

    def sum_keys(self, weights: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return the sum over keys of weights [C, T, R, K] times values [C, T, K, Dv]: [R, Dv]."""
        rows = np.moveaxis(weights, 2, 0).reshape(weights.shape[2], -1)
        return rows @ values.reshape(-1, values.shape[-1])

    def sum_about(self, weights: np.ndarray, about: Array) -> np.ndarray:
        """Return the sum over keys of weights times (v - about). Shapes: about, result [R, Dv]."""
        total = weights.sum(axis=(0, 1, 3))[:, None]
        return self.sum_keys(weights, self.v) - about * total

    def squares_about(self, weights: np.ndarray, about: Array) -> np.ndarray:
        """Return the sum over keys of weights times (v - about)^2. Shapes: as sum_about."""
        total = weights.sum(axis=(0, 1, 3))[:, None]
        cross = self.sum_keys(weights, self.v)
        squares = self.sum_keys(weights, self.v**2) - 2 * about * cross + about**2 * total
        return np.maximum(squares, 0.0)

    def laid_out(self, per_key: np.ndarray) -> np.ndarray:
        """Return values [R, n] of the keys as [C, T, R, K]; places without a key hold 0."""
        chains, steps, rows, keys = self.score_log2.shape
        laid = np.zeros((rows, chains * steps * keys))
        laid[:, self.index] = per_key
        return np.moveaxis(laid.reshape(rows, chains, steps, keys), 0, 2)


def shift(m: np.ndarray) -> np.ndarray:
    """Return the shift of the scores: their maximum, or 0 before the first key."""
    return np.where(m == -np.inf, 0.0, m)


def blocks(problem: Problem, order: SummationOrder) -> Iterator[tuple[Place, SoftmaxTrace]]:
    """Yield the chains of every row that sees a key, a few rows of one KV head at a time."""
    for rows in problem.row_blocks():
        n_keys = int(rows.n_keys.max())
        parts = list(rows.blocks())
        k, v = (np.concatenate([getattr(part, x) for part in parts], axis=1) for x in "kv")
        q = np.asarray(rows.of(problem.q), np.float64)
        hidden = np.arange(n_keys) >= rows.n_keys[:, None]
        steps = order.steps(n_keys)
        index = np.argsort(steps, axis=None, kind="stable")[steps.size - n_keys :]
        size = max(1, _BLOCK_ELEMENTS * MMA_KEYS // (steps.size * v.shape[-1]))
        for head in range(len(k)):
            laid_v = np.where(steps[..., None] < 0, 0.0, v[head][steps])
            for first in range(0, q.shape[1], size):
                some = slice(first, first + size)
                score = np.where(hidden[some], -np.inf, rows.q_log2[head, some] @ k[head].T)
                laid = np.where(steps < 0, -np.inf, score[:, steps])
                yield (
                    Place(rows, head, some),
                    SoftmaxTrace(
                        order, q[head, some], k[head], np.moveaxis(laid, 0, 2), laid_v, index
                    ),
                )
