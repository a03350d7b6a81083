"""Outputs of one case before every judge: the verdict, and the rules of other projects."""

from dataclasses import replace

import numpy as np

from labkernels.kernels.spec import NumericPolicy
from labkernels.measure import accuracy, expected
from labkernels.measure.cases import DecodeCase
from labkernels.numerics import oracle, rules, verdict
from labkernels.numerics.problem import Problem

VERDICT = "verdict"
REFUSED, ACCEPTED, UNDECIDED = "refused", "accepted", "undecided"
_WORDS = {verdict.ROUNDING: ACCEPTED, verdict.BUG: REFUSED, verdict.INCONCLUSIVE: UNDECIDED}


class Judge:
    """What all outputs of a case share, computed once: the truth, and 16-bit eager attention.

    Shapes: truth, eager [B, Hq, D].
    """

    def __init__(self, case: DecodeCase) -> None:
        cache = case.cache
        pools = (accuracy.as_float64(x) for x in (case.q, cache.k, cache.v))
        numbers = (cache.page_table.cpu().numpy(), cache.kv_len.cpu().numpy())
        self._dtype = case.workload.dtype
        self.problem = Problem(*pools, *numbers, case.scale)
        self.truth, _ = oracle.attention(self.problem)
        self.eager = rules.eager_attention(self.problem, self._dtype)

    def sample(self, out, policy: NumericPolicy) -> rules.Sample:
        """An output as the rules take it."""
        out_format = policy.out_format(self._dtype)
        return rules.Sample(accuracy.as_float64(out), self.truth, self.eager, out_format)

    def verdict(self, out, policy: NumericPolicy) -> verdict.Verdict:
        """The verdict, told how the kernel rounds, but not which denominator: it takes either.

        Shapes: out [B, Hq, D]
        """
        told = replace(expected.rounds_of(policy, self._dtype), denominator=None)
        return verdict.judge(self.problem, accuracy.as_float64(out), rounds=told)

    def answers(self, out, policy: NumericPolicy) -> dict[str, str]:
        """REFUSED, ACCEPTED or UNDECIDED by each rule, and by VERDICT."""
        sample = self.sample(out, policy)
        with np.errstate(invalid="ignore"):
            words = {
                name: ACCEPTED if rule.accepts(sample) else REFUSED
                for name, rule in rules.RULES.items()
            }
        return words | {VERDICT: _WORDS[self.verdict(out, policy).answer]}
