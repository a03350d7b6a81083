"""Names for a bug: the outputs of known mistakes, compared with a wrong row.

A row is one query token and head. Each mistake is made in float64. The mistake is named if the
output differs from this float64 result by little more than rounding, and by far less than from the
right one.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np

from labkernels.numerics import rounding
from labkernels.numerics.arrays import Array, moved, to_numpy
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict.diagnosis import Mistakes, addresses, softmax, sums
from labkernels.policy import NumericPolicy
from labkernels.units import LOG2_E

EXPLAINED_RMS = 2.5  # largest rms of z that may be left: of rounding and neglected terms
SMALLER_BY = 2.0
PRECISION = ("o accumulated in", "partial outputs merged in")
# A mistake of rounding is followed key by key. Where one rounding goes the other way, as it may
# after an exp2 in float64, a channel no longer fits. This share of channels, the best, decides.
FOLLOWED = 0.75
_ALIKE = 0.1  # a smaller difference of two rms does not tell two mistakes apart


@dataclass(frozen=True)
class Match:
    """A mistake and its place; `rms` of z is left with the mistake, `was` the rms without it.

    precision: the mistake only rounds more than the formats need. vague: a fitted number, whose
    cause may be a mistake with a name. like_scale: a scale of the scores, or what a scale does: a
    little off, it adds the mean of V; far too large, it leaves one key. for_each: many numbers, one
    for each head, sample or query. settled: vague, but one number of all rows that leaves no more
    than rounding.
    """

    name: str
    where: str
    rms: float
    was: float
    precision: bool = False
    vague: bool = False
    like_scale: bool = False
    for_each: bool = False
    settled: bool = False

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        left = f": rms z {self.was:.3g} before, {self.rms:.2g} after" if self.rms >= 0 else ""
        return f"{self.name}{place}{left}"


@dataclass(frozen=True, eq=False)
class Row:
    """A wrong row, and everything from which it could have been computed.

    Shapes: place [token, head]; out, sigma [Dv]; outputs: the float64 outputs of all rows
    [total_q, Hq, Dv].
    """

    problem: Problem
    policy: NumericPolicy
    place: tuple[int, int]
    out: np.ndarray
    sigma: np.ndarray
    outputs: np.ndarray

    @property
    def request(self) -> int:
        """The row's request."""
        return int(self.problem.request_of[self.place[0]])

    @property
    def n_keys(self) -> int:
        """How many keys the row sees."""
        return int(self.problem.n_keys[self.place[0]])

    @property
    def kv_len(self) -> int:
        """How many keys its request has."""
        return int(self.problem.kv_lens[self.request])

    @property
    def query(self) -> int:
        """The row's place among the queries of its request."""
        return self.place[0] - int(self.problem.q_ends[self.request])

    @property
    def kv_head(self) -> int:
        """The KV head of the row's head."""
        return self.place[1] // self.problem.group

    @functools.cached_property
    def pages(self) -> np.ndarray:
        """The pages of the row's request, in order."""
        count = -(-self.kv_len // self.problem.k_pool.shape[1])
        return self.problem.page_table[self.request, :count]

    def keys(
        self, k_head: int, v_head: int, pages: Array | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return scores in log2 units [n] for K of one KV head, and V [n, Dv] of another.

        n counts all keys on the pages, by default those of the request: seen, hidden, and past the
        end.
        """
        pages = self.pages if pages is None else pages
        pools = ((self.problem.k_pool, k_head), (self.problem.v_pool, v_head))
        k, v = (
            to_numpy(pool[moved(pages, pool)][:, :, head])
            .astype(np.float64)
            .reshape(-1, pool.shape[-1])
            for pool, head in pools
        )
        q = to_numpy(self.problem.q[self.place[0], self.place[1]]).astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            return k @ (q * (self.problem.scale * LOG2_E)), v


def explain(row: Row) -> list[Match]:
    """Return the mistakes that explain the row's error, the best first; at most three.

    Of two that are equally good, the one that is tried first comes first.
    """
    found = _explaining(row, _alternatives(row)) or _explaining(row, _roundings(row), FOLLOWED)
    best = min((match.rms for match in found), default=0.0)
    return sorted(found, key=lambda match: max(match.rms, best + _ALIKE))[:3]


def _explaining(row: Row, mistakes: Mistakes, share: float = 1.0) -> list[Match]:
    """Return those mistakes that explain the row's error, in a share of its channels."""
    was, found = _left(row, row.outputs[row.place], share), []
    for name, where, outputs in mistakes:
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            left = np.atleast_1d(_left(row, outputs, share))
        left = np.where(np.isfinite(left), left, np.inf)
        if left.size == 0:
            continue
        i = int(left.argmin())
        if left[i] <= EXPLAINED_RMS * share and left[i] * SMALLER_BY <= was:
            called = name(i) if callable(name) else name
            precise = called.startswith(PRECISION)
            found.append(Match(called, where(i), float(left[i]), float(was), precise))
    return found


def _left(row: Row, outputs: Array, share: float) -> Array:
    """Return the rms of z against other outputs, in the share of the channels that fit best.

    Shapes: [..., Dv] -> [...].
    """
    store = rounding.quantum(outputs, row.policy.out) ** 2 / 12
    squares = np.sort((row.out - outputs) ** 2 / np.maximum(row.sigma**2, store))
    return np.sqrt(squares[..., : math.ceil(share * squares.shape[-1])].mean(-1))


def _roundings(row: Row) -> Mistakes:
    """Yield mistakes as _alternatives does, those that make roundings of their own."""
    scores, v = (x[: row.n_keys] for x in row.keys(row.kv_head, row.kv_head))
    yield from softmax.accumulators(scores, v, row.policy.p)


def _alternatives(row: Row) -> Mistakes:
    """Yield (name, where(i), outputs [..., Dv]) of every mistake known; a name may depend on i."""
    heads = row.outputs.shape[1]
    others = row.outputs.reshape(-1, row.outputs.shape[-1]).copy()
    others[row.place[0] * heads + row.place[1]] = np.nan
    yield "another row's output", lambda i: f"of {row.problem.row_name(*divmod(i, heads))}", others
    yield "row never written", lambda i: "it is 0", np.zeros((1, others.shape[-1]))
    scores, v = (x[: row.n_keys] for x in row.keys(row.kv_head, row.kv_head))
    yield from sums.keys(scores, v)
    yield from sums.weights(scores, v, row.problem.q.shape[-1])
    yield from softmax.rescales(scores, v)
    yield from sums.merges(scores, v)
    yield from addresses.heads(row)
    yield from addresses.ends(row)
    yield from addresses.halves(row)
    yield from addresses.lanes(row)
    yield from addresses.overflows(row)
    yield from addresses.cleared(row)
    if row.problem.k_pool.shape[1] > 1:
        yield from addresses.pages(row)
