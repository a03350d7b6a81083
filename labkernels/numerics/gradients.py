"""Gradients of attention in float64, and how far a right kernel's can be from them.

What a backward pass is given beside q, K and V counts as exact: the output and the log-sum-exp that
a forward pass has rounded, and the gradient of the output.
Symbols: P = 2^(s - lse2), dP = dO V^T, delta = sum of out dO, dS = P (dP - delta); u roundoffs.
"""

from dataclasses import dataclass

import numpy as np

from labkernels import formats
from labkernels.numerics import tensor_core
from labkernels.numerics.arrays import float64, namespace
from labkernels.numerics.bounds import EXP2_ERROR
from labkernels.numerics.problem import Block, Problem, Rows, weighted_sum
from labkernels.numerics.rounds import Rounds

_U32 = 2.0**-24
_FLUSHED = 2.0**-126  # an fp32 result, or a sum in global memory, below it counts as zero
_SHORTEST_TILE = 32  # keys whose products of dq meet in one fp32 addition
_PADDING = 32  # rows of zeros at the ends of a head's tiles: a chain's chunk more at either end
_LN2 = float(np.log(2))
_LARGEST_EXPONENT_ERROR = 100.0  # expm1 of more would only overflow


@dataclass(frozen=True, eq=False)
class Given:
    """What a backward pass is given, checked: dout, out [total_q, Hq, D], lse2 [total_q, Hq]."""

    problem: Problem
    dout: np.ndarray
    out: np.ndarray
    lse2: np.ndarray

    def __post_init__(self):
        for name in ("dout", "out"):
            found, allowed = tuple(getattr(self, name).shape), tuple(self.problem.out_shape)
            if found != allowed:
                raise ValueError(f"{name}.shape = {found}, allowed: {allowed}")
        if tuple(self.lse2.shape) != tuple(self.problem.out_shape[:2]):
            allowed = tuple(self.problem.out_shape[:2])
            raise ValueError(f"lse2.shape = {tuple(self.lse2.shape)}, allowed: {allowed}")


def gradients(given: Given) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gradients dq, dk and dv in float64.

    Shapes: dq [total_q, Hq, D], dk, dv [sum kv_lens, Hkv, D], one request's keys after another's.
    Error: float64 rounding. A query without keys and a key that no query sees give 0.
    """
    total = _Totals(given.problem)
    for rows in given.problem.row_blocks():
        for part in _parts(given, rows):
            total.add(part, part.dout, part.p, part.ds, abs_values=False)
    return total.scaled()


def gradient_bounds(given: Given, rounds: Rounds) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Largest errors of dq, dk and dv that rounding alone can cause.

    Kernels covered: P and dS rounded to rounds.p_format once, every product on tensor cores in one
    chain or in tiles of at least 32 keys whose sums meet in fp32 in any order, fp32 elsewhere.
    Shapes: as gradients. Error: never exceeded by a right kernel.
    Source: first-order terms of block-FMA analyses, made rigorous here, as in bounds.
    """
    problem = given.problem
    spread, size = _Totals(problem), _Totals(problem)
    for rows in problem.row_blocks():
        for part in _parts(given, rows):
            errors = _Errors(part, rounds)
            spread.add(part, part.dout, errors.p, errors.ds, abs_values=True)
            size.add(part, part.dout, part.p + errors.p, abs(part.ds) + errors.ds, abs_values=True)
    keys, rows_seen = _chain_lengths(problem)
    of_keys = _chain_error(keys, rounds) + (keys / _SHORTEST_TILE + 1) * _U32
    of_rows = _chain_error(rows_seen, rounds)
    chains, exact = (of_keys, of_rows, of_rows), gradients(given)
    parts = zip(spread.scaled(), size.scaled(), chains, exact, strict=True)
    return tuple(_stored(e + chain * s, x, rounds) for e, s, chain, x in parts)


@dataclass(frozen=True, eq=False)
class _Part:
    """Rows of a request against a block of keys. Shapes: [Hkv, R, n], dout [Hkv, R, D]."""

    rows: Rows
    block: Block
    dout: np.ndarray
    out: np.ndarray
    lse2: np.ndarray
    score: np.ndarray
    p: np.ndarray
    slope: np.ndarray  # dP - delta
    ds: np.ndarray

    def visible(self, values):
        """The values, 0 where a row does not see a key."""
        hidden = self.block.hidden
        return values if hidden is None else namespace(values).where(hidden, 0.0, values)


def _parts(given: Given, rows: Rows):
    """Yield P and dS of the rows, a block of keys at a time."""
    xp = namespace(rows.q_log2)
    dout, out, lse2 = (
        rows.take(float64(x[rows.first : rows.last])) for x in (given.dout, given.out, given.lse2)
    )
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
        yield _Part(rows, block, dout, out, lse2, score, p, slope, p * slope)


class _Errors:
    """How far the rounded P and dS of a kernel can be from the exact ones."""

    def __init__(self, part: _Part, rounds: Rounds):
        xp, head_dim = namespace(part.score), part.rows.q_log2.shape[-1]
        k, v = (xp.swapaxes(abs(x), 1, 2) for x in (part.block.k, part.block.v))
        product = _chain_error(head_dim, rounds)
        exponent = product * (abs(part.rows.q_log2) @ k)
        exponent = exponent + 2 * _U32 * (abs(part.score) + abs(part.score - part.lse2[..., None]))
        grown = xp.expm1(xp.clip(_LN2 * exponent, None, _LARGEST_EXPONENT_ERROR))
        p_error = part.p * ((1 + grown) * (1 + EXP2_ERROR[rounds.exp2]) - 1) + _FLUSHED
        delta = (head_dim + 1) * _U32 * abs(part.dout * part.out).sum(-1)[..., None]
        slope_error = product * (abs(part.dout) @ v) + delta
        slope_error = slope_error + _U32 * (abs(part.slope) + slope_error)
        slope = abs(part.slope) + slope_error
        ds_error = p_error * slope + part.p * slope_error + _U32 * (part.p + p_error) * slope
        self.p = part.visible(_rounded(p_error, part.p, rounds.p_format))
        self.ds = part.visible(_rounded(ds_error + _FLUSHED, abs(part.ds), rounds.p_format))


class _Totals:
    """Sums over rows and keys: of dS K, dS^T Q and P^T dO."""

    def __init__(self, problem: Problem):
        keys = (int(problem.kv_lens.sum()), *problem.k_pool.shape[2:])
        self.problem, self.starts = problem, np.cumsum(problem.kv_lens) - problem.kv_lens
        self.dq = problem.zeros(*problem.q.shape)
        self.dk, self.dv = problem.zeros(*keys), problem.zeros(*keys)

    def add(self, part: _Part, dout, p, ds, *, abs_values: bool) -> None:
        """Count a part; of absolute values, so that errors cannot cancel, or as it is."""
        rows, block = part.rows, part.block
        xp, size = namespace(p), abs if abs_values else (lambda x: x)
        q = rows.take(float64(self.problem.q[rows.first : rows.last]))
        dq = self.problem.zeros(rows.last - rows.first, *self.problem.q.shape[1:])
        _put(rows, dq, weighted_sum(ds, size(block.k)))
        self.dq[rows.first : rows.last] += dq
        first = int(self.starts[rows.request]) + block.first
        keys = slice(first, first + block.last - block.first)
        for total, weights, values in ((self.dk, ds, q), (self.dv, p, dout)):
            found = weighted_sum(xp.swapaxes(weights, 1, 2), size(values))
            total[keys] += xp.swapaxes(found, 0, 1)

    def scaled(self):
        """Return dq and dk times the softmax scale, and dv."""
        return self.dq * self.problem.scale, self.dk * self.problem.scale, self.dv


def _put(rows: Rows, target, values) -> None:
    """Write rows [Hkv, R, D] to tokens [tokens, Hq, D]."""
    problem = rows.problem
    grouped = values.reshape(problem.kv_heads, -1, problem.group, values.shape[-1])
    target[:] = namespace(values).swapaxes(grouped, 0, 1).reshape(target.shape)


def _chain_lengths(problem: Problem):
    """Terms of a chain: keys of each query's dq, rows of each key's dk and dv; to broadcast."""
    xp = namespace(problem.q)
    q_lens = np.diff(problem.q_ends)
    rows = problem.group * (q_lens + _PADDING)
    found = (
        np.asarray(problem.n_keys, np.float64) + _PADDING,
        np.repeat(rows, problem.kv_lens).astype(np.float64),
    )
    return tuple(xp.asarray(x, device=problem.q.device)[:, None, None] for x in found)


def _chain_error(n_terms, rounds: Rounds):
    """Relative error of a sum of n products on tensor cores, to the sum of their sizes."""
    unit = tensor_core.unit_of(rounds.arch, "bf16")  # fp16 has the same
    step = 2.0**-23 + (unit.chunk + 1) * 2.0**-unit.fraction_bits
    return (n_terms / unit.chunk + 1) * step


def _rounded(error, size, target: str):
    """The error once the number, of that size, has been rounded to a format."""
    kept = formats.named(target)
    return error + kept.unit_roundoff * (size + error) + kept.smallest_subnormal / 2


def _stored(error, exact, rounds: Rounds):
    """The error of a gradient: the factor of the scale in fp32, and the store."""
    error = error + 3 * _U32 * (abs(exact) + error) + 2.0**-40 * abs(exact)
    return _rounded(error, abs(exact), rounds.out_format)
