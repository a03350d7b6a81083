"""Outputs before every acceptance criterion: the verdict, and the rules of other projects."""

from dataclasses import replace
from typing import Protocol

import numpy as np

from labkernels.numerics import arrays, metrics
from labkernels.numerics.error import bounds
from labkernels.numerics.truth import oracle
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict import criteria, verdict
from labkernels.numerics.verdict.verdict import Verdict
from labkernels.policy import NumericPolicy

VERDICT = "verdict"
REFUSED, ACCEPTED, UNDECIDED = "refused", "accepted", "undecided"
_WORDS = {
    verdict.ROUNDING: ACCEPTED,
    verdict.BUG: REFUSED,
    verdict.LESS_EXACT: REFUSED,
    verdict.INCONCLUSIVE: UNDECIDED,
}


class Posed(Protocol):
    """Inputs of attention, as numerics takes them, and the format of q, K and V."""

    @property
    def dtype(self) -> str:
        """The format of q, K and V."""

    def problem(self) -> Problem:
        """The same inputs for numerics, where they lie."""


class Criteria:
    """Acceptance criteria on given inputs: the truth and 16-bit eager attention, computed once.

    Shapes: truth, eager [total_q, Hq, Dv]; truth_lse2 [total_q, Hq], in base 2.
    """

    def __init__(self, inputs: Posed) -> None:
        self._dtype = inputs.dtype
        self.problem = inputs.problem().in_numpy()
        self.truth, self.truth_lse2 = oracle.attention(self.problem)
        self.eager = criteria.eager_attention(self.problem, self._dtype)
        self._bounds: dict[NumericPolicy, np.ndarray] = {}

    def sample(self, out, policy: NumericPolicy) -> criteria.Sample:
        """An output as the rules take it."""
        out_format = policy.out_format(self._dtype)
        return criteria.Sample(arrays.as_float64(out), self.truth, self.eager, out_format)

    def verdict(self, out, policy: NumericPolicy, lse2=None) -> verdict.Verdict:
        """The verdict, told how the kernel rounds, but not which denominator: it takes either.

        Shapes: out [total_q, Hq, Dv]; lse2 [total_q, Hq] or None, which is then not judged.
        """
        lse2 = None if lse2 is None else arrays.as_float64(lse2)
        out = arrays.as_float64(out)
        return verdict.decide(self.problem, out, policy=self._told(policy), lse2=lse2)

    def _told(self, policy: NumericPolicy) -> NumericPolicy:
        return replace(policy.of(self._dtype), denominator=None, accumulate="tensor_core")

    def answers(
        self, out, policy: NumericPolicy, lse2=None, *, judged: Verdict | None = None
    ) -> dict[str, str]:
        """REFUSED, ACCEPTED or UNDECIDED by each rule, which sees out alone, and by VERDICT.

        judged: the verdict on this output, where it is known; it may take seconds.
        """
        sample = self.sample(out, policy)
        with np.errstate(invalid="ignore"):
            words = {
                name: ACCEPTED if rule.accepts(sample) else REFUSED
                for name, rule in criteria.RULES.items()
            }
        if judged is None and self._beyond(out, policy):
            return words | {VERDICT: REFUSED}
        judged = judged or self.verdict(out, policy, lse2)
        return words | {VERDICT: _WORDS[judged.answer]}

    def _beyond(self, out, policy: NumericPolicy) -> bool:
        """Whether an error exceeds the bound, so that the verdict refuses whatever its name is.

        The search for the name takes most of a verdict's time.
        """
        if policy not in self._bounds:
            told = self._told(policy)
            bound, _ = bounds.both_bounds(self.problem, told, narrow=told.narrow)
            self._bounds[policy] = arrays.to_numpy(bound)
        bound = self._bounds[policy]
        error = np.abs(metrics.difference(arrays.as_float64(out), self.truth))
        return bool(np.isfinite(bound).all() and np.any(~(error <= bound)))
