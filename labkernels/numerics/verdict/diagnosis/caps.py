"""A soft cap that was left on: too little for a bound of one element, enough for all of them."""

from collections.abc import Iterator

import numpy as np

from labkernels import defects, formats
from labkernels.numerics.truth.variant import VariantTensors
from labkernels.numerics.verdict import significance, twins
from labkernels.numerics.verdict.diagnosis import scores
from labkernels.numerics.verdict.diagnosis.match import Edit, Match, Region
from labkernels.numerics.verdict.diagnosis.program import TINY, Block, Case, store
from labkernels.numerics.verdict.parts import Errors
from labkernels.numerics.verdict.significance import Finding
from labkernels.units import LOG2_E

CAP = 50.0  # of Gemma 2, the usual one
# beta is about 1 with the cap and about 0 without. Its z exceeds the limits of ODD and BUG once in
# 10^4 and 10^7 right runs. Of an output that other tests call wrong, a likelihood decides.
_ODD, _BUG, _MOST_BETA, _LEAST_RATIO = 3.9, 5.4, 1.5, 1.5
_PAIRS, _NUMBERS = 128, 2**19  # most requests and heads, and most scores, that are looked at


def left_on(of: Errors, *, wrong: bool) -> tuple[Finding, Match] | tuple[()]:
    """Return the evidence for a cap that nobody asked for, and its name; else nothing.

    P in fp32 shows a cap in each element. wrong: another test says already that the output is.
    """
    variant, of = of.problem.variant or VariantTensors(), of.part() or of
    if of.policy.p not in twins.SIXTEEN or variant.soft_cap or variant.bias is not None:
        return ()
    beta, deviation = _filtered(of, of.error)
    z, ratio = beta / deviation, (beta - 0.5) / deviation**2  # the log of that of 1 and of 0
    if not (beta <= _MOST_BETA and ratio >= _LEAST_RATIO and (wrong or z > _BUG)):
        return ()
    kinds = (*twins.TWINS, *twins.STEADY, *twins.REFERENCES)
    errors = (out - of.truth for out in twins.outputs(of.problem, of.policy, kinds))
    worst = max(abs(np.divide(*_filtered(of, error))) for error in errors)
    found = significance.widened(Finding("a cap left on", z, _ODD, _BUG), worst)
    edit = Edit("scores", "capped at", (CAP,))
    match = Match(defects.SCORES, edit, Region(), np.nan, np.nan)
    return (found, match) if z > (worst if wrong else found.bug) else ()


def _filtered(of: Errors, error: np.ndarray) -> tuple[float, float]:
    """Return beta of what a cap changes, and its standard deviation by rounding."""
    along, power, variance = map(sum, zip(*map(_of_rows, _blocks(of, error)), strict=True))
    return along / max(power, TINY), np.sqrt(max(variance, TINY)) / max(power, TINY)


def _blocks(of: Errors, error: np.ndarray) -> Iterator[Block]:
    problem, policy = of.problem, of.policy
    case = Case(problem, error, of.truth, of.sigma, error, policy.out, policy.p)
    requests = np.flatnonzero(problem.kv_lens * np.diff(problem.q_ends) > 0)
    pairs = [(int(r), h) for r in requests for h in range(error.shape[1])]
    few = np.unique(np.linspace(0, len(pairs) - 1, _PAIRS).astype(int))
    rows = max(1, _NUMBERS // (len(few) * int(problem.kv_lens.max())))
    for request, head in (pairs[i] for i in few):
        first, last = problem.q_ends[request : request + 2].tolist()
        tokens = np.unique(np.linspace(first, last - 1, rows).astype(int))
        yield Block(case, request, head, tokens, slice(None))


def _of_rows(s: Block) -> tuple[float, float, float]:
    """Return <e / s, D>, <D, D> and the variance of the first, e the errors, s their sigma.

    D: what a cap changes over s, less what an error of the row's largest weight, or of a factor,
    changes, since these may be alike in all rows. The variance: of weights that are each rounded in
    the largest spacing that they can have, about 0, o or the mean of V, and of the store.
    """
    p, o = s.w / s.sums, s.by_weights(s.w).output()
    per = np.where(s.sigma > TINY, 1 / s.sigma, 0.0)
    capped = s.raw - s.products + scores.capped(s.products, CAP * LOG2_E)
    change = (s.by_scores(capped).output() - o) * per
    known = np.linalg.qr(np.stack([s.v[s.w.argmax(1)] - o, o], -1) * per[..., None])[0]
    change -= np.einsum("rdk,rek,re->rd", known, known, change)
    x = change * per
    spacings = p * formats.named(s.case.p_format).unit_roundoff * 2
    shown = [(x @ s.v.T - (x * c).sum(1, keepdims=True)) ** 2 for c in (0, o, s.v.mean(0))]
    of_weights = max(float((spacings**2 / 12 * y).sum()) for y in shown)
    of_store = float((x**2 * store(o, s.case.out_format)).sum())
    return float((x * s.out).sum()), float((change**2).sum()), of_weights + of_store
