"""Upper bounds on the difference between a right kernel's gradients and float64.

All inputs of a backward pass count as exact, including the output and the log-sum-exp that a
forward pass has rounded, and the gradient of the output. Symbols: P = 2^(s - lse2), dP = dO V^T,
delta = sum of out dO, dS = P (dP - delta), times 1 - tanh^2 where scores are capped.
"""

import numpy as np

from labkernels import formats
from labkernels.numerics.arrays import Array, float64, namespace
from labkernels.numerics.emulation import tensor_core
from labkernels.numerics.error.bounds import EXP2_ERROR
from labkernels.numerics.error.execution import ANY_EXECUTION, Execution
from labkernels.numerics.truth.gradients import (
    Given,
    Part,
    Totals,
    gradients,
    parts,
    sink_weights,
)
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.truth.variant import VariantTensors
from labkernels.policy import NumericPolicy
from labkernels.units import LN_2, LOG2_E

_U32 = 2.0**-24
_FLUSHED = 2.0**-126  # fp32 results and sums in global memory below this may become zero
_SHORTEST_TILE = 32  # keys whose products of dq meet in one fp32 addition
_PADDING = 32  # zero terms that a head's tiles add to a chain: one chunk of 16 at either end
_LARGEST_EXPONENT_ERROR = 100.0  # expm1 of a larger argument would only overflow


def gradient_bounds(
    given: Given, policy: NumericPolicy, execution: Execution = ANY_EXECUTION
) -> tuple[np.ndarray, ...]:
    """Return the largest errors of dq, dk, dv and dsinks that rounding alone can cause.

    Kernels covered: P and dS rounded to policy.p once, every product on tensor cores in one
    chain or in tiles of at least 32 keys whose sums meet in fp32 in any order, fp32 elsewhere.
    Shapes: as gradients. Error: never exceeded by a right kernel.
    Source: first-order terms of block-FMA analyses, made rigorous here, as in bounds.
    """
    problem = given.problem
    spread, size = Totals(problem), Totals(problem)
    for rows in problem.row_blocks():
        for part in parts(given, rows):
            errors = _Errors(part, policy, execution)
            spread.add(part, part.dout, errors.p, errors.ds, abs_values=True)
            size.add(part, part.dout, part.p + errors.p, abs(part.ds) + errors.ds, abs_values=True)
    keys, rows_seen = _chain_lengths(problem)
    of_keys = _chain_error(keys, execution.arch) + (keys / _SHORTEST_TILE + 1) * _U32
    of_rows = _chain_error(rows_seen, execution.arch)
    chains, exact = (of_keys, of_rows, of_rows), gradients(given)
    sums = zip(spread.scaled(), size.scaled(), chains, exact[:3], strict=True)
    found, sinks = tuple(_stored(e + chain * s, x, policy) for e, s, chain, x in sums), given.sinks
    return (
        found if sinks is None else (*found, sink_bound(sinks, given.dout, given.out, given.lse2))
    )


def sink_bound(sinks: Array, dout: Array, out: Array, lse2: Array) -> Array:
    """Return the bound of dsinks: of P, of delta and of a sum over all rows in fp32. Shapes: [Hq].

    The rest is as in `sink_gradient`.
    """
    weights, xp = sink_weights(sinks, lse2), namespace(lse2)
    sizes = xp.where(xp.isfinite(sinks), abs(sinks), 0.0) * LOG2_E
    exponent = _U32 * (3 * sizes + abs(xp.where(weights > 0, float64(lse2), 0.0)))
    relative = (1 + xp.expm1(LN_2 * exponent)) * (1 + EXP2_ERROR["mufu"]) - 1
    relative = relative + (dout.shape[-1] + 1 + len(weights)) * _U32
    products = abs(float64(dout) * float64(out)).sum(-1)
    return ((weights * relative + _FLUSHED) * (1 + relative) * products + _FLUSHED).sum(0)


class _Errors:
    """How far the rounded P and dS of a kernel can be from the exact ones."""

    def __init__(self, part: Part, policy: NumericPolicy, execution: Execution) -> None:
        xp, dims = namespace(part.score), (part.rows.q_log2.shape[-1], part.dout.shape[-1])
        k, v = (xp.swapaxes(abs(x), 1, 2) for x in (part.block.k, part.block.v))
        product, of_v = (_chain_error(dim, execution.arch) for dim in dims)
        exponent = product * (abs(part.rows.q_log2) @ k)
        shaping, bend = _of_variant(part, exponent, execution)
        exponent = exponent + shaping
        exponent = exponent + 2 * _U32 * (abs(part.score) + abs(part.score - part.lse2[..., None]))
        grown = xp.expm1(xp.clip(LN_2 * exponent, None, _LARGEST_EXPONENT_ERROR))
        p_error = part.p * ((1 + grown) * (1 + EXP2_ERROR[policy.exp2]) - 1) + _FLUSHED
        delta = (dims[1] + 1) * _U32 * abs(part.dout * part.out).sum(-1)[..., None]
        slope_error = of_v * (abs(part.dout) @ v) + delta
        slope_error = slope_error + _U32 * (abs(part.slope) + slope_error)
        slope = abs(part.slope) + slope_error
        ds_error = p_error * slope + part.p * slope_error + _U32 * (part.p + p_error) * slope
        ds_error = ds_error * (part.steepness + bend) + bend * part.p * abs(part.slope)
        self.p = part.visible(_rounded(p_error, part.p, policy.p))
        self.ds = part.visible(_rounded(ds_error + _FLUSHED, abs(part.ds), policy.p))


def _of_variant(
    part: Part, product: Array, execution: Execution
) -> tuple[Array | float, Array | float]:
    """Return what a variant adds to the error of an exponent, and the error of the cap's steepness.

    product: the error of q k in log2 units, which the cap lessens.
    """
    variant, block = part.rows.problem.variant, part.block
    if variant is None:
        return 0.0, 0.0
    xp = namespace(part.score)
    raw = abs(part.rows.q_log2 @ xp.swapaxes(block.k, 1, 2))
    bend: Array | float = 0.0
    error = 2 * _U32 * raw
    if variant.alibi is not None:
        places = xp.arange(block.first, block.last, device=raw.device)
        slopes = VariantTensors(alibi=variant.alibi, both_sides=variant.both_sides)
        error = error + 3 * _U32 * abs(
            slopes.shaped(0 * raw, part.rows.heads, part.rows.places, places)
        )
    if variant.soft_cap is not None:
        cap, (relative, absolute) = variant.soft_cap * LOG2_E, execution.tanh_error
        height = xp.tanh(raw / cap)
        of_tanh = relative * height + absolute
        error = error + cap * of_tanh
        of_tanh = of_tanh + (product + 4 * _U32 * raw) / cap
        bend = of_tanh * (2 * height + of_tanh) + 4 * _U32
    return error, bend


def _chain_lengths(problem: Problem) -> tuple[Array, Array]:
    """Return the terms of a chain: keys of each query's dq, rows of each key's dk and dv."""
    xp = namespace(problem.q)
    q_lens = np.diff(problem.q_ends)
    rows = problem.group * (q_lens + _PADDING)
    found = (
        np.asarray(problem.n_keys, np.float64) + _PADDING,
        np.repeat(rows, problem.kv_lens).astype(np.float64),
    )
    return tuple(xp.asarray(x, device=problem.q.device)[:, None, None] for x in found)


def _chain_error(n_terms: Array, arch: str) -> Array:
    """Return the error of a sum of n products on tensor cores relative to the sum of |products|."""
    unit = tensor_core.unit_of(arch, "bf16")  # fp16 has the same
    step = 2.0**-23 + (unit.chunk + 1) * 2.0**-unit.fraction_bits
    return (n_terms / unit.chunk + 1) * step


def _rounded(error: Array, size: Array, target: str) -> Array:
    """Return the error of a number of this size once the number is rounded to a format."""
    kept = formats.named(target)
    return error + kept.unit_roundoff * (size + error) + kept.smallest_subnormal / 2


def _stored(error: Array, exact: Array, policy: NumericPolicy) -> Array:
    """Return the error of a stored gradient: adds those of the scale in fp32 and of the store."""
    error = error + 3 * _U32 * (abs(exact) + error) + 2.0**-40 * abs(exact)
    return _rounded(error, abs(exact), policy.out)
