"""Variance of the fp32 sums of a decode kernel: dot products and P v on CUDA cores, l, the merges.

An addition, rounded to nearest, errs by up to half an ulp of its result. It does not err where both
terms are multiples of that ulp, and never errs by more than the smaller term.
"""

import numpy as np

from labkernels.numerics import rounding
from labkernels.numerics.arrays import Array
from labkernels.numerics.emulation.decode import merge_batch
from labkernels.numerics.emulation.softmax_trace import SoftmaxTrace, shift
from labkernels.numerics.emulation.summation_order import with_idle_lanes


def one_rounding(
    total: Array, *, grain: Array | float = 0.0, added: Array | float = np.inf
) -> Array:
    """Return the variance of rounding a sum to fp32.

    The sum is a random multiple of `grain`, and `added` is its last term.
    Source: errors uniform over the multiples of grain in half an ulp, ulp^2 / 12 for a fine grain.
    """
    ulp = spacing(total)
    variance = np.minimum((ulp**2 + 2 * np.minimum(grain, ulp) ** 2) / 12, added**2)
    return np.where((grain < ulp) & (total != 0), variance, 0.0)


def spacing(x: np.ndarray) -> np.ndarray:
    """Return the ulp of fp32 at x, of which x is a multiple; inf for 0."""
    return np.where(x == 0, np.inf, rounding.quantum(x, "fp32"))


def dot_products(q: np.ndarray, k: np.ndarray, lane_channels: int) -> np.ndarray:
    """Return the variance of q k if a lane adds some channels, and lanes join in pairs: [R, n]."""
    q, k = (with_idle_lanes(x, lane_channels) for x in (q, k))
    total = np.zeros((len(q), len(k), q.shape[1] // lane_channels))
    grain, variance = np.full(total.shape, np.inf), np.zeros(total.shape)
    lowest = [rounding.lowest_bit(x) for x in (q, k)]
    for c in range(lane_channels):
        some = slice(c, None, lane_channels)
        total = total + q[:, None, some] * k[None, :, some]
        grain = np.minimum(grain, lowest[0][:, None, some] * lowest[1][None, :, some])
        variance += one_rounding(total, grain=grain)
        grain = np.maximum(grain, rounding.quantum(total, "fp32"))
    while total.shape[-1] > 1:
        half = total.shape[-1] // 2
        total, grain, variance = (
            join(x[..., :half], x[..., half:])
            for x, join in ((total, np.add), (grain, np.minimum), (variance, np.add))
        )
        variance = variance + one_rounding(total, grain=grain)
        grain = np.maximum(grain, rounding.quantum(total, "fp32"))
    return variance[..., 0]


def accumulation(trace: SoftmaxTrace) -> np.ndarray:
    """Return the variance of sum P v in FMAs, rescales included; o's units. Shapes: [R, Dv]."""
    groups = trace.order.groups
    weight = trace.weight[..., None]
    variance, ends = 0.0, []
    for group in range(groups):
        p, v = trace.p[..., group::groups], trace.v[:, :, group::groups]
        held = trace.held(p @ v, weight)
        total = trace.before(held) * trace.rescale[..., None]
        errors = np.where(trace.rescale[..., None] != 1, one_rounding(total), 0.0)
        for j in range(p.shape[-1]):
            term = p[..., j, None] * v[:, :, j, None]
            total = total + term
            errors = errors + np.where(term == 0, 0.0, one_rounding(total, added=term))
        variance = variance + (errors * weight**2).sum(axis=(0, 1))
        ends.append(held[:, -1])
    joined = _join_pairs(np.stack(ends), fold=True) * weight[:, -1] ** 2
    return variance + joined.sum(axis=0)


def denominator(trace: SoftmaxTrace) -> np.ndarray:
    """Return the variance of l over l^2. Shapes: [R]."""
    weight = trace.weight[..., None]
    p = trace.p[..., trace.order.lanes]
    held = trace.held(p.sum(axis=-1), weight)
    total = trace.before(held) * trace.rescale[..., None]
    errors = np.where(trace.rescale[..., None] != 1, one_rounding(total), 0.0)
    for j in range(p.shape[-1]):
        term = p[..., j]
        grain = np.minimum(spacing(total), spacing(term))
        total = total + term
        errors = errors + one_rounding(total, grain=grain, added=np.where(term == 0, 0.0, term))
    variance = (errors * weight**2).sum(axis=(0, 1, 3))
    lanes = np.moveaxis(held[:, -1], -1, 0)
    joined = _join_pairs(lanes, fold=False) * trace.weight[:, -1] ** 2
    return variance + joined.sum(axis=0) + merge(trace, lanes.sum(axis=0)[..., None])[:, 0]


def merge(trace: SoftmaxTrace, held: np.ndarray) -> np.ndarray:
    """Return the variance of the merges of warps and splits, in units of the output.

    Shapes: held [C, R, D] -> [R, D]
    """
    warps = trace.order.warps
    m = trace.m[:, -1].reshape(-1, warps, held.shape[1]).swapaxes(0, 1)
    held = held.reshape(-1, warps, *held.shape[1:]).swapaxes(0, 1)
    top = m.max(axis=0)
    total, variance = _join(held, np.exp2(m - shift(top)))
    variance = (variance * _to_output(trace, top)).sum(axis=0)
    if len(top) == 1:
        return variance
    batch, start, old = merge_batch(trace.v.shape[-1]), None, None
    for first in range(0, len(top), batch):
        some = slice(first, first + batch)
        new = top[: first + batch].max(axis=0)
        if start is not None:
            start = start * np.exp2(old - new)[:, None]
            moved = np.where((old != new)[:, None], one_rounding(start), 0.0)
            variance = variance + moved * _to_output(trace, new)
        start, errors = _join(total[some], np.exp2(top[some] - shift(new)), start)
        variance, old = variance + errors * _to_output(trace, new), new
    return variance


def _to_output(trace: SoftmaxTrace, m: np.ndarray) -> np.ndarray:
    """Return the squared factor from sums under maximum m [..., R] to the output: [..., R, 1]."""
    l = np.exp2(trace.score_log2 - trace.largest[:, None]).sum(axis=(0, 1, 3))
    return (np.exp2(m - trace.largest) / l)[..., None] ** 2


def _join(parts: Array, weights: Array, start: None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum of weights times parts, one FMA after the other, and its variance."""
    total = np.zeros(parts.shape[1:]) if start is None else start
    grain, variance = spacing(total), np.zeros(total.shape)
    for part, weight in zip(parts, weights[..., None], strict=True):
        term = weight * part
        total = total + term
        own = np.where(weight == 1, spacing(part), np.where(term == 0, np.inf, 0.0))
        variance += one_rounding(total, grain=np.minimum(grain, own), added=term)
        grain = spacing(total)
    return total, variance


def _join_pairs(x: np.ndarray, *, fold: bool) -> np.ndarray:
    """Return the variance of adding the first axis in pairs: its halves (fold), or neighbours."""
    variance = np.zeros(x.shape[1:])
    while len(x) > 1:
        half = len(x) // 2
        left, right = (x[:half], x[half:]) if fold else (x[0::2], x[1::2])
        x = left + right
        grain = np.minimum(spacing(left), spacing(right))
        variance = variance + one_rounding(x, grain=grain).sum(axis=0)
    return variance
