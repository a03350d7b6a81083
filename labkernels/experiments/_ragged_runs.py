"""Runs of the ragged test: kernels, wrong and right, and every rule's answer to their outputs."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from labkernels.kernels.spec import NumericPolicy, discover
from labkernels.measure import accuracy, expected
from labkernels.measure.prefill_mutants import MUTANTS
from labkernels.measure.ragged_test import INPUTS, Drawn, RaggedTest, draw
from labkernels.numerics import metrics, oracle, rules, verdict
from labkernels.numerics.rules import Sample

DTYPES = ("fp16", "bf16")
# Queries and inputs at each number of keys: what zeros hide does not depend on the length.
LENGTHS = {177: (37, INPUTS), 1009: (37, INPUTS), 8177: (4, ("random",))}
VERDICT = "verdict"
THE_TEST = {"the test, 1e-3": 1e-3, "the test, 1e-2": 1e-2}  # of out and of LSE alike
OTHERS = ("FA 2x", "PyTorch fudge", "cosine")
RULES = (*THE_TEST, *OTHERS, VERDICT)


@dataclass(frozen=True)
class Task:
    """Runs that share their inputs."""

    test: RaggedTest
    inputs: str
    seed: int

    @property
    def family(self) -> str:
        """The inputs and the mask, as in the data."""
        return f"{self.inputs}, {'causal' if self.test.causal else 'full'}"


def tasks(seeds: int) -> list[Task]:
    """Two requests of each length, with each mask, dtype, kind of inputs and seed."""
    return [
        Task(RaggedTest(causal, dtype).of_length(kv_len, q_len), inputs, seed)
        for kv_len, (q_len, kinds) in LENGTHS.items()
        for dtype in DTYPES
        for causal in (False, True)
        for inputs in kinds
        for seed in range(seeds)
    ]


def run(task: Task, device: str, *, only: str = "") -> Iterator[tuple[str, str, str, bool]]:
    """Yield kernel, mutant ("" for the right kernel) and rule, and whether the rule refuses."""
    from labkernels import ops

    drawn = draw(task.test, task.inputs, seed=task.seed, device=device)
    judge = Judge(drawn)
    for name, spec in discover().items():
        if spec.family != "prefill" or spec.language != "cuda" or only not in name:
            continue
        wrong = [
            (mutant.name, mutant.spec(name))
            for mutant in MUTANTS.values()
            if name in mutant.edits and (task.test.causal or not mutant.needs)
        ]
        for mutant, kernel in [("", name), *wrong]:
            done = ops.prefill(
                drawn.q,
                drawn.kv,
                drawn.cu_seqlens_q,
                causal=task.test.causal,
                scale=drawn.scale,
                kernel=kernel,
            )
            for rule, refused in judge(done.out, done.lse2, spec.policies[0]).items():
                yield name, mutant, rule, refused


class Judge:
    """Every rule's answer to outputs for one draw; what the rules share is computed once."""

    def __init__(self, drawn: Drawn) -> None:
        self.problem, self.dtype = drawn.problem(), drawn.test.dtype
        self.truth, self.truth_lse2 = oracle.attention(self.problem)
        self._eager = rules.eager_attention(self.problem, self.dtype)

    def __call__(self, out, lse2, policy: NumericPolicy) -> dict[str, bool]:
        out, lse2 = accuracy.as_float64(out), accuracy.as_float64(lse2)
        sample = Sample(out, self.truth, self._eager, self.dtype)
        answers = {
            name: not (_close(out, sample.reference, limit) and self._lse2_close(lse2, limit))
            for name, limit in THE_TEST.items()
        }
        answers |= {name: not rules.RULES[name].accepts(sample) for name in OTHERS}
        rounds = expected.rounds_of(policy, self.dtype)
        found = verdict.judge(self.problem, out, rounds=rounds, lse2=lse2)
        return answers | {VERDICT: found.answer == verdict.BUG}

    def _lse2_close(self, lse2: np.ndarray, limit: float) -> bool:
        return _close(lse2, self.truth_lse2, limit)


def _close(found: np.ndarray, reference: np.ndarray, limit: float) -> bool:
    off = np.abs(metrics.difference(found, reference))
    return bool((off <= limit + limit * np.abs(reference)).all())
