"""What a merge of parts adds to the error: over ranks, over splits, over the hops of a ring.

Symbols: part i has the output o_i and the log-sum-exp lse2_i; w_i = 2^(lse2_i) / sum 2^(lse2_j) is
its share, and o = sum w_i o_i. u is the unit roundoff of the carry, the format in which outputs
travel.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from labkernels import formats
from labkernels.numerics import rounding
from labkernels.numerics.arrays import to_numpy
from labkernels.numerics.error import sigma as error_sigma
from labkernels.numerics.truth.oracle import attention
from labkernels.numerics.truth.problem import Problem
from labkernels.policy import NumericPolicy
from labkernels.units import LN_2

_RELATIVE = 0.75 / (2 * np.log(2)) * 2.0**-46 / 12  # mean relative variance of an fp32 rounding


def shares(lse2s: np.ndarray) -> np.ndarray:
    """Return each part's share w_i of the softmax's sum; 0 for parts without keys.

    Shapes: [parts, ...] -> the same.

    >>> shares(np.array([3.0, 2.0, -np.inf]))
    array([0.66666667, 0.33333333, 0.        ])
    """
    lse2s = np.asarray(lse2s, np.float64)
    top = lse2s.max(0)
    with np.errstate(invalid="ignore"):
        weights = np.exp2(np.where(lse2s == -np.inf, -np.inf, lse2s - top))
    total = weights.sum(0)
    return weights / np.where(total == 0, 1.0, total)


def merged(outs: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return sum w_i o_i in float64; an output whose share is 0 is not read.

    Shapes: outs [parts, ..., Dv], weights [parts, ...] -> [..., Dv].
    """
    held = np.asarray(weights, np.float64)[..., None]
    return (held * np.where(held == 0, 0.0, np.asarray(outs, np.float64))).sum(0)


def merged_bound(
    outs: np.ndarray,
    weights: np.ndarray,
    out_format: str,
    carry: str = "fp32",
    *,
    hops: bool = False,
) -> np.ndarray:
    """Return the largest error that a merge in fp32 of parts with these shares can make.

    carry: of the outputs on the wire, if `outs` is not yet rounded to it. hops: the sum is rounded
    to the carry after every part. Shapes: outs [parts, ..., Dv], weights [parts, ...] -> [..., Dv].
    Error: (parts + 8) 2^-23 sum w_i |o_i| as in `merge_states`, u of the same sum for each time
    that outputs are rounded to the carry, and half a spacing of the output.
    """
    kind, target, times = formats.named(carry), formats.named(out_format), len(outs) if hops else 1
    size = merged(np.abs(outs), weights)
    inside = ((len(outs) + 8) * 2.0**-23 + times * kind.unit_roundoff) * size
    inside = inside + times * kind.smallest_subnormal
    stored = np.abs(merged(outs, weights)) + inside
    return inside + target.unit_roundoff * stored + target.smallest_subnormal / 2


def merge_variance(
    outs: np.ndarray, lse2s: np.ndarray, carry: str = "fp32", *, hops: bool = False
) -> np.ndarray:
    """Return the variance that a merge adds before the last store.

    Each part counts with its output's rounding to the carry, q(o_i)^2 / 12, and with its weight's
    error, relative to o_i - o: the spacings of lse2 and of its distance to the maximum, and exp2.
    hops: the sum so far is rounded, too. For n alike parts and values without a mean the first is
    one rounding of o, as outputs of fewer keys are larger by sqrt(n), and hops are (n - 1) / 2.
    Shapes: outs [parts, ..., Dv], lse2s [parts, ...] -> [..., Dv].
    """
    outs, lse2s = np.asarray(outs, np.float64), np.asarray(lse2s, np.float64)
    weights = shares(lse2s)
    o, held = merged(outs, weights), weights[..., None] ** 2
    live = weights > 0
    seen = np.where(live, lse2s, 0.0)
    away = np.where(live, lse2s.max(0) - seen, 0.0)
    steps = [np.where(x == 0, 0.0, rounding.quantum(x, "fp32")) for x in (seen, away)]
    relative = LN_2**2 * (steps[0] ** 2 + steps[1] ** 2) / 12 + error_sigma.EXP2_SPREAD["mufu"] ** 2
    found = (held * relative[..., None] * (outs - o) ** 2).sum(0)
    found = found + (held * rounding.quantum(outs, carry) ** 2 / 12).sum(0)
    found = found + _RELATIVE * (len(outs) / 3 + 4) * o**2
    if hops:
        part = np.cumsum(weights, 0)[..., None]
        sums = np.cumsum(weights[..., None] * outs, 0) / np.where(part == 0, 1.0, part)
        rounded = part**2 * rounding.quantum(sums, carry) ** 2 / 12
        count = np.cumsum(live, 0)  # of the parts so far; one without keys changes no bit
        again = live & (count > 1) & (count < count[-1])  # the last rounding is the store
        found = found + (rounded * again[..., None]).sum(0)
    return found


def sigma_of_parts(
    parts: Sequence[Problem],
    policy: NumericPolicy,
    carry: str = "fp32",
    *,
    hops: bool = False,
) -> np.ndarray:
    """Return the expected standard deviation of an output that is merged from parts of the keys.

    parts: the same queries over each rank's keys. policy: of a part's kernel, whose output is fp32
    before the carry; policy.out is the format of the merged output.
    Shapes: [total_q, Hq, Dv] float64. Error: as `sigma`, of which each part has its own.
    """
    inside = replace(policy, out="fp32")
    truths = [attention(part) for part in parts]
    outs, lse2s = (np.stack([to_numpy(x[i]) for x in truths]) for i in range(2))
    own = np.stack([to_numpy(error_sigma.sigma(x, inside)) ** 2 for x in parts])
    weights = shares(lse2s)
    found = (weights[..., None] ** 2 * own).sum(0) + merge_variance(outs, lse2s, carry, hops=hops)
    store = rounding.quantum(merged(outs, weights), policy.out) ** 2 / 12
    return np.sqrt(found + store)
