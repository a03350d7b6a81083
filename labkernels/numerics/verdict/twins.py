"""Twins: outputs of right kernels on the same inputs, by various honest arithmetic.

The tests of `significance` take the roundings of P and of the store as independent. Where scores
lie on a lattice, rows repeat or V is nearly constant, they are not: the same rounding error recurs
in many elements, and a sum over them is no random walk. Such inputs cannot be listed. So where a
test fires, all tests are also run on twins. If a test fires on twins too, its assumption does not
hold, and its limits move beyond all twins.
"""

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labkernels import formats
from labkernels.numerics import rounding
from labkernels.numerics.arrays import ZERO, Array, moved, namespace, to_numpy
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.truth.rows import Block, Rows
from labkernels.numerics.truth.threads import over_rows
from labkernels.policy import NumericPolicy
from labkernels.units import LOG2_E

_POLY3 = (1.0, 0.6951461434, 0.2275643945, 0.0771190897)  # 2^x on [0, 1), as FlashAttention-4
_FIXED_MOST = 6.0  # log2 units: no weight overflows fp16, and few more are subnormal in it
_GOLDEN = (5**0.5 - 1) / 2  # its multiples, less their whole part, spread evenly
SIXTEEN = ("fp16", "bf16")


@dataclass(frozen=True)
class Twin:
    """How a twin computes.

    block: keys between two moves of the running maximum. backward: blocks are taken from the last
    one on. rounded_sum: the denominator sums the rounded P. lag: log2 units that the maximum may
    fall behind. start: log2 units by which weights exceed 1. whole: the maximum is rounded up to a
    whole number, so that no weight is known to be exact. fixed: one number for all rows stands for
    their maximum, kept within 6 log2 units of it. normalised: P is divided by its sum before it is
    rounded, as in eager code. poly3: exp2 is a cubic polynomial. reference: another number for each
    row stands for its maximum, up to 6 log2 units below it; 0 for none, else which numbers: -1 is
    the first score that a row sees. steady: the reference is as far from the maximum in all rows,
    so that P's rounding makes the largest weight smaller (larger if negative) by this part of P's
    unit roundoff.

    The others matter where P has more than 16 bits and sums are in fp32. turns: the keys of this
    many blocks are added in as many parts, each of every turns-th key, as warps take keys in turn.
    kept: the output is a mean after every block, and log-sum-exps weight the old mean and the new
    block. differences: such a mean moves by a share of its difference from the new block. logs:
    weights are relative to the log-sum-exp. products: the format of the factors of products:
    "tf32", "tf32 cut" (toward 0), or "bf16x3", hi + lo without the product of both lows.
    values_only: `products` concerns the factors of P V alone. partials: the format in which the
    output of each block of keys is stored before these outputs are merged; "" for none. summed: the
    format in which the sum of P V is kept after each block; "" for none. centred: the mean of V is
    taken off before, in fp32, and added to the quotient. turned: V's channels are mixed by a
    rotation before, and the output's by its inverse.
    """

    block: int = 64
    backward: bool = False
    rounded_sum: bool = False
    lag: float = 0.0
    start: float = 0.0
    whole: bool = False
    fixed: bool = False
    normalised: bool = False
    poly3: bool = False
    reference: int = 0
    steady: float = 0.0
    kept: bool = False
    differences: bool = False
    logs: bool = False
    turns: int = 1
    products: str = ""
    values_only: bool = False
    partials: str = ""
    summed: str = ""
    centred: bool = False
    turned: bool = False


TWINS = (
    Twin(64),
    Twin(128, backward=True, rounded_sum=True),
    Twin(32, lag=8.0),
    Twin(64, start=4.5),
    Twin(16, backward=True, lag=8.0, rounded_sum=True),
    Twin(1 << 30, normalised=True),
    Twin(128, poly3=True),
    Twin(1 << 30, fixed=True, rounded_sum=True),
    Twin(1),
    Twin(1 << 30, whole=True, turns=4),
)
# The largest weight of a row is 1 to most kernels, and has no rounding. To these it is any number.
REFERENCES = (
    *(Twin(1 << 30, reference=-1, rounded_sum=x, poly3=not x) for x in (False, True)),
    *(Twin(1 << 30, reference=n, rounded_sum=n % 2 == 0) for n in range(1, 9)),
)
# To these it is one number in all rows, whose error adds up: nearly the largest that it can have.
STEADY = tuple(Twin(1 << 30, steady=x, rounded_sum=x < 0) for x in (0.9, -0.9))


def outputs(
    problem: Problem, policy: NumericPolicy, kernels: tuple[Twin, ...] = TWINS
) -> Iterator[np.ndarray]:
    """Yield the outputs of twins, as stored. Shapes: [total_q, Hq, Dv] each.

    All twins keep a denominator or a cubic exp2 that the policy names.
    """
    cubics = policy.exp2 == "poly3"
    for given in kernels:
        if is_fine(policy) and given.poly3 and not cubics:  # the cubic errs far more than fp32
            continue
        twin = replace(given, poly3=given.poly3 or cubics, start=_start(given, policy))
        out = problem.zeros(*problem.out_shape)
        middles = _middles(problem) if twin.fixed else {}
        for rows, of_rows in over_rows(problem, functools.partial(_of_rows, twin, policy, middles)):
            rows.put(out, of_rows)
        yield to_numpy(rounded(out, policy.out))


def is_fine(policy: NumericPolicy) -> bool:
    """Return whether P keeps more than 16 bits, so that the order of fp32 sums shows in o."""
    return policy.p not in SIXTEEN


def _start(twin: Twin, policy: NumericPolicy) -> float:
    """Return the log2 of a twin's largest weight; a steady one has a number that P cannot hold."""
    if not twin.steady:
        return twin.start
    part = twin.steady if twin.steady > 0 else 2 + twin.steady
    return math.log2(1 + part * formats.named(policy.p.removesuffix("x2")).unit_roundoff)


def _middles(problem: Problem) -> dict[int, Array]:
    """Return the median of the rows' largest scores, by request."""
    found: dict[int, list[Array]] = {}
    for rows in problem.row_blocks():
        found.setdefault(rows.request, []).append(rows.softmax.m.reshape(-1))
    xp = namespace(problem.q)
    return {request: xp.median(xp.concatenate(m)) for request, m in found.items()}


def _of_rows(twin: Twin, policy: NumericPolicy, middles: dict[int, Array], rows: Rows) -> Array:
    """Return outputs before the store. middles: as `_middles` returns. Shapes: [Hkv, R, Dv]."""
    xp = namespace(rows.q_log2)
    blocks = list(rows.blocks())
    fine = is_fine(policy)
    scores = [_fp32_scores(block, twin) if fine else block.score_log2 for block in blocks]
    score = xp.concatenate(scores, -1)
    v = xp.concatenate([block.v for block in blocks], 1)
    if twin.turned:
        turn = _rotation(v)
        mixed = xp.asarray(xp.asarray(v @ turn, dtype=xp.float32), dtype=v.dtype)
        return _of_keys(twin, policy, middles, rows, score, mixed) @ turn.T
    if not twin.centred:
        return _of_keys(twin, policy, middles, rows, score, v)
    v = xp.asarray(v, dtype=xp.float32)
    mean = v.mean(1)[:, None]
    out = _of_keys(twin, policy, middles, rows, score, v - mean)
    return xp.asarray(xp.asarray(out, dtype=xp.float32) + mean, dtype=xp.float64)


def _rotation(v: Array) -> Array:
    """Return a rotation of v's channels. Shapes: v [..., Dv] -> [Dv, Dv]."""
    drawn = np.random.default_rng(0).standard_normal((v.shape[-1],) * 2)
    return moved(np.linalg.qr(drawn)[0], v)


def _of_keys(
    twin: Twin,
    policy: NumericPolicy,
    middles: dict[int, Array],
    rows: Rows,
    score: Array,
    v: Array,
) -> Array:
    """Return outputs of given scores and values. Shapes: score [Hkv, R, L] -> [Hkv, R, Dv]."""
    xp = namespace(v)
    fine = is_fine(policy)
    if twin.kept or twin.logs:
        return _by_logs(score, v, twin, rows.sinks)
    if twin.partials:
        return _by_partials(score, v, twin, policy, rows.sinks)
    top = rows.softmax.m[..., None]
    shift = _shifts(score, twin, top, middles.get(rows.request))
    with np.errstate(invalid="ignore", over="ignore"):
        p = xp.where(xp.isinf(score), 0.0, xp.exp2(score - shift))
    back = xp.exp2(shift - top)
    if twin.poly3:
        p = cubic(p)
    sink = rows.sink_weight
    if twin.normalised:
        l = (p * back).sum(-1)[..., None] + sink
        l = xp.where(l == 0, 1.0, l)
        p, back, sink = p * back / l, xp.ones_like(back), sink / l
    used = _stored(p, policy)
    kind = policy.denominator or ("rounded" if twin.rounded_sum else "unrounded")
    summed = used if kind == "rounded" and not twin.normalised else p
    if fine and not twin.summed:
        return _in_fp32(used * back, summed * back, v, twin, sink)
    l = (summed * back).sum(-1)[..., None] + sink
    weights, o = used * back, ZERO
    for keys in _blocks(twin, v.shape[1]) if twin.summed else ():
        o = rounded(o + weights[..., keys] @ v[:, keys], twin.summed)
    return (o if twin.summed else weights @ v) / xp.where(l == 0, 1.0, l)


def _blocks(twin: Twin, n: int) -> list[slice]:
    """Return the keys of each block of n keys, in the order in which the twin takes them."""
    firsts = range(0, n, twin.block)[:: -1 if twin.backward else 1]
    return [slice(first, first + twin.block) for first in firsts]


def _fp32_scores(block: Block, twin: Twin) -> Array:
    """Return scores from fp32 sums: products one after the other if block is 1, else a matmul.

    A backward twin scales Q before the products, any other scales the sums.
    Shapes: [Hkv, R, n]. Units: log2 units.
    """
    xp = namespace(block.k)
    scale = 1.0 if twin.backward else block.rows.problem.scale * LOG2_E
    products = "" if twin.values_only else twin.products
    q, k = (xp.asarray(x, dtype=xp.float32) for x in (block.rows.q_log2 / scale, block.k))
    with np.errstate(invalid="ignore", over="ignore"):
        if twin.block == 1:
            score = ZERO
            for d in range(q.shape[-1]):
                score = score + q[..., d, None] * k[:, None, :, d]
        else:
            score = _product(q, xp.swapaxes(k, 1, 2), products)
    score = block.shaped(xp.asarray(score, dtype=xp.float64) * scale)
    return score if block.hidden is None else xp.where(block.hidden, -math.inf, score)


def _product(a: Array, b: Array, products: str) -> Array:
    """Return a product of matrices in fp32, with the factors rounded as `products` says."""
    if not products:
        return a @ b
    if products == "bf16x3":
        (a, a_low), (b, b_low) = (_halves(x) for x in (a, b))
        return a_low @ b + a @ b_low + a @ b
    a, b = (_narrow(x, products) for x in (a, b))
    return a @ b


def _narrow(x: Array, products: str) -> Array:
    xp = namespace(x)
    if products == "tf32 cut":
        steps = rounding.quantum(x, "tf32")
        return xp.asarray(xp.trunc(x / steps) * steps, dtype=xp.float32)
    return xp.asarray(rounded(x, products), dtype=xp.float32)


def _halves(x: Array) -> tuple[Array, Array]:
    high = _narrow(x, "bf16")
    return high, _narrow(x - high, "bf16")


def _in_fp32(weights: Array, summed: Array, v: Array, twin: Twin, sink: Any) -> Array:
    """Return the weighted mean of v by fp32 sums over blocks of keys. Shapes: [Hkv, R, Dv]."""
    xp = namespace(v)
    weights, summed, v = (xp.asarray(x, dtype=xp.float32) for x in (weights, summed, v))
    o, l = ZERO, xp.asarray(sink, dtype=xp.float32)
    size = twin.block * twin.turns
    for first, turn in itertools.product(range(0, v.shape[1], size), range(twin.turns)):
        keys = slice(first + turn, first + size, twin.turns)
        o = o + _product(weights[..., keys], v[:, keys], twin.products)
        l = l + summed[..., keys].sum(-1)[..., None]
    return xp.asarray(o / xp.where(l == 0, 1.0, l), dtype=xp.float64)


def _by_logs(score: Array, v: Array, twin: Twin, sinks: Array | None) -> Array:
    """Return means of v by log-sum-exps in fp32, whose own rounding grows with the scores.

    Shapes: sinks [Hkv, R] in log2 units, or None -> [Hkv, R, Dv].
    """
    xp = namespace(v)
    score, v = (xp.asarray(x, dtype=xp.float32) for x in (score, v))
    sink = None if sinks is None else xp.asarray(sinks[..., None], dtype=xp.float32)
    if twin.logs:
        whole = score if sink is None else xp.concatenate([score, sink], -1)
        return xp.asarray(xp.exp2(score - _lse2(whole)) @ v, dtype=xp.float64)
    lse, o = None, 0.0
    for keys in _blocks(twin, v.shape[1]):
        part = _lse2(score[..., keys])
        with np.errstate(invalid="ignore"):
            p = xp.exp2(score[..., keys] - xp.where(xp.isinf(part), 0.0, part))
        if lse is None:
            lse, o = part, p @ v[:, keys]
            continue
        new = _lse2(xp.concatenate([lse, part], -1))
        seen = xp.where(xp.isinf(new), 0.0, new)
        given, share = p @ v[:, keys], xp.exp2(part - seen)
        o = o + share * (given - o) if twin.differences else xp.exp2(lse - seen) * o + share * given
        lse = new
    if sink is not None:
        o = xp.exp2(lse - _lse2(xp.concatenate([lse, sink], -1))) * o
    return xp.asarray(o, dtype=xp.float64)


def _by_partials(
    score: Array, v: Array, twin: Twin, policy: NumericPolicy, sinks: Array | None
) -> Array:
    """Return means of v over blocks of keys, stored in a narrow format, then merged.

    Shapes: sinks [Hkv, R] in log2 units, or None -> [Hkv, R, Dv].
    """
    xp = namespace(v)
    logs, parts = [], []
    for keys in _blocks(twin, v.shape[1]):
        top = xp.amax(score[..., keys], -1)[..., None]
        p = xp.exp2(score[..., keys] - xp.where(xp.isinf(top), 0.0, top))
        l = p.sum(-1)[..., None]
        o = _stored(p, policy) @ v[:, keys] / xp.where(l == 0, 1.0, l)
        parts.append(rounded(o, twin.partials))
        logs.append(_lse2(score[..., keys]))
    lse = xp.concatenate(logs if sinks is None else [*logs, sinks[..., None]], -1)
    whole = _lse2(lse)
    shares = xp.exp2(lse - xp.where(xp.isinf(whole), 0.0, whole))
    return sum(shares[..., n, None] * part for n, part in enumerate(parts))


def _lse2(score: Array) -> Array:
    """Return the base-2 log-sum-exp over the last axis. Shapes: [..., 1]."""
    xp = namespace(score)
    m = xp.amax(score, -1)[..., None]
    shift = xp.where(xp.isinf(m), 0.0, m)
    with np.errstate(divide="ignore"):
        return shift + xp.log2(xp.exp2(score - shift).sum(-1)[..., None])


def _shifts(score: Array, twin: Twin, top: Array, middle: Array | None) -> Array:
    """Return the maximum to which each key's weight is relative. Shapes: as score.

    middle: the one number of a fixed twin.
    """
    xp = namespace(score)
    if twin.reference < 0:
        seen = ~xp.isinf(score)
        first = xp.where(seen & (seen.cumsum(-1) == 1), score, 0.0).sum(-1)[..., None]
        with np.errstate(invalid="ignore"):
            return xp.maximum(first, top - _FIXED_MOST) + xp.zeros_like(score)
    if twin.reference:
        part = top * (twin.reference * _GOLDEN) % 1.0
        return top - _FIXED_MOST * xp.where(xp.isinf(top), 0.0, part) + xp.zeros_like(score)
    if twin.fixed:
        return xp.clip(middle, top - _FIXED_MOST, top + _FIXED_MOST) + xp.zeros_like(score)
    kept, found = None, []
    for keys in _blocks(twin, score.shape[-1]):
        highest = xp.amax(score[..., keys], -1)[..., None] - twin.start
        highest = xp.ceil(highest) if twin.whole else highest
        if kept is None:
            kept = highest
        with np.errstate(invalid="ignore"):
            kept = xp.where(highest - kept > twin.lag, highest, kept)
        kept = xp.where(xp.isinf(kept), highest, kept)
        seen = xp.where(xp.isinf(kept), top, kept)
        found.append(seen + xp.zeros_like(score[..., keys]))
    return xp.concatenate(found[::-1] if twin.backward else found, -1)


def _stored(p: Array, policy: NumericPolicy) -> Array:
    """Return P as a kernel stores it; two parts lose nothing that a verdict could see."""
    return p if policy.p_parts == 2 else rounded(p, policy.p)


def cubic(x: Array) -> Array:
    """Return 2^y by a cubic of y's fractional part, given x = 2^y."""
    xp = namespace(x)
    power = rounding.quantum(x, "fp64")
    whole = power * 2.0**52
    part = xp.log2(xp.where(x == 0, 1.0, x / xp.where(whole == 0, 1.0, whole)))
    value = ((_POLY3[3] * part + _POLY3[2]) * part + _POLY3[1]) * part + _POLY3[0]
    return xp.where(x == 0, 0.0, whole * value)


def rounded(x: Array, fmt: str) -> Array:
    """Return the nearest values of a format, in the namespace of x; nothing overflows to inf."""
    xp = namespace(x)
    steps = rounding.quantum(x, fmt)
    with np.errstate(invalid="ignore", over="ignore"):
        return xp.where(xp.isfinite(x), xp.round(x / steps) * steps, x)
