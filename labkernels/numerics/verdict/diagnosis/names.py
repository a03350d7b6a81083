"""Names for what went wrong with an output: whole kernels are tried before single rows."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict import significance
from labkernels.numerics.verdict.diagnosis import (
    aliases,
    many_rows,
    places,
    structure,
    whole_kernel,
)
from labkernels.numerics.verdict.diagnosis.one_row import Match, Row
from labkernels.numerics.verdict.diagnosis.outputs import (
    added,
    foreign,
    memory,
    permutations,
    stored,
)
from labkernels.numerics.verdict.diagnosis.whole_kernel import sheets
from labkernels.numerics.verdict.matched_filters import Filters
from labkernels.policy import NumericPolicy

# All rows are used if at most this part is bad, each weakly, but all of them together clearly.
_FEW = 0.2  # share of the rows
_WEAK = 9.0  # z^2 over its limit
_TINY = 1e-300  # in place of a division by 0
_ALIKE = 0.05  # difference of two rms of z that does not tell two mistakes apart
_NO_MASK = "causal mask left out"
_OTHERS = 4  # rows beside the worst; a name must explain most of them


@dataclass(frozen=True, eq=False)
class Case:
    """A wrong output and what is known about it.

    Shapes: out, truth, error, sigma, z [total_q, Hq, Dv]; bugs, the names of the tests that fail.
    less_exact: honest arithmetic of a coarser kind errs as much as this output.
    """

    problem: Problem
    policy: NumericPolicy
    out: np.ndarray
    truth: np.ndarray
    error: np.ndarray
    sigma: np.ndarray
    z: np.ndarray
    filtered: Filters
    bugs: set[str]
    less_exact: bool = False


def of_output(case: Case) -> list[Match]:
    """Return the mistakes that explain the errors, the best first; each leaves only rounding."""
    found = _found(case)
    if found and found[0].name == _NO_MASK and _masked_elsewhere(case):
        found[0] = replace(found[0], name=f"another mask: keys that the mask hides, or {_NO_MASK}")
    return aliases.named(case.problem, found)


def _of_small_outputs(case: Case) -> Case:
    """Return the case with errors as small as its outputs, in rows far smaller than right ones.

    An output that is smaller than the errors of right rows would be explained by any small number.
    """
    size, right, error = (
        np.sqrt((x**2).mean(-1, keepdims=True)) for x in (case.out, case.truth, case.sigma)
    )
    small = (size > 0) & (size < error) & (error > 0) & (error < right)
    if not small.any():
        return case
    sigma = np.where(small, case.sigma * size / np.maximum(right, _TINY), case.sigma)
    return replace(case, sigma=sigma)


def _masked_elsewhere(case: Case) -> bool:
    """Return whether right rows beside the wrong ones, of their heads and requests, hide keys."""
    problem, bad = case.problem, _bad_rows(case)[0]
    hide = (problem.n_keys < problem.kv_lens[problem.request_of])[:, None] & ~bad
    parts = (slice(*problem.q_ends[i : i + 2].tolist()) for i in range(problem.batch))
    return any(bool((bad[rows].any(0) & hide[rows].any(0)).any()) for rows in parts)


def _found(case: Case) -> list[Match]:
    problem = case.problem
    shown = many_rows.of_output(problem, case.out, case.truth, case.sigma, case.policy.out)
    if shown and not shown[0].vague:
        return shown
    bad, score = _bad_rows(case)
    given = problem, case.out, case.truth, case.sigma, bad, case.policy.out
    sums = added.of_sums(*given)
    sums = [replace(match, where=_where(match, problem, bad)) for match in sums]
    if shown:
        return _stored(case) or sums or _of_some_channels(case, bad, score) or shown
    of_rows_added = sums and sums[0].name.startswith("the output of")
    if of_rows_added or _ends(sums):
        return sums
    changed = stored.of_output(*given)
    if changed:
        return [replace(match, where=_where(match, problem, bad)) for match in changed]
    case = _of_small_outputs(case)  # what is stored in place of right outputs has been tried
    sigma = case.sigma
    # The mistakes that are tried on single rows know no variants.
    rows = _worst_rows(case, bad, score) if problem.variant is None else []
    of_rows = functools.cache(lambda: many_rows.of_rows(rows))
    whole = _of_whole_kernel(case, bad, score, of_rows)
    if sums:
        return _better(sums, [m for m in whole if not m.vague or m.like_scale])
    if whole and not whole[0].vague:
        return whole
    filters = many_rows.of_filters(problem, case.error, sigma, case.bugs, case.filtered)
    cut = [match for match in filters if match.name.startswith("P truncated")]
    known = _unless_better(of_rows(), whole) or cut
    if known:
        return known
    if case.less_exact:  # rounding explains the errors, so that only its kind is left to name
        return whole or filters or _of_whole_kernel(case, bad, score, of_rows, late=True)
    # Numbers for each head are fitted to some rows; a fit of all rows may contradict them.
    one_number = whole and not whole[0].for_each
    # Where rounding alone is left, more numbers explain no better.
    if one_number and (whole[0].settled or whole[0].rms <= significance.RIGHT_RMS):
        return whole
    fits = problem, case.out, case.truth, sigma, bad, case.policy.p, case.policy.out
    shared = structure.explain(*fits)
    if shared and not shared[0].vague:
        return shared
    return (
        whole
        or added.of_factors(problem, case.out, case.truth, sigma, bad, case.policy.out)
        or filters
        or many_rows.of_factor(rows)
        or many_rows.of_outliers(problem, case.out, case.error, sigma)
        or shared
        or memory.of_output(problem, case.out, case.truth, case.sigma, bad)
        or _of_whole_kernel(case, bad, score, of_rows, late=True)
        or structure.explain(*fits, late=True)
        or foreign.of_output(problem, case.out, case.truth, sigma, bad)
    )


def _ends(sums: list[Match]) -> bool:
    """Whether what was added leaves no doubt: nothing else adds a key's value, or a constant."""
    if not sums or sums[0].like_scale:
        return False
    best = sums[0]
    sure = best.rms**2 * whole_kernel.SURELY <= best.was**2
    return sure or best.rms <= significance.RIGHT_RMS


def _unless_better(of_rows: list[Match], whole: list[Match]) -> list[Match]:
    """Return the mistakes of single rows, unless a mistake of the whole kernel leaves less."""
    best = whole[0] if whole else None
    better = best and of_rows and (best.settled or best.rms < of_rows[0].rms)
    return [] if better else of_rows


def _better(a: list[Match], b: list[Match]) -> list[Match]:
    """Return the mistakes that leave less; both names if both leave about as much, or little."""
    if not b:
        return a
    sound = max(a[0].rms, b[0].rms) <= significance.RIGHT_RMS
    if not sound and abs(a[0].rms - b[0].rms) > _ALIKE:
        return min(a, b, key=lambda matches: matches[0].rms)
    where = "; or ".join(dict.fromkeys((a[0].where, b[0].where)))
    return [replace(a[0], name=f"{a[0].name}, or {b[0].name}", where=where)]


def _where(match: Match, problem: Problem, bad: Array) -> str:
    return "; ".join(filter(None, (match.where, places.words(problem, bad))))


def _bad_rows(case: Case) -> tuple[Array, Array]:
    """Return which rows went wrong, and mean z^2 of each over its limit. Shapes: [total_q, Hq]."""
    finite = np.isfinite(case.out).all(-1) & (case.problem.n_keys[:, None] > 0)
    with np.errstate(invalid="ignore"):
        score = (case.z**2).mean(-1) / significance.row_limits(case.filtered)
    score = np.where(finite, score, 0.0)
    return score > 1, score


def _of_whole_kernel(
    case: Case,
    bad: Array,
    score: Array,
    of_rows: Callable[[], list[Match]],
    *,
    late: bool = False,
) -> list[Match]:
    """Return the mistakes that explain all wrong rows, with their place."""
    problem, out = case.problem, case.out
    moved = [] if late else permutations.of_output(problem, out, case.truth, case.sigma, bad)
    if moved:
        return moved
    shared = any(name.endswith("by all") for name in case.bugs)
    if shared and bad.mean() < _FEW and score.max() < _WEAK:  # too weak for most rows alone
        bad = np.zeros_like(bad)
    score = np.where(bad, score, 0.0) if bad.any() else score
    given = problem, out, case.truth, case.sigma, score, case.policy.p
    found, start = sheets.of_rows(*given), sheets.of_start(*given)
    place = places.words(problem, bad)
    return [
        replace(match, where="; ".join(filter(None, (match.where, place))))
        for match in whole_kernel.explain(
            found,
            case.policy.out,
            start=start,
            of_arithmetic=case.less_exact,
            of_rows=of_rows,
            late=late,
        )
    ]


def _of_some_channels(case: Case, bad: Array, score: Array) -> list[Match]:
    """Return the mistakes that explain the channels that went wrong, where others are right."""
    z = np.where(case.sigma > 0, case.error / np.where(case.sigma > 0, case.sigma, 1.0), 0.0)
    wrong = many_rows.wrong_channels(case.problem, case.sigma, z)[0]
    if wrong is None or not bad.any():
        return []
    score = np.where(bad, score, 0.0)
    given = case.problem, case.out, case.truth, case.sigma, score, case.policy.p
    place = places.words(case.problem, bad)
    words = f"channels {wrong[0]} to {wrong[-1]} alone, {len(wrong)} of them"
    found = sheets.of_rows(*given, wrong)
    problem, policy = case.problem, case.policy
    whole = problem, case.out, case.truth, case.sigma, bad, policy.p, policy.out
    explained = (
        _sure(whole_kernel.explain(found, policy.out))
        or structure.of_channels(*whole, wrong)
        or _sure(whole_kernel.explain(found, policy.out, late=True))
    )
    return [
        replace(
            match,
            name=_in_channels(match.name),
            where="; ".join(filter(None, (match.where, words, place))),
        )
        for match in explained
    ]


def _in_channels(name: str) -> str:
    """Return the name of what some channels alone have; all channels of a row share its query."""
    of_others = "another row's output, in some channels, or " * name.startswith("Q of another row")
    return of_others + name + ", in some channels" * ("channel" not in name)


def _sure(found: list[Match]) -> list[Match]:
    return [match for match in found if not match.vague and not match.name.startswith("row never")]


def _stored(case: Case) -> list[Match]:
    """Return what the wrong channels hold, where others are right."""
    z = np.where(case.sigma > 0, case.error / np.where(case.sigma > 0, case.sigma, 1.0), 0.0)
    wrong, rows = many_rows.wrong_channels(case.problem, case.sigma, z)[:2]
    if wrong is None:
        return []
    given = case.problem, case.out, case.truth, case.sigma, rows, case.policy.out
    said = ", ".join(map(str, wrong[:8])) + ", ..." * (len(wrong) > 8)
    words = f"channels {said}, {len(wrong)} of them; {places.words(case.problem, rows)}"
    return [
        replace(
            match,
            name=match.name
            if match.name.startswith("channels")
            else f"channels wrong: {match.name}",
            where="; ".join(filter(None, (match.where, words))),
        )
        for match in stored.of_output(*given, wrong)
    ]


def _worst_rows(case: Case, bad: Array, score: Array) -> list[Row]:
    """Return the row with the largest score, and other wrong rows, far from each other.

    A mistake that explains one of many wrong rows counts only if it explains others too.
    """
    if not score.any():
        return []
    found = [int(score.argmax())]
    others = np.setdiff1d(np.flatnonzero(bad), found)
    found += (
        others[np.unique(np.linspace(0, len(others) - 1, _OTHERS).astype(int))].tolist()
        if (len(others))
        else []
    )
    places = [divmod(row, score.shape[1]) for row in found]
    return [
        Row(case.problem, case.policy, place, case.out[place], case.sigma[place], case.truth)
        for place in places
    ]
