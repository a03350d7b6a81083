"""Honest arithmetic that rounds more than the formats need: it makes an output LESS EXACT.

Each way has twins of its own: right kernels that compute in this way on the same inputs. A way
explains an output if no test tells the output from the twins.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from labkernels import formats
from labkernels.numerics import rounding
from labkernels.numerics.arrays import ZERO, Array, moved, namespace, to_numpy
from labkernels.numerics.error import sigma as error_sigma
from labkernels.numerics.truth.frame import Frame
from labkernels.numerics.truth.problem import Problem, keys_of
from labkernels.numerics.truth.rows import Rows
from labkernels.numerics.truth.threads import over_rows
from labkernels.numerics.verdict import parts, significance, twins
from labkernels.numerics.verdict.matched_filters import Filters
from labkernels.numerics.verdict.parts import Errors
from labkernels.numerics.verdict.significance import Finding
from labkernels.numerics.verdict.twins import REFERENCES, SIXTEEN, STEADY, TWINS, Twin, is_fine
from labkernels.policy import NumericPolicy


@dataclass(frozen=True)
class Way:
    """Arithmetic in words, the policy with the nearest error model, and kernels that compute so.

    everywhere: it counts only where the errors of most rows are as large as those of one kernel.
    """

    words: str
    policy: NumericPolicy
    kernels: tuple[Twin, ...] = TWINS
    everywhere: bool = False


_ROWS, _AS_MUCH = 0.25, 0.6  # a quantile of rows, and the least part of the kernels' rms there
_LEAST_SUMMED = 16  # keys of one product of tensor cores
_SMALL = 16.0  # times the error of P in bf16 with a cubic exp2
_LOGS = (Twin(1 << 30, logs=True), Twin(128, kept=True), Twin(16, kept=True))
_RING = tuple(
    Twin(n, kept=True, differences=True, backward=b) for n in (12, 64) for b in (False, True)
)
CENTRED = tuple(Twin(n, centred=True, backward=b) for n in (64, 1 << 30) for b in (False, True))
# P in 16 bits has errors that V less its mean turns into others; a row's largest weight has one.
_CENTRED_AND_ROUNDED = CENTRED + tuple(
    replace(twin, centred=True) for twin in (*STEADY, *REFERENCES[2:4])
)
TURNED = tuple(Twin(n, turned=True, backward=b) for n in (64, 1 << 30) for b in (False, True))
# What a kernel may do to V: words, whether channels share their roundings, and twins that do it.
_OF_VALUES = (
    ("takes the mean of V off and adds it back", False, CENTRED),
    ("mixes the channels of V and unmixes those of the output", True, TURNED),
)
_FAINT_RMS, _FAINT_MOST = 32.0, 256.0  # limits of z for an fp32 error that may be rounding's
_FAR = 5.0  # least |z| of an element whose error a mean of V has to explain
_FARTHER = 3.0  # times the rms error of twins: farther, no factor of theirs explains an error
_ABOVE = 4.5  # log2 units by which the number that stands for a row's maximum may exceed it
_SIGMAS = 6.0  # most standard deviations of P's roundings about a mean that an error may have
_ULPS = 8.0  # most roundings of the size of V that such an element may have
_SMALL_WEIGHTS = tuple(
    Twin(n, start=-_ABOVE, rounded_sum=r) for n, r in ((1 << 30, False), (64, True))
)
_STEPS = (Twin(16, kept=True), Twin(4, kept=True), Twin(1, kept=True))


def _of_products(factors: str) -> tuple[Twin, ...]:
    return tuple(
        Twin(block, products=factors, values_only=values_only)
        for block, values_only in ((64, False), (1 << 30, False), (128, True))
    )


def _of_partials(fmt: str) -> tuple[Twin, ...]:
    return tuple(Twin(block, partials=fmt) for block in (64, 256, 1024))


def ways(policy: NumericPolicy) -> list[list[Way]]:
    """Return the ways that may explain an output that a kernel of this policy cannot give.

    They come in groups: a later group counts only where no way of an earlier one explains.
    """
    fine = is_fine(policy)
    found = []
    if fine:
        found = [
            Way("weights or merges by log-sum-exps in fp32", policy, _LOGS),
            Way("an output normalised at every step, by log-sum-exps in fp32", policy, _STEPS),
        ]
        found.append(Way("partial outputs merged by their difference, as a ring's", policy, _RING))
        found.append(Way("products of two bf16 parts", policy, _of_products("bf16x3")))
        found.append(Way("products in tf32", policy, _of_products("tf32")))
        found.append(Way("products cut to tf32", policy, _of_products("tf32 cut")))
        found.append(Way("exp2 by a cubic polynomial", replace(policy, exp2="poly3")))
    narrow = [
        Way(f"P rounded to {fmt}", replace(policy, p=fmt))
        for fmt in SIXTEEN
        if formats.coarser(fmt, policy.p)
    ]
    if policy.p == "fp16":
        words = "weights so small that many have fewer bits in fp16"
        narrow.append(Way(words, policy, _SMALL_WEIGHTS))
    if policy.out not in SIXTEEN:
        return [found + narrow]
    # Where inputs have 16 bits, products in tf32 round P alone, and fp16 rounds P as they do.
    return [narrow + _stored(policy), found]


def _stored(policy: NumericPolicy) -> list[Way]:
    """Return partial outputs in the output's format, with P in more bits or in as many."""
    found = [Way(f"partial outputs in {policy.out}", policy, _of_partials(policy.out))]
    if formats.coarser(policy.out, policy.p):
        as_input = replace(policy, p=policy.out)
        words = f"P and partial outputs in {policy.out}"
        found.append(Way(words, as_input, _of_partials(policy.out)))
    return found


def of_sums(policy: NumericPolicy) -> list[list[Way]]:
    """Return partial outputs and sums of P V in 16 bits, as `ways`.

    Sums err so much that mistakes are sought first.
    """
    if policy.out not in SIXTEEN:
        return []
    found, words = _stored(policy), f"sums of P V in {policy.out} after each tile"
    for block, normalised in itertools.product((_LEAST_SUMMED, 32, 64, 128), (False, True)):
        twin = Twin(block, summed=policy.out, normalised=normalised)  # each rounds other numbers
        found.append(Way(words, policy, (twin, replace(twin, backward=True)), True))
    return [found]


def may_be_of_sums(of: Errors) -> bool:
    """Return whether an error is no larger than a rounding of the sum for every 16 keys."""
    steps, values = of.problem.n_keys.max() / _LEAST_SUMMED, np.abs(to_numpy(of.problem.v_pool))
    most = steps * formats.named(of.policy.out).unit_roundoff * values.max()
    return bool(np.abs(to_numpy(of.error)).max() <= most)


def is_everywhere(of: Errors, way: Way) -> bool:
    """Return whether most rows err as much as those of one of a way's kernels, if that counts.

    A sum errs by the order of its keys: little after a row's largest weight, much before.
    """
    outs = twins.outputs(of.problem, of.policy, way.kernels) if way.everywhere else ()
    squares = ((x**2).mean(-1) for x in (of.error, *(out - of.truth for out in outs)))
    own, *theirs = (np.quantile(x, _ROWS) for x in squares)
    return not theirs or any(own >= _AS_MUCH**2 * x for x in theirs)


def as_with_values(of: Errors) -> str:
    """Return words if what a kernel may do to V explains the errors; else ""."""
    for words, more, kernels in of_values(of.problem, of.policy, of.error, of.sigma):
        if _explains(of, more, kernels):
            return f"as a kernel is that {words}"
    return ""


def _explains(of: Errors, more: Array, kernels: tuple[Twin, ...]) -> bool:
    """Return whether no test tells errors of sigma and more from those of the kernels."""
    sigma = np.hypot(of.sigma, more)
    filtered, _, tests = significance.tests(of.problem, of.policy, of.error, sigma)
    given = of.problem, of.policy, of.truth, sigma, tests, kernels
    tests = beside_twins(*given, filtered=filtered)[0]
    return all(test.status != "bug" for test in tests)


def beside_twins(
    problem: Problem,
    policy: NumericPolicy,
    truth: Array,
    sigma: Array,
    tests: list[Finding],
    kernels: tuple[Twin, ...],
    *,
    known: bool = False,
    filtered: Filters | None = None,
) -> tuple[list[Finding], dict[str, float]]:
    """Return the tests with limits beyond what right kernels reach, and the latter per test.

    known: as `significance.widened` takes it. filtered: those of the error, if no other test than
    SPREAD matters where that is far beyond what these kernels reach.
    """
    worst = dict.fromkeys((test.name for test in tests), 0.0)
    errors: Iterable[Array] = (out - truth for out in twins.outputs(problem, policy, kernels))
    if filtered is not None and parts.of_problem(problem) is None:  # it has little to keep
        errors, slack = list(errors), significance.variance_slack(filtered)
        most = max(significance.rms(problem, error, sigma, slack) for error in errors)
        spread = next(test for test in tests if test.name == significance.SPREAD)
        if spread.value > max(significance.widened(spread, most).bug, _FARTHER * most):
            worst[significance.SPREAD], errors = most, []
    for error in errors:
        for test in significance.tests(problem, policy, error, sigma)[2]:
            worst[test.name] = max(worst[test.name], test.value)
    return [significance.widened(test, worst[test.name], known=known) for test in tests], worst


def of_values(
    problem: Problem, policy: NumericPolicy, error: Array, sigma: Array
) -> Iterator[tuple[str, np.ndarray, tuple[Twin, ...]]]:
    """Yield what a kernel may do to V that explains each element that is far from the truth.

    It comes in words, with the standard deviation that it adds to sigma, and twins that do it.
    Nothing is far in most outputs. Shapes: error, sigma and what is added [total_q, Hq, Dv].
    """
    far = np.abs(error) > _FAR * sigma
    part = parts.of_problem(problem)
    if not far.any() or (part is not None and not _may_be_of_values(part, policy, error, sigma)):
        return
    off = np.abs(error)[far]
    largest = float(abs(problem.v_pool).max())
    if (off <= _ULPS * 2.0**-24 * largest).all():
        for words, shared, kernels in _OF_VALUES:
            more = _of_largest(problem, error.shape, shared=shared)
            if (off <= _ULPS * more[far]).all():
                yield words, more, kernels
    if (
        policy.p in SIXTEEN
        and (off <= _SIGMAS * formats.named(policy.p).unit_roundoff * 2 * largest).all()
    ):
        rounded, more = _about_mean(problem, policy), _of_largest(problem, error.shape)
        if (off <= _SIGMAS * rounded[far] + _ULPS * more[far]).all():
            yield _OF_VALUES[0][0], np.hypot(rounded, more), _CENTRED_AND_ROUNDED


def _about_mean(problem: Problem, policy: NumericPolicy) -> np.ndarray:
    """Return the standard deviation that P's rounding has about the mean of V, in any row's sum.

    The weight of a row's maximum is rounded, as it is where another number stands for that.
    Shapes: [total_q, Hq, Dv].
    """
    least = 2.0**_ABOVE * formats.named(policy.p).smallest_subnormal

    def of_rows(rows: Rows) -> Array:
        alone, total = ZERO, ZERO
        for _, _, p, values in Frame(rows, narrow=False).weighted_blocks():
            xp = namespace(p)
            spacing = xp.where(p > 0, xp.clip(rounding.quantum(p, policy.p), least, None), 0.0)
            alone = alone + (spacing**2 / 12).sum(-1)[..., None]
            total = total + spacing**2 / 12 @ values
        heads = range(rows.kv_first, rows.kv_last)
        means = [keys_of(problem, "v", head, rows.request).mean(0) for head in heads]
        mean, width = moved(np.stack(means)[:, None], rows.o), problem.out_shape[-1]
        found = total[..., width:] - 2 * mean * total[..., :width] + mean**2 * alone
        return namespace(rows.o).clip(found, 0.0, None) ** 0.5 / rows.softmax.divisor

    found = problem.zeros(*problem.out_shape)
    for rows, of_these in over_rows(problem, of_rows):
        rows.put(found, of_these)
    return to_numpy(found)


def _may_be_of_values(part: parts.Part, policy: NumericPolicy, error: Array, sigma: Array) -> bool:
    """Return whether a part's far elements, if there are some, have such an explanation."""
    own = part.of(error), part.of(sigma)
    found = of_values(part.problem, policy, *own)
    return next(found, None) is not None or not (np.abs(own[0]) > _FAR * own[1]).any()


def _of_largest(problem: Problem, shape: tuple[int, ...], *, shared: bool = False) -> np.ndarray:
    """Return fp32's rounding of the largest |V| of each head and channel: [total_q, Hq, Dv].

    shared: each channel has the largest of all.
    """
    most = np.zeros(shape)
    for request, head in np.ndindex(problem.batch, problem.kv_heads):
        rows = slice(*(int(problem.q_ends[request + i]) for i in (0, 1)))
        heads = slice(head * problem.group, (head + 1) * problem.group)
        values = np.abs(keys_of(problem, "v", head, request)).max(0, initial=0.0)
        most[rows, heads] = 2.0**-24 * (values.max(initial=0.0) if shared else values)
    return most


def is_small(of: Errors) -> bool:
    """Return whether an error is at most _SMALL times the rms error of the coarsest way.

    In a large problem the coarsest way's error over sigma is that of a part.
    """
    part, policy = of.part() or of, replace(of.policy, p="bf16", exp2="poly3")
    coarsest = to_numpy(error_sigma.sigma(part.problem, policy))
    times = (of.sigma**2).mean() / (part.sigma**2).mean()
    return bool((of.error**2).mean() <= _SMALL**2 * (coarsest**2).mean() * times)


def faintly(policy: NumericPolicy, error: Array, sigma: Array) -> str:
    """Return words for an error in fp32 of up to 32 times rounding's; else "".

    The model does not know the order of a sum, and where inputs repeat, the sum's roundings are not
    independent. A mistake changes an output by orders of magnitude more than an fp32 rounding.
    """
    if not is_fine(policy) or policy.out != "fp32":
        return ""
    with np.errstate(invalid="ignore", divide="ignore"):
        z = np.where(error == 0, 0.0, error / sigma)
    times = float(np.sqrt((z**2).mean()))
    if not (times <= _FAINT_RMS and np.abs(z).max() <= _FAINT_MOST):
        return ""
    return f"errors are {times:.2g} times as large as rounding's, in sums of another order"
