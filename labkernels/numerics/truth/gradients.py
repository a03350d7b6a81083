"""The gradients of attention in float64."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from labkernels.numerics.arrays import Array, float64, moved, namespace
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.truth.rows import Block, Rows, weighted_sum
from labkernels.units import LOG2_E

NAMES = ("dq", "dk", "dv")


@dataclass(frozen=True, eq=False)
class Given:
    """What a backward pass is given, checked: dout, out [total_q, Hq, Dv], lse2 [total_q, Hq]."""

    problem: Problem
    dout: np.ndarray
    out: np.ndarray
    lse2: np.ndarray

    def __post_init__(self) -> None:
        for name in ("dout", "out"):
            found, allowed = tuple(getattr(self, name).shape), tuple(self.problem.out_shape)
            if found != allowed:
                raise ValueError(f"{name}.shape = {found}, allowed: {allowed}")
        if tuple(self.lse2.shape) != tuple(self.problem.out_shape[:2]):
            allowed = tuple(self.problem.out_shape[:2])
            raise ValueError(f"lse2.shape = {tuple(self.lse2.shape)}, allowed: {allowed}")

    @property
    def sinks(self) -> Array | None:
        """The sinks, where lse2 lies; None if there are none. Shapes: [Hq]."""
        variant = self.problem.variant
        if variant is None or variant.sinks is None:
            return None
        return moved(np.asarray(variant.sinks, np.float64), self.lse2)


def names_of(problem: Problem) -> tuple[str, ...]:
    """Return the names of a problem's gradients, in order."""
    variant = problem.variant
    return NAMES if variant is None or variant.sinks is None else (*NAMES, "dsinks")


def gradients(given: Given) -> tuple[np.ndarray, ...]:
    """Return the gradients dq, dk and dv in float64, and with sinks dsinks.

    Shapes: dq [total_q, Hq, D], dk [sum kv_lens, Hkv, D], dv [sum kv_lens, Hkv, Dv], dsinks [Hq];
    requests follow each other in order.
    Error: float64 rounding. A query without keys and a key that no query sees give 0.
    """
    total = Totals(given.problem)
    for rows in given.problem.row_blocks():
        for part in parts(given, rows):
            total.add(part, part.dout, part.p, part.ds, abs_values=False)
    found, sinks = total.scaled(), given.sinks
    if sinks is None:
        return found
    return (*found, sink_gradient(sinks, given.dout, given.out, given.lse2))


def sink_gradient(sinks: Array, dout: Array, out: Array, lse2: Array) -> Array:
    """Return -P delta of each sink, summed over all rows: a sink is a key with a value of 0.

    Shapes: sinks [Hq], natural, dout, out [total_q, Hq, Dv], lse2 [total_q, Hq] -> [Hq].
    """
    return -(sink_weights(sinks, lse2) * (float64(dout) * float64(out)).sum(-1)).sum(0)


def sink_weights(sinks: Array, lse2: Array) -> Array:
    """Return P of each row's sink. Shapes: as lse2."""
    lse2, xp = float64(lse2), namespace(lse2)
    seen = lse2 > -np.inf
    return xp.where(seen, xp.exp2(LOG2_E * float64(sinks) - xp.where(seen, lse2, 0.0)), 0.0)


@dataclass(frozen=True, eq=False)
class Part:
    """Rows of a request against a block of keys. Shapes: [Hkv, R, n], dout [Hkv, R, Dv]."""

    rows: Rows
    block: Block
    dout: np.ndarray
    out: np.ndarray
    lse2: np.ndarray
    score: np.ndarray
    p: np.ndarray
    slope: np.ndarray  # dP - delta
    steepness: np.ndarray | float  # of the cap
    ds: np.ndarray

    def visible(self, values: Array) -> Array:
        """Return the values, 0 where a row does not see a key."""
        hidden = self.block.hidden
        return values if hidden is None else namespace(values).where(hidden, 0.0, values)


def parts(given: Given, rows: Rows) -> Iterator[Part]:
    """Yield P and dS of the rows, a block of keys at a time."""
    xp = namespace(rows.q_log2)
    dout, out, lse2 = (float64(rows.of(x)) for x in (given.dout, given.out, given.lse2))
    delta = (dout * out).sum(-1)[..., None]
    for block in rows.blocks():
        score = block.score_log2
        if block.hidden is not None:
            score = xp.where(block.hidden, 0.0, score)
        with np.errstate(over="ignore"):
            p = xp.exp2(score - lse2[..., None])
        if block.hidden is not None:
            p = xp.where(block.hidden, 0.0, p)
        slope = dout @ xp.swapaxes(block.v, 1, 2) - delta
        ds = p * slope * block.steepness
        yield Part(rows, block, dout, out, lse2, score, p, slope, block.steepness, ds)


class Totals:
    """The sums dS K over keys, and dS^T Q and P^T dO over rows."""

    def __init__(self, problem: Problem) -> None:
        keys = int(problem.kv_lens.sum())
        self.problem, self.starts = problem, np.cumsum(problem.kv_lens) - problem.kv_lens
        self.dq = problem.zeros(*problem.q.shape)
        pools = (problem.k_pool, problem.v_pool)
        self.dk, self.dv = (problem.zeros(keys, *pool.shape[2:]) for pool in pools)

    def add(self, part: Part, dout: Array, p: Array, ds: Array, *, abs_values: bool) -> None:
        """Add a part; abs_values takes |K|, |Q| and |dO|, so that errors cannot cancel."""
        rows, block = part.rows, part.block
        xp, size = namespace(p), abs if abs_values else (lambda x: x)
        q = float64(rows.of(self.problem.q))
        self.dq[rows.place] += rows.by_token(weighted_sum(ds, size(block.k)))
        first = int(self.starts[rows.request]) + block.first
        keys = slice(first, first + block.last - block.first)
        heads = slice(rows.kv_first, rows.kv_last)
        for total, weights, values in ((self.dk, ds, q), (self.dv, p, dout)):
            found = weighted_sum(xp.swapaxes(weights, 1, 2), size(values))
            total[keys, heads] += xp.swapaxes(found, 0, 1)

    def scaled(self) -> tuple[Array, Array, Array]:
        """Return dq and dk times the softmax scale, and dv."""
        return self.dq * self.problem.scale, self.dk * self.problem.scale, self.dv
