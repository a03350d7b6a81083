"""Rounding, or a bug? One output against float64, with the evidence.

An output is ROUNDING if every test of `evidence` is passed, BUG if one fails at a rate of 1e-7, and
INCONCLUSIVE between (1e-4) or where there is nothing to judge by: inputs that are not finite.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from labkernels.numerics import (
    bounds,
    error_model,
    evidence,
    filters,
    groups,
    metrics,
    naming,
    oracle,
)
from labkernels.numerics.arrays import to_numpy
from labkernels.numerics.hypotheses import Match, Row
from labkernels.numerics.problem import Problem
from labkernels.numerics.rounds import Rounds

ROUNDING, BUG, INCONCLUSIVE = "ROUNDING", "BUG", "INCONCLUSIVE"


@dataclass(frozen=True, eq=False)
class Verdict:
    """The answer, its evidence and, for a bug, the mistakes that explain it.

    Shapes: error, bound, sigma, z [total_q, Hq, Dv]; z is error / sigma.
    """

    answer: str
    why: str
    findings: tuple[evidence.Finding, ...]
    matches: tuple[Match, ...]
    rounds: Rounds
    error: np.ndarray = field(repr=False)
    bound: np.ndarray = field(repr=False)
    sigma: np.ndarray = field(repr=False)

    @property
    def z(self) -> np.ndarray:
        """Errors in units of their expected standard deviation; 0 where both are 0."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.error == 0, 0.0, self.error / self.sigma)

    def summary(self) -> str:
        """Text: the answer, why, and every test with its limits."""
        lines = [f"{self.answer}: {self.why}"]
        lines += [f"  named: {match}" for match in self.matches]
        width = max((len(found.name) for found in self.findings), default=0) + 2
        lines.append(f"  {'test':<{width}}{'value':>10}{'odd above':>11}{'bug above':>11}")
        for found in self.findings:
            mark = "" if found.status == "rounding" else f"  <- {found.status}"
            place = f"  {found.where}" if found.where and mark else ""
            lines.append(
                f"  {found.name:<{width}}{found.value:>10.3g}{found.odd:>11.3g}{found.bug:>11.3g}"
                + mark
                + place
            )
        rounds = self.rounds
        lines.append(
            f"  taken as: P in {rounds.p_format}, out in {rounds.out_format}, denominator "
            f"{rounds.denominator or 'of either kind'}, exp2 {rounds.exp2}"
        )
        return "\n".join(lines)


def judge(problem: Problem, out, *, rounds: Rounds, lse2=None) -> Verdict:
    """Judge an output of a problem.

    Shapes: out [total_q, Hq, Dv], lse2 [total_q, Hq] or None.
    Raises: ValueError where shapes disagree.
    """
    out = _shaped("out", out, problem.out_shape)
    truth, truth_lse2 = (to_numpy(x) for x in oracle.attention(problem))
    error = metrics.difference(out, truth)
    bound, lse2_bound = (to_numpy(x) for x in bounds.both_bounds(problem, rounds))
    if not np.isfinite(bound).all():
        why = "an input is not finite, so nothing says what the output should be"
        sigma = np.full(bound.shape, np.nan)
        return Verdict(INCONCLUSIVE, why, (), (), rounds, error, bound, sigma)
    found = [evidence.of_bound(error, bound, "error / bound", problem)]
    if not np.any(problem.n_keys > 1):
        return _answered(tuple(found), (), rounds, error, bound, np.zeros(bound.shape))
    sigma = _sigma(problem, rounds, truth)
    if lse2 is not None:
        lse2 = _shaped("lse2", lse2, problem.out_shape[:2])
        off = metrics.difference(lse2, truth_lse2)
        found.append(evidence.of_bound(off, lse2_bound, "lse2 error / bound", problem))
    filtered, z, tests = _tests(problem, rounds, error, sigma)
    found += tests
    matches = ()
    if bugs := {item.name: item for item in found if item.status == "bug"}:
        row = _worst_row(problem, rounds, out, z, truth, sigma, filtered)
        shown = naming.of_output(problem, out, truth, sigma, rounds.out_format)
        matches = (
            *shown,
            *naming.of_lse2(lse2, truth_lse2, bugs),
            *(
                naming.of_row(row)
                or naming.of_filters(problem, error, sigma, bugs, filtered)
                or naming.of_factor(row)
            ),
            *([] if shown else naming.of_outliers(problem, error, sigma)),
        )
    return _answered(tuple(found), matches, rounds, error, bound, sigma)


def _sigma(problem: Problem, rounds: Rounds, truth) -> np.ndarray:
    """The error model's sigma, with the chain's bias as a part of it."""
    bias = evidence.chain_bias(problem.n_keys, rounds)[:, None, None] * truth
    return np.hypot(to_numpy(error_model.sigma(problem, rounds)), bias)


def _tests(problem: Problem, rounds: Rounds, error, sigma):
    """The filters, z over its slack, and the findings that need them."""
    some = np.where(sigma > 0, sigma, 1.0)
    each = [
        filters.matched_filters(problem, replace(rounds, denominator=kind), error, some)
        for kind in rounds.denominators
    ]
    # Of two possible denominators, what makes rounding look larger.
    filtered = replace(
        each[0],
        variance=np.max([found.variance for found in each], axis=0),
        coherence=np.max([found.coherence for found in each], axis=0),
        sharing=np.min([found.sharing for found in each], axis=0),
    )
    slack = evidence.variance_slack(filtered)
    live = np.broadcast_to(problem.n_keys[:, None] > 1, slack.shape)
    with np.errstate(invalid="ignore", divide="ignore"):
        z = np.where((error == 0) | ~live[..., None], 0.0, error / sigma)
        z = z / np.sqrt(slack)[..., None]
    simple = groups.simple(problem)
    found = evidence.of_spread(z, filtered, live, [*simple, *groups.tiles(problem)])
    found += evidence.of_outliers(z, filtered, problem)
    found += evidence.of_directions(filtered, slack, problem, rounds, simple)
    found += evidence.of_keys(filtered, slack, problem)
    return filtered, z, found


def _answered(found, matches, rounds, error, bound, sigma) -> Verdict:
    bugs = [item for item in found if item.status == "bug"]
    odd = [item for item in found if item.status == "odd"]
    if bugs:
        first = bugs[0]
        name = f"{matches[0].name} {matches[0].where}".strip() if matches else "no name known"
        why = (
            f"{name}; {len(bugs)} of {len(found)} tests exceed what rounding can do, first: "
            f"{first.name} {first.value:.3g} > {first.bug:.3g} {first.where}".rstrip()
        )
        return Verdict(BUG, why, found, matches, rounds, error, bound, sigma)
    if odd:
        why = f"{odd[0].name} is odd ({odd[0].value:.3g} > {odd[0].odd:.3g}), not impossible"
        return Verdict(INCONCLUSIVE, why, found, (), rounds, error, bound, sigma)
    why = f"{len(found)} tests, none beyond what rounding does"
    return Verdict(ROUNDING, why, found, (), rounds, error, bound, sigma)


def _worst_row(problem: Problem, rounds: Rounds, out, z, truth, sigma, filtered) -> Row | None:
    """The row whose finite errors stand out most from what rounding allows it."""
    finite = np.isfinite(z).all(-1) & (problem.n_keys[:, None] > 0)
    if not finite.any():
        return None
    score = np.where(finite, (z**2).mean(-1) / evidence.row_limits(filtered), -1.0)
    token, head = (int(i) for i in np.unravel_index(int(score.argmax()), score.shape))
    place = (token, head)
    return Row(problem, rounds, place, out[place], sigma[place], truth)


def _shaped(name: str, values, shape: tuple[int, ...]) -> np.ndarray:
    values = np.asarray(values, np.float64)
    if values.shape != shape:
        raise ValueError(f"{name}.shape = {values.shape}, allowed: {shape}")
    return values
