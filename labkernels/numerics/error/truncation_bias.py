"""The mean loss of tensor cores: since they cut toward zero, their errors accumulate.

For V with mean 1, 2048 keys and four chains the bias is -1.7e-6 in fp16 and -6.4e-7 in bf16, at an
output of 1.
"""

import numpy as np

from labkernels import formats
from labkernels.numerics import rounding
from labkernels.numerics.arrays import Array
from labkernels.numerics.emulation import softmax_trace, tensor_core
from labkernels.numerics.error.fp32_sums import one_rounding
from labkernels.numerics.rounding import p_parts
from labkernels.numerics.truth.problem import Problem
from labkernels.policy import NumericPolicy

_GROWN = 256.0  # the largest P that prefill_fp8 makes a code


def accumulation(
    trace: softmax_trace.SoftmaxTrace, policy: NumericPolicy, arch: str = "sm_90"
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance of the error of sum P v on tensor cores, rescales included.

    Units: those of the output. Shapes: [R, Dv] each. Error: 5 % of the measured mean, where that is
    more than its noise. Source: a term loses on average half of the most that it can lose.
    """
    fmt = policy.p.removesuffix("x2")
    unit = tensor_core.unit_of(arch, fmt)
    v = trace.v.reshape(len(trace.v), -1, unit.chunk, trace.v.shape[-1])  # [C, mmas, chunk, Dv]
    p = trace.p.reshape(*trace.p.shape[:3], -1, unit.chunk).swapaxes(2, 3)
    parts = p_parts(p.reshape(*v.shape[:2], -1, unit.chunk), policy.p)  # [C, mmas, R, chunk]
    sums = [p @ v for p in parts]
    per_step = v.shape[1] // trace.m.shape[1]
    weight = np.repeat(trace.weight, per_step, axis=1)[..., None]
    rescale = np.ones_like(weight)
    rescale[:, ::per_step, :, 0] = trace.rescale
    held = trace.held(sum(sums), weight)
    carried = trace.before(held) * rescale
    variance = np.where(rescale != 1, one_rounding(carried), 0.0)
    before = np.zeros_like(held) if trace.order.promoted else carried
    mean = np.zeros_like(held)
    for p, added in zip(parts, sums, strict=True):
        lost, spread = cut(p, v, before, before + added, fmt, unit)
        mean, variance, before = mean - lost, variance + spread, before + added
    if trace.order.promoted:
        variance = variance + np.where(carried != 0, one_rounding(held), 0.0)
    return (mean * weight).sum(axis=(0, 1)), (variance * weight**2).sum(axis=(0, 1))


def product(
    a: Array, b: Array, fmt: str, *, every: int | None = None, arch: str = "sm_90"
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance of the error of a b in tensor cores, where fp32 joins the sums.

    every: after so many terms, a multiple of the unit's chunk, fp32 additions to nearest take the
    sum, and the tensor cores begin from zero; None: never.
    Shapes: a [R, n], b [n, D]: [R, D] each. Error: 10 % of the measured mean, where that is more
    than its noise; where all terms share their low bits, as with equal P, less is lost than this.

    >>> a, b = np.full((1, 2048), 1.875), np.full((2048, 1), 1.125)  # 4320 is the sum
    >>> [round(float(product(a, b, "e4m3", every=n)[0][0, 0]), 1) for n in (32, 128, None)]
    [0.0, -0.2, -172.2]
    """
    unit, (rows, n), columns = tensor_core.unit_of(arch, fmt), a.shape, b.shape[1]
    mean, variance, held, before = np.zeros((4, rows, columns))
    for first in range(0, n, unit.chunk):
        terms = a[:, first : first + unit.chunk], b[first : first + unit.chunk]
        after = before + terms[0] @ terms[1]
        lost, spread = cut(*terms, before, after, fmt, unit)
        mean, variance, before = mean - lost, variance + spread, after - lost
        if every and (first + unit.chunk) % every == 0:
            variance = variance + np.where(held, one_rounding(held + before), 0.0)
            held, before = held + before, np.zeros_like(before)
    return mean, variance


def of_codes(problem: Problem, *, every: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance of an output's error by P in e4m3 and by the 14 bits of its sums.

    problem: V holds codes in e4m3, whose scale is a factor of the errors. As in `prefill_fp8`, P is
    rounded at 256 times its size, which makes it smaller in the mean, and the last keys come first,
    in one split. every: as `product` takes it.
    Shapes: [total_q, Hq, Dv] each. Error: see `chapters.eight_bits.expected`.

    >>> q, k = np.random.default_rng(0).standard_normal((2, 1, 1, 2048, 8))
    >>> problem = Problem.dense(q[:, :, :1], k, np.full_like(k, 1.125), scale=0.3)
    >>> [round(float(of_codes(problem, every=n)[0].mean()), 3) for n in (128, None)]
    [-0.001, -0.046]
    """
    found = problem.zeros(*problem.out_shape), problem.zeros(*problem.out_shape)
    for rows in problem.row_blocks():
        blocks = [(block.v, weights) for block, _, weights in rows.weighted_blocks()]
        v, p = (np.concatenate([block[i] for block in blocks], 1 + i) for i in (0, 1))
        inside = np.where(p == 1, 0.0, p)  # the largest is exact
        mean = rounding.mean_relative_error("e4m3") * inside @ v
        variance = (rounding.quantum(_GROWN * inside, "e4m3") / _GROWN) ** 2 / 12 @ v**2
        for head, codes in enumerate(rounding.round_to(_GROWN * p, "e4m3")):
            lost = product(codes[:, ::-1], v[head, ::-1], "e4m3", every=every)
            mean[head] += lost[0] / _GROWN
            variance[head] += lost[1] / _GROWN**2
        for target, part, power in zip(found, (mean, variance), (1, 2), strict=True):
            rows.put(target, part / rows.softmax.divisor**power)
    return found


def cut(
    a: Array, b: Array, before: Array, after: Array, fmt: str, unit: tensor_core.Unit
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean (in the direction of its sign) and variance of the loss in a step a b + before.

    A term with bits below the last kept bit loses half of that bit on average; a term that lies
    wholly below is lost. The sum then loses half an ulp, less half of its own spacing.
    Shapes: a [..., R, n], b [..., n, D]; before, after [..., R, D], and so the results.
    """
    exponents = [_power(x, fmt) for x in (a, b)]
    grains, signs, sizes = ([f(x) for x in (a, b)] for f in (rounding.lowest_bit, np.sign, np.abs))

    def outer(pair: list[Array], j: int) -> Array:
        return pair[0][..., j, None] * pair[1][..., None, j, :]

    largest = np.maximum(_power(before), 2.0**unit.lowest_exponent_fp32)
    for j in range(a.shape[-1]):
        np.maximum(largest, outer(exponents, j), out=largest)
    kept = largest * 2.0**-unit.fraction_bits
    lost, spread = np.zeros(kept.shape), np.zeros(kept.shape)
    lowest, odd = np.full(kept.shape, np.inf), np.zeros(kept.shape, dtype=bool)
    for j in range(a.shape[-1]):
        size, grain = outer(sizes, j), outer(grains, j)
        vanishes = size < kept
        half = np.where(grain < kept, 0.5 * kept, 0.0)
        lost += outer(signs, j) * np.where(vanishes, size, half)
        spread += np.where(vanishes | (half == 0), 0.0, kept**2 - 4 * np.minimum(grain, kept) ** 2)
        grain[vanishes] = np.inf
        odd = (grain < lowest) | (odd ^ (grain == lowest))
        np.minimum(lowest, grain, out=lowest)
    more = _cut_sums(before, after, kept, lowest, odd, unit)
    return lost + more[0], (spread + more[1]) / 12


def _cut_sums(
    before: Array, after: Array, kept: Array, lowest: Array, odd: Array, unit: tensor_core.Unit
) -> tuple[Array, Array]:
    """Return mean loss and 12 times the variance of the accumulator's cut and the last rounding.

    lowest is the lowest bit that is set in any product; odd says whether an odd number of products
    has it.
    """
    held = _power(before) * 2.0**-unit.out_fraction_bits
    own = np.where(before == 0, np.inf, held)
    aligned = np.minimum(own, kept)
    ulp = _power(after) * 2.0**-unit.out_fraction_bits
    # the sum is a random multiple of `spacing`; with an odd number of lowest bits it loses half an
    # ulp on average
    spacing = np.where(odd, 0.0, 2 * lowest)
    spacing = np.where(lowest >= ulp, ulp, spacing)
    spacing = np.where(own <= lowest, own, spacing)
    spacing = np.where(np.minimum(own, lowest) < kept, kept, spacing)
    spacing = np.minimum(spacing, ulp)
    lost = np.sign(before) * 0.5 * (kept - aligned) + np.sign(after) * 0.5 * (ulp - spacing)
    return lost, kept**2 - aligned**2 + ulp**2 - spacing**2


def _power(x: np.ndarray, fmt: str = "fp32") -> np.ndarray:
    """Return 2 to the exponent that each number has in a format; 0 for 0."""
    in_steps = 2.0 ** formats.named(fmt).fraction_bits
    return np.where(x == 0, 0.0, rounding.quantum(x, fmt) * in_steps)
