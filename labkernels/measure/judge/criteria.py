"""Judge outputs by every acceptance criterion: the verdict, and the rules of other projects."""

from dataclasses import replace
from typing import Protocol

import numpy as np

from labkernels.numerics import arrays
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
    """Inputs of attention that numerics can take, and the format of q, K and V."""

    @property
    def dtype(self) -> str:
        """The format of q, K and V."""

    def problem(self) -> Problem:
        """The same inputs for numerics, on their own device."""


class Criteria:
    """Acceptance criteria on given inputs: the truth and 16-bit eager attention, computed once.

    Shapes: truth, eager [total_q, Hq, Dv]; truth_lse2 [total_q, Hq], in base 2.
    """

    def __init__(self, inputs: Posed) -> None:
        self._dtype = inputs.dtype
        self.problem = inputs.problem().in_numpy()
        self.truth, self.truth_lse2 = oracle.attention(self.problem)
        self.eager = criteria.eager_attention(self.problem, self._dtype)

    def sample(self, out, policy: NumericPolicy) -> criteria.Sample:
        """Return an output in the form that the rules take."""
        out_format = policy.out_format(self._dtype)
        return criteria.Sample(arrays.as_float64(out), self.truth, self.eager, out_format)

    def verdict(
        self, out, policy: NumericPolicy, lse2=None, *, named: bool = True
    ) -> verdict.Verdict:
        """Return the verdict by the formats of a policy, which allows either denominator.

        Shapes: out [total_q, Hq, Dv]; lse2 [total_q, Hq], or None if it is not to be judged. named:
        the mistake is named; else the answer is BUG where it may be LESS EXACT.
        """
        lse2 = None if lse2 is None else arrays.as_float64(lse2)
        out = arrays.as_float64(out)
        told = replace(policy.of(self._dtype), denominator=None, accumulate="tensor_core")
        return verdict.decide(self.problem, out, policy=told, lse2=lse2, named=named)

    def answers(
        self, out, policy: NumericPolicy, lse2=None, *, judged: Verdict | None = None
    ) -> dict[str, str]:
        """Return REFUSED, ACCEPTED or UNDECIDED by each rule, which sees only out, and by VERDICT.

        judged: the verdict on this output if it is known.
        """
        sample = self.sample(out, policy)
        with np.errstate(invalid="ignore"):
            words = {
                name: ACCEPTED if rule.accepts(sample) else REFUSED
                for name, rule in criteria.RULES.items()
            }
        judged = judged or self.verdict(out, policy, lse2, named=False)
        return words | {VERDICT: _WORDS[judged.answer]}
