"""Outputs of one case before every judge: the verdict, and the rules of other projects."""

from dataclasses import replace

import numpy as np

from labkernels.kernels.spec import NumericPolicy
from labkernels.measure import accuracy, expected
from labkernels.measure.cases import DecodeCase
from labkernels.measure.ragged_test import Drawn
from labkernels.numerics import oracle, rules, verdict

VERDICT = "verdict"
REFUSED, ACCEPTED, UNDECIDED = "refused", "accepted", "undecided"
_WORDS = {verdict.ROUNDING: ACCEPTED, verdict.BUG: REFUSED, verdict.INCONCLUSIVE: UNDECIDED}


class Judge:
    """What all outputs of a case share, computed once: the truth, and 16-bit eager attention.

    Shapes: truth, eager [total_q, Hq, Dv]; truth_lse2 [total_q, Hq], in base 2.
    """

    def __init__(self, case: DecodeCase | Drawn) -> None:
        self._dtype = case.dtype
        self.problem = case.problem()
        self.truth, self.truth_lse2 = oracle.attention(self.problem)
        self.eager = rules.eager_attention(self.problem, self._dtype)

    def sample(self, out, policy: NumericPolicy) -> rules.Sample:
        """An output as the rules take it."""
        out_format = policy.out_format(self._dtype)
        return rules.Sample(accuracy.as_float64(out), self.truth, self.eager, out_format)

    def verdict(self, out, policy: NumericPolicy, lse2=None) -> verdict.Verdict:
        """The verdict, told how the kernel rounds, but not which denominator: it takes either.

        Shapes: out [total_q, Hq, Dv]; lse2 [total_q, Hq] or None, which is then not judged.
        """
        told = replace(expected.rounds_of(policy, self._dtype), denominator=None)
        lse2 = None if lse2 is None else accuracy.as_float64(lse2)
        return verdict.judge(self.problem, accuracy.as_float64(out), rounds=told, lse2=lse2)

    def answers(self, out, policy: NumericPolicy, lse2=None) -> dict[str, str]:
        """REFUSED, ACCEPTED or UNDECIDED by each rule, which sees out alone, and by VERDICT."""
        sample = self.sample(out, policy)
        with np.errstate(invalid="ignore"):
            words = {
                name: ACCEPTED if rule.accepts(sample) else REFUSED
                for name, rule in rules.RULES.items()
            }
        return words | {VERDICT: _WORDS[self.verdict(out, policy, lse2).answer]}
