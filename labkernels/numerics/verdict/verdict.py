"""Rounding, or a bug? One output against float64, with the evidence.

An output is ROUNDING if it is the float64 answer rounded once, or if it passes every test of
`significance`. It is BUG if it exceeds a limit that right outputs exceed once in 10^7 runs, and
right kernels on the same inputs do not. It is INCONCLUSIVE if it exceeds only limits that right
outputs exceed once in 10^4 runs, or if inputs are not finite, so that no answer is known. It is
LESS EXACT if more was rounded than the formats need, as scores in 16 bits or an accumulator in
fp16, or if an error is like rounding's but larger, and alike everywhere.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from labkernels.numerics import metrics, rounding
from labkernels.numerics.arrays import Array, to_numpy
from labkernels.numerics.error import bounds
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.truth.threads import one_per_product
from labkernels.numerics.verdict import (
    first_look,
    less_exact,
    matched_filters,
    significance,
    twins,
)
from labkernels.numerics.verdict.diagnosis import caps, search, stored
from labkernels.numerics.verdict.diagnosis.match import Match, Region
from labkernels.numerics.verdict.matched_filters import Filters
from labkernels.numerics.verdict.parts import Errors
from labkernels.numerics.verdict.significance import Finding
from labkernels.numerics.verdict.twins import Twin
from labkernels.policy import NumericPolicy

ROUNDING, BUG, INCONCLUSIVE = "ROUNDING", "BUG", "INCONCLUSIVE"
LESS_EXACT = "LESS EXACT"
_AS_LARGE = 0.3  # least share of a coarser policy's error: else a coarse one would excuse any error
_EVEN_MOST = 64.0  # times rounding's error, that is six bits less: the limit of LESS EXACT
_WIDEST = 16.0  # largest spread of z that another reference of the weights might cause
_NO_MATCH: tuple[Match, ...] = ()
_PART_SLACK = 1.5  # a part's errors may be so many times larger or smaller than those of all rows
_A_LITTLE_MORE = 2.0  # times a way's error, as a few more roundings of the same size give
_NEAR = "every element is within one ulp of the float64 answer, and no known mistake fits"
_NO_EDIT, _NOT_SOUGHT = "no edit explains it", "its name was not sought"
_ASK = "one output does not say more: give me the kernel, labkernels probe module:function"
_Looks = Callable[[NumericPolicy], tuple[Array, Filters]]
_NEARLY_ONE = 2.0**-7  # as a scale that is rounded to 16 bits may err
_FACTORS = ("V", "output")  # a factor of these is as near to rounding as to a mistake


@dataclass(frozen=True, eq=False)
class Verdict:
    """The answer, its evidence and, for a bug, where it is and what explains it.

    Shapes: error, bound, sigma, z [total_q, Hq, Dv]; z is error / sigma. matches: mistakes that
    explain the errors equally well, at most three. region: where the output went wrong, None where
    no place was sought. note: how the tensors were read, if the caller did not say. problem, out:
    what was judged, if the caller keeps them.
    """

    answer: str
    why: str
    findings: tuple[significance.Finding, ...]
    matches: tuple[Match, ...]
    policy: NumericPolicy
    error: np.ndarray = field(repr=False)
    bound: np.ndarray = field(repr=False)
    sigma: np.ndarray = field(repr=False)
    note: str = ""
    region: Region | None = None
    problem: Problem | None = field(default=None, repr=False)
    out: np.ndarray | None = field(default=None, repr=False)

    @property
    def z(self) -> np.ndarray:
        """Errors in units of their expected standard deviation; 0 where both are 0."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.error == 0, 0.0, self.error / self.sigma)

    def summary(self, *, verbose: bool = True) -> str:
        """Return the verdict in a sentence, the place, what explains it, and the main evidence.

        verbose: every test with its limits, too.
        """
        lines = [f"{self.answer}: {self.why}"] + [f"  read as: {self.note}"] * bool(self.note)
        if self.region is not None:
            lines.append(f"  where: {self.region.words}")
        for i, match in enumerate(self.matches):
            lines.append(f"  {'equally good' if i else 'named'}: {match}")
        sought = not self.why.startswith(_NOT_SOUGHT)
        if self.answer == BUG and sought and not any(match.edit for match in self.matches):
            lines.append(f"  {_ASK}")
        lines += self._evidence()
        return "\n".join(lines + self._every_test() * verbose)

    def _evidence(self) -> list[str]:
        """Return lines for the largest error over its bound, the worst test, and widened limits."""
        wrong = [test for test in self.findings if test.status == "bug"]
        lines = []
        if self.findings and wrong:
            first = self.findings[0]
            lines.append(f"  largest {first.name}: {first.value:.3g} {first.where}".rstrip())
            most = max(wrong, key=lambda test: test.value / test.bug)
            lines.append(
                f"  furthest beyond rounding: {most.name}, {most.value:.3g} where {most.bug:.3g} "
                f"is allowed {most.where}".rstrip()
            )
        moved = [test.name for test in self.findings if test.widened]
        if moved:
            shown = ", ".join(moved[:3]) + (f" and {len(moved) - 3} more" if len(moved) > 3 else "")
            lines.append(
                f"  not applicable as they stand, since right kernels fail them on these inputs, "
                f"and held against those: {shown}"
            )
        return lines

    def _every_test(self) -> list[str]:
        width = max((len(found.name) for found in self.findings), default=0) + 2
        lines = [f"  {'test':<{width}}{'value':>10}{'odd above':>11}{'bug above':>11}"]
        for found in self.findings:
            mark = "" if found.status == "rounding" else f"  <- {found.status}"
            place = f"  {found.where}" if found.where and mark else ""
            lines.append(
                f"  {found.name:<{width}}{found.value:>10.3g}{found.odd:>11.3g}{found.bug:>11.3g}"
                + mark
                + place
            )
        policy = self.policy
        lines.append(
            f"  taken as: P in {policy.p}, out in {policy.out}, denominator "
            f"{policy.denominator or 'of either kind'}, exp2 {policy.exp2}"
        )
        return lines


@np.errstate(all="ignore")  # values that are not finite are reported, without a warning
@one_per_product()
def decide(
    problem: Problem,
    out: Array,
    *,
    policy: NumericPolicy,
    lse2: Array | None = None,
    named: bool = True,
) -> Verdict:
    """Judge an output of a problem.

    Shapes: out [total_q, Hq, Dv], lse2 [total_q, Hq] or None. named: if not, LESS EXACT is BUG.
    Raises: ValueError where shapes disagree.
    """
    out = _shaped("out", out, problem.out_shape)
    seen = first_look.look(problem, policy, out)
    truth, error, bound, once = seen.truth, seen.error, seen.bound, seen.once
    if not np.isfinite(bound).all():
        why = "an input is not finite, so nothing says what the output should be"
        none = np.full(bound.shape, np.nan)
        return Verdict(INCONCLUSIVE, why, (), (), policy, error, bound, none)
    found, of_lse2 = [significance.of_bound(error, bound, "error / bound", problem)], _NO_MATCH
    if lse2 is not None:
        more, of_lse2 = _of_lse2(problem, _shaped("lse2", lse2, problem.out_shape[:2]), seen)
        found += [more]
    if once or not np.any(problem.n_keys > 1):
        sigma = rounding.quantum(truth, policy.out) / 12**0.5 if once else np.zeros(bound.shape)
        why = "every element is the float64 answer, rounded once" if once else ""
        return _answered(tuple(found), of_lse2, policy, error, bound, sigma, why=why)
    sigma, filtered = seen.filtered()
    z, tests = significance.of_error(problem, policy, error, sigma, filtered)
    of, beyond = Errors(problem, policy, truth, error, sigma), found[0].status == "bug"
    if not beyond and any(test.status != "rounding" for test in tests):
        tests = _widened(of, tests)
    cap = () if beyond else caps.left_on(of, wrong=any(test.status == "bug" for test in tests))
    found += [*tests, *cap[:1]]
    bugs = {item.name for item in found if item.status == "bug"} - {"lse2 error / bound"}
    if not bugs:
        return _answered(tuple(found), of_lse2, policy, error, bound, sigma)
    within_an_ulp = not beyond and first_look.ulps_off(out, truth, policy.out) <= 1
    if not (named or within_an_ulp):  # it is refused, whatever is found
        return _answered(tuple(found), (), policy, error, bound, sigma, why=_NOT_SOUGHT)
    of_values = "" if cap else less_exact.as_with_values(of)
    ways = [] if cap else less_exact.ways(policy)
    honest = functools.cache(lambda: of_values or _as_if(of, ways))
    faint = "" if beyond or of_values else less_exact.faintly(policy, error, sigma)
    if faint:
        return _answered(tuple(found), of_lse2, policy, error, bound, sigma, even=honest() or faint)
    given = problem, policy, (out, truth, sigma, z), filtered
    wrong = search.of_output(*given, shared=any(n.endswith("by all") for n in bugs), honest=honest)
    matches = wrong.matches or cap[1:]
    if not matches and within_an_ulp:
        return _answered(tuple(found), (), policy, error, bound, sigma, why=_NEAR, sound=True)
    even = honest() if matches and _is_factor(matches[0]) else ""
    if not matches and np.isfinite(error).all():
        large, kinds = less_exact.may_be_of_sums(of), less_exact.of_sums(policy)
        sums = of_values or _as_if(of, kinds, large=large)
        even = sums or _evenly(of, z, beyond) or honest()
    shown = of_lse2 if even else [*matches, *(x for x in of_lse2 if x.edit)]
    answer = _answered(tuple(found), shown, policy, error, bound, sigma, even=even)
    return replace(answer, region=wrong.region)


def _of_lse2(
    problem: Problem, lse2: Array, seen: first_look.Look
) -> tuple[Finding, tuple[Match, ...]]:
    """Return the finding on an LSE, and its mistake; one without an edit is only some wrong LSE."""
    # some libraries give a row without keys -inf, though its head has a sink
    empty = (problem.n_keys == 0)[:, None] & (lse2 == -np.inf)
    off = metrics.difference(lse2, np.where(empty, lse2, seen.lse2))
    found = significance.of_bound(off, seen.lse2_bound, "lse2 error / bound", problem)
    if found.status != "bug":
        return found, _NO_MATCH
    wrong = stored.of_lse2(problem, lse2, seen.lse2, seen.lse2_bound)
    return found, (wrong,) if wrong else _NO_MATCH


def _is_factor(match: Match) -> bool:
    """Return whether a mistake is one factor of V or the output, or near to 1, as roundings are."""
    edit = match.edit
    if edit is None or edit.operation != "times" or not edit.numbers:
        return False
    return edit.operand in _FACTORS or abs(float(edit.numbers[0]) - 1) < _NEARLY_ONE


def _widened(of: Errors, tests: list[Finding]) -> list[Finding]:
    """Return the tests with limits beyond what right kernels reach.

    Where a part of a large problem has errors that no right kernel has, its limits will do.
    """
    others = () if twins.is_fine(of.policy) else (twins.STEADY, twins.REFERENCES)
    kinds = (twins.TWINS, *others)
    part = of.part()
    if part is not None:
        worst: dict[str, float] = {}
        found = significance.tests(part.problem, part.policy, part.error, part.sigma)[2]
        found = _beside_all(part, found, kinds, worst)
        if any(test.status == "bug" for test in found):
            return [significance.widened(test, worst.get(test.name, 0.0)) for test in tests]
    return _beside_all(of, tests, kinds, {})


def _beside_all(
    of: Errors,
    tests: list[Finding],
    kinds: tuple[tuple[Twin, ...], ...],
    worst: dict[str, float],
) -> list[Finding]:
    """Return the tests with limits beyond right kernels of one kind after the other, as needed.

    worst: is given what these kernels reach, per test.
    """
    for kernels in kinds:
        spread = next(test.value for test in tests if test.name == significance.SPREAD)
        if kernels is not twins.TWINS and not spread <= _WIDEST:
            break
        given = of.problem, of.policy, of.truth, of.sigma, tests, kernels
        tests, reached = less_exact.beside_twins(*given, known=kernels is twins.STEADY)
        if kernels is not twins.STEADY:
            worst |= {name: max(value, worst.get(name, 0.0)) for name, value in reached.items()}
        if all(test.status == "rounding" for test in tests):
            break
    return tests


def _evenly(of: Errors, z: Array, beyond: bool) -> str:
    """Return words for an error like rounding's but larger, alike everywhere; else ""."""
    times = float(np.sqrt((z**2).mean()))
    if beyond or not 1 < times <= _EVEN_MOST:
        return ""
    tests = significance.tests(of.problem, of.policy, of.error / times, of.sigma)[2]
    if any(test.status == "bug" for test in tests):
        return ""
    return f"errors are {times:.2g} times as large as rounding's, alike everywhere"


def _as_if(of: Errors, ways: list[list[less_exact.Way]], *, large: bool = False) -> str:
    """Return words for one of these ways that errs as much as this output; "" if none does.

    large: a large error may be one of these, too, if no test tells it from theirs.
    """
    small = less_exact.is_small(of)
    if not (large or small):
        return ""
    part = of.part()
    look, look_at_part = _looks(of), _looks(part or of)
    for alternatives in ways:
        nearly = []
        for way in alternatives:
            worst = None
            if part is not None:
                _, words, worst = _as_a_way(part, way, look_at_part, slack=_PART_SLACK)
                if not words:
                    continue
            if not matched_filters.is_sampled(of.problem):
                worst = None
            share, words, _ = _as_a_way(of, way, look, worst=worst)
            if not (words and less_exact.is_everywhere(part or of, way)):
                continue
            if share == 1:
                return words
            if small:
                nearly.append((share, words))
        if nearly:
            return min(nearly)[1]
    return ""


def _looks(of: Errors) -> _Looks:
    """Return what gives sigma and the filters by a policy; successive ways often share theirs."""

    @functools.lru_cache(maxsize=1)
    def look(policy: NumericPolicy) -> tuple[Array, Filters]:
        return first_look.expected(of.problem, policy).over_rows(of.error)

    return look


def _as_a_way(
    of: Errors,
    way: less_exact.Way,
    look: _Looks,
    slack: float = 1.0,
    worst: dict[str, float] | None = None,
) -> tuple[float, str, dict[str, float]]:
    """Return how many times a way's error this error is, words, and what its kernels reach.

    There are no words where it differs. look: as `_looks` returns. slack: a factor by which the
    share of the way's error may lie outside its limits. worst: what kernels of a part reach, which
    will do for a large problem.
    """
    none: tuple[float, str, dict[str, float]] = 0.0, "", {}
    problem, policy, truth, error, _ = of
    if worst is None and way.policy != policy:
        bound = to_numpy(bounds.out_bound(problem, way.policy))
        if significance.of_bound(error, bound, "", problem).value > 1:
            return none
    sigma, filtered = look(way.policy)
    tests = significance.of_error(problem, way.policy, error, sigma, filtered)[1]
    if worst is None:
        given = problem, way.policy, truth, sigma, tests, way.kernels
        tests, worst = less_exact.beside_twins(*given, filtered=filtered)
    else:
        tests = [significance.widened(test, worst.get(test.name, 0.0)) for test in tests]
    if not worst[significance.SPREAD]:  # these kernels make no error at all
        return none
    spread = next(test.value for test in tests if test.name == significance.SPREAD)
    share = spread / worst[significance.SPREAD]
    if share >= _AS_LARGE / slack and all(test.status != "bug" for test in tests):
        return 1.0, f"as a kernel with {way.words} is", worst
    if not 1 < share <= _A_LITTLE_MORE * slack:
        return none
    tests = significance.tests(problem, way.policy, error / share, sigma)[2]
    tests = [significance.widened(test, worst[test.name]) for test in tests]
    if any(test.status == "bug" for test in tests):
        return none
    return share, f"errors are {share:.2g} times those of a kernel with {way.words}", worst


def _answered(
    found: tuple[Finding, ...],
    matches: Sequence[Match],
    policy: NumericPolicy,
    error: Array,
    bound: Array,
    sigma: Array,
    *,
    why: str = "",
    even: str = "",
    sound: bool = False,
) -> Verdict:
    """Return the verdict that follows from findings and names.

    why: words in place of a count of tests, and of a bug's name. even: words that make an error
    LESS EXACT. sound: ROUNDING, whatever the tests say.
    """
    given = found, tuple(matches), policy, error, bound, sigma
    bugs = [item for item in found if item.status == "bug"] * (not sound)
    odd = [item for item in found if item.status == "odd"] * (not sound)
    if bugs:
        first = bugs[0]
        name = f"{matches[0].name}, {matches[0].where}" if matches else why or _NO_EDIT
        tests = (
            f"{len(bugs)} of {len(found)} tests exceed what rounding can do, first: "
            f"{first.name} {first.value:.3g} > {first.bug:.3g} {first.where}"
        ).rstrip()
        if even or (matches and matches[0].precision):
            return Verdict(LESS_EXACT, f"than the format allows: {even or name}; {tests}", *given)
        return Verdict(BUG, f"{name}; {tests}", *given)
    given = found, (), policy, error, bound, sigma
    if odd:
        why = f"{odd[0].name} is odd ({odd[0].value:.3g} > {odd[0].odd:.3g}), not impossible"
        return Verdict(INCONCLUSIVE, why, *given)
    return Verdict(ROUNDING, why or f"{len(found)} tests, none beyond what rounding does", *given)


def _shaped(name: str, values: Array, shape: tuple[int, ...]) -> np.ndarray:
    values = np.asarray(values, np.float64)
    if values.shape != shape:
        raise ValueError(f"{name}.shape = {values.shape}, allowed: {shape}")
    return values
