"""Tests of an output's errors, each with a limit and the rate at which rounding exceeds it.

z = e / sigma. Every limit is a quantile of what rounding gives, divided among all tests of its kind
(Bonferroni): a right output exceeds one of the BUG limits of a kind once in 1 / ALPHA_BUG runs, and
an ODD limit once in 1 / ALPHA_ODD.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from labkernels import formats
from labkernels.numerics.arrays import Array
from labkernels.numerics.error import bounds
from labkernels.numerics.error.execution import ANY_EXECUTION
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict import groupings, matched_filters
from labkernels.numerics.verdict.groupings import LANES, Grouping
from labkernels.numerics.verdict.matched_filters import DIRECTIONS, Filters
from labkernels.policy import NumericPolicy

ALPHA_BUG, ALPHA_ODD = 1e-7, 1e-4
SPREAD = "spread of z by all"
OUTLIER = 5.0
_TOKENS = 64  # that are looked at together
RIGHT_RMS = 1.15  # largest rms of z of right elements, as the error model claims 15 %
KEY_BETA = (0.7, 1.3)
# Where few keys share P's rounding, their binades depend on the running maximum: the variance of
# one key has a standard deviation of 0.46 of its mean and is at most 1 / 0.54 of its mean.
_KEY_DEVIATIONS, _KEY_MOST = 3 * 0.46, 1.85
# Limits over the largest value of the twins. If roundings are correlated, few of them decide: a
# value is the size of one normal draw, as each twin's is. It is 1.5 times the largest of ten other
# draws once in 50 times, 2.5 times once in 900, 3 times once in 3000. The factor 3 counts where the
# twins fail the test, so that roundings are correlated; elsewhere 2.5 does.
_ODD_TWINS, _BUG_TWINS = 1.5, {False: 2.5, True: 3.0}
_KNOWN_TWINS = 1.15, 1.5  # odd and bug where a twin has nearly the largest error of its kind
_SCALE_ROUNDING = 2.0**-19  # part of a score: rounding of scale_log2, truncation in its chain


@dataclass(frozen=True)
class Finding:
    """One test: its worst value, the limits for this value, and the place of the value."""

    name: str
    value: float
    odd: float
    bug: float
    where: str = ""
    widened: bool = False

    @property
    def status(self) -> str:
        """One of "rounding", "odd" and "bug"; NaN is a bug."""
        if not self.value <= self.bug:
            return "bug"
        return "rounding" if self.value <= self.odd else "odd"


def tests(
    problem: Problem, policy: NumericPolicy, error: Array, sigma: Array
) -> tuple[Filters, Array, list[Finding]]:
    """Return the filters, z over its slack, and the findings that need them."""
    filtered = matched_filters.matched_filters(problem, policy, error, sigma)
    return filtered, *of_error(problem, policy, error, sigma, filtered)


def of_error(
    problem: Problem, policy: NumericPolicy, error: Array, sigma: Array, filtered: Filters
) -> tuple[Array, list[Finding]]:
    """Return z over its slack, and the findings that need the filters."""
    slack = variance_slack(filtered)
    z, live = _over_slack(problem, error, sigma, slack)
    simple = groupings.simple(problem)
    found = of_spread(z, filtered, live, [*simple, *groupings.tiles(problem)])
    found += of_outliers(z, filtered, problem)
    found += of_directions(filtered, slack, problem, policy, simple)
    found += of_keys(filtered, slack, problem)
    return z, found


def rms(problem: Problem, error: Array, sigma: Array, slack: Array) -> float:
    """Return the value of SPREAD, which needs no filters of this error."""
    z, live = _over_slack(problem, error, sigma, slack)
    return math.sqrt((z**2).mean(-1).sum() / max(live.sum(), 1))


def _over_slack(
    problem: Problem, error: Array, sigma: Array, slack: Array
) -> tuple[np.ndarray, np.ndarray]:
    """Return z over its slack, 0 in rows of at most one key, and where rows have more."""
    live = np.broadcast_to(problem.n_keys[:, None] > 1, slack.shape)
    with np.errstate(invalid="ignore", divide="ignore"):
        z = error / sigma
        z[(error == 0) | ~live[..., None]] = 0.0
        z /= np.sqrt(slack)[..., None]
    return z, live


def widened(test: Finding, of_twins: float, *, known: bool = False) -> Finding:
    """Return the test with limits beyond the largest value of right kernels on the same inputs.

    Where these exceed the odd limit, which independent roundings do once in ten thousand runs, the
    roundings are not independent, and the limit's derivation does not hold. known: no right kernel
    of this kind has much larger errors than these, which are not random.
    """
    mean = 1.0 if test.name.startswith("spread") else 0.0  # the value of a perfect model
    fails = of_twins > test.odd
    factors = _KNOWN_TWINS if known else (_ODD_TWINS, _BUG_TWINS[fails])
    odd, bug = (
        max(limit, mean + times * (of_twins - mean))
        for limit, times in zip((test.odd, test.bug), factors, strict=True)
    )
    return replace(test, odd=odd, bug=bug, widened=fails)


def variance_slack(filters: Filters) -> np.ndarray:
    """Return the factor by which a right row's variance may exceed the model's.

    Shapes: [total_q, Hq].
    """
    return slack(filters.sharing)


def slack(sharing: Array) -> np.ndarray:
    """Return variance_slack by how many keys share the rounding of P. Shapes: as sharing."""
    few = 1 + _KEY_DEVIATIONS / np.sqrt(np.maximum(sharing, 1.0))
    return RIGHT_RMS**2 * np.minimum(few, _KEY_MOST)


def chain_bias(n_keys: Array, policy: NumericPolicy) -> np.ndarray:
    """Return the relative bias of o that truncating accumulators may cause, in one chain of 16-key
    steps, and four roundings that all channels share: of l, of the merge, of the division.

    P in fp32 is for CUDA cores, which round to nearest and have no bias; sigma has their errors.
    Source: 0.24 to 0.58 of 2^-23 per step measured for same-sign V; allowed 1. Shapes: as n_keys.
    """
    steps = np.ceil(np.asarray(n_keys, np.float64) / 16)
    return (steps * 2.0**-23 + 2.0**-21) * (policy.p != "fp32")


def of_bound(error: Array, bound: Array, name: str, problem: Problem) -> Finding:
    """Return the largest error over its bound: rounding errors never exceed 1."""
    ratio = np.empty(error.shape)
    for part in _parts(len(error)):
        with np.errstate(divide="ignore", invalid="ignore"):
            np.divide(np.abs(error[part]), bound[part], out=ratio[part])
        ratio[part][error[part] == 0] = 0.0
    return _largest(name, ratio, 1.0, 1.0, _place_of(problem))


def of_spread(z: Array, filters: Filters, live: Array, groupings: list[Grouping]) -> list[Finding]:
    """Return the rms of z per group of rows, per channel and per lane, against its quantile.

    The mean of z^2 over correlated errors counts as a chi-square over its nu = 2 / variance degrees
    of freedom. Source: quantiles by Wilson and Hilferty. Shapes: z [total_q, Hq, Dv] over slack.
    """
    found = []
    row, of_channels = np.zeros(live.shape), np.zeros(z.shape[-1])
    for part in _parts(len(z)):
        squares = np.where(live[part][..., None], z[part] ** 2, 0.0)
        row[part] = squares.mean(-1)
        of_channels += squares.sum((0, 1))
    for group in groupings:
        count = np.maximum(group.sums(live), 1)
        variance = group.sums(2 * filters.coherence * filters.repeats * live) / count**2
        name = f"spread of z by {group.by}"
        found.append(_spread(name, group.sums(row) / count, variance, group.words))
    count = max(live.sum(), 1.0)
    mean = of_channels / count
    repeats = filters.repeats * live
    variance = np.full(mean.shape, 2 * repeats.sum() / count**2)
    found.append(_spread("spread of z by channel", mean, variance, lambda i: f"channel {i}"))
    lanes = np.array([mean[lane::LANES].mean() for lane in range(min(LANES, len(mean)))])
    # Everything that a row's channels share may lie in one lane.
    shared = np.minimum(1.0, LANES**2 * filters.coherence)
    variance = np.full(lanes.shape, (2 * shared * repeats).sum() / count**2)
    found.append(
        _spread("spread of z by lane", lanes, variance, lambda i: f"channels {i} modulo {LANES}")
    )
    return found


def of_outliers(z: Array, filters: Filters, problem: Problem) -> list[Finding]:
    """Return the largest |z|, and how many rows hold one beyond 5, against a Poisson count.

    Of normal errors 5.7e-7 lie beyond 5. Rows are counted, since the errors of a row come together.
    """
    n = max(z.size, 1)
    odd, bug = (math.sqrt(2 * math.log(2 * n / alpha)) for alpha in (ALPHA_ODD, ALPHA_BUG))
    size = np.abs(z)
    largest = _largest("largest |z|", size, odd, bug, _place_of(problem))
    hit = (size > OUTLIER).any(-1)
    rows_hit = float((hit / filters.repeats).sum())
    expected = n * 2 * NormalDist().cdf(-OUTLIER)
    odd, bug = (_poisson_limit(expected, alpha) for alpha in (ALPHA_ODD, ALPHA_BUG))
    rows = [problem.row_name(*place) for place in np.argwhere(hit)[:3].tolist()]
    return [largest, Finding("rows with |z| > 5", rows_hit, odd, bug, "; ".join(rows))]


def of_directions(
    filters: Filters,
    slack: Array,
    problem: Problem,
    policy: NumericPolicy,
    groupings: list[Grouping],
) -> list[Finding]:
    """Return the z of beta along each direction, per group of rows, beyond what is allowed.

    Allowed is a part of o: the chain's truncation bias, the largest error of exp2, whose
    polynomials err along the score, and the bias of rounding to nearest. For the scale its rounding
    is allowed too. A truncated P in fp32 is not tested: its bias is no larger than the chain's.
    """
    along, power = filters.along, filters.power
    variance = filters.variance * slack * filters.repeats
    always = bounds.EXP2_ERROR[policy.exp2] + _nearest_bias(policy)
    bias = chain_bias(problem.n_keys, policy)[:, None] + always
    found = []
    for i, name in enumerate(DIRECTIONS):
        if name == "P truncated" and policy.p == "fp32":
            continue
        if name == "scale":
            allowed = (_scale_rounding(problem) + bias) * power[i]
        else:  # the allowance is a part of o, whatever the length of this direction
            allowed = bias * np.sqrt(np.maximum(power[0] * power[i], 0.0))
        for group in groupings:
            total = np.abs(group.sums(along[i])) - group.sums(allowed)
            noise = np.sqrt(np.maximum(group.sums(variance[i]), 1e-300))
            z = np.maximum(total, 0.0) / noise
            odd, bug = (_normal_limit(alpha, z.size) for alpha in (ALPHA_ODD, ALPHA_BUG))
            words = group.words
            found.append(
                _largest(f"{name} by {group.by}", z, odd, bug, lambda at, w=words: w(at[0]))
            )
    return found


def _scale_rounding(problem: Problem) -> float:
    """Return the part by which all scores may be off, with tanh.approx where they are capped."""
    capped = problem.variant is not None and problem.variant.soft_cap is not None
    return _SCALE_ROUNDING + (ANY_EXECUTION.tanh_error[0] if capped else 0.0)


def _nearest_bias(policy: NumericPolicy) -> float:
    """Return the relative bias of rounding P and o to nearest.

    Where the density of values falls, the mean in a rounding cell lies below the cell's middle, by
    spacing^2 / 12 times the density's relative slope. u^2 is twice that of a normal density.
    """
    out, p = formats.named(policy.out), formats.named(policy.p.removesuffix("x2"))
    return out.unit_roundoff**2 + p.unit_roundoff**2


def of_keys(filters: Filters, slack: Array, problem: Problem) -> list[Finding]:
    """Return the z of a key left out (beta 1) or counted twice (beta -1), over all keys and rows.

    A key's own rounding error lies along the same direction, with a beta of u, so that only betas
    near 1 in size count. Channels that are rounded alike have equal errors, which add up.
    """
    found = []
    slack = slack * filters.alike
    slack_of = np.ones(problem.batch)
    np.maximum.at(slack_of, problem.request_of, (slack * filters.repeats).max(axis=1))
    tests = int(problem.n_keys.sum()) * slack.shape[1]
    for keys, by, allowed, n, words in (
        (filters.row, "row", slack, tests, lambda at: problem.row_name(*at)),
        (filters.sample, "sample", slack_of, problem.kv_lens.sum(), lambda at: f"sample {at[0]}"),
    ):
        near = (np.abs(keys.beta) >= KEY_BETA[0]) & (np.abs(keys.beta) <= KEY_BETA[1])
        z = np.where(near, np.abs(keys.z), 0.0) / np.sqrt(allowed)
        odd, bug = (_normal_limit(alpha, float(n)) for alpha in (ALPHA_ODD, ALPHA_BUG))
        found.append(_largest(f"one key, by {by}", z, odd, bug, words))
    return found


def row_limits(filters: Filters) -> np.ndarray:
    """Return the mean z^2 that a row alone may have at ALPHA_BUG. Shapes: [total_q, Hq]."""
    n = max(filters.coherence.size, 1)
    return _chi_square_limit(2 * filters.coherence, _normal_limit(ALPHA_BUG, n))


def _spread(name: str, mean: Array, variance: Array, words: Callable[[int], str]) -> Finding:
    """Return the rms of z that is largest against its limit, with that limit."""
    odd, bug = (
        _chi_square_limit(variance, _normal_limit(alpha, mean.size))
        for alpha in (ALPHA_ODD, ALPHA_BUG)
    )
    i = int(np.argmax(mean / bug))
    return Finding(name, math.sqrt(mean[i]), math.sqrt(odd[i]), math.sqrt(bug[i]), words(i))


def _chi_square_limit(variance: Array, q: float) -> np.ndarray:
    """Return a quantile of a chi-square over its degrees of freedom nu, by its variance 2 / nu."""
    part = np.maximum(variance, 1e-300) / 9
    return (1 - part + q * np.sqrt(part)) ** 3


def _normal_limit(alpha: float, tests: float) -> float:
    return -NormalDist().inv_cdf(alpha / (2 * max(tests, 1)))


def _poisson_limit(mean: float, alpha: float) -> float:
    """Return the least count that a Poisson variable exceeds with probability alpha or less."""
    count, term = 0, math.exp(-min(mean, 700.0))
    below = term
    while 1 - below > alpha:
        count += 1
        term *= mean / count
        below += term
    return float(count)


def _largest(
    name: str, values: Array, odd: float, bug: float, words: Callable[..., str]
) -> Finding:
    values = np.asarray(values, np.float64)
    if values.size == 0:
        return Finding(name, 0.0, odd, bug)
    i = int(np.argmax(values))
    if np.isnan(values.flat[i]):
        i = int(np.argmax(np.where(np.isnan(values), np.inf, values)))
    place = [int(x) for x in np.unravel_index(i, values.shape)]
    return Finding(name, float(values.flat[i]), odd, bug, words(place))


def _parts(tokens: int) -> Iterator[slice]:
    """Yield parts of all tokens, since an array of some lies in a core's cache."""
    return (slice(first, first + _TOKENS) for first in range(0, tokens, _TOKENS))


def _place_of(problem: Problem) -> Callable[[list[int]], str]:
    """Return a function that puts [token, head] or [token, head, channel] into words."""

    def words(place: list[int]) -> str:
        channel = f", channel {place[2]}" if len(place) > 2 else ""
        return problem.row_name(*place[:2]) + channel

    return words
