"""Runs of the ragged test: kernels, wrong and right, and every rule's answer to their outputs."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from labkernels.experiments._detection_runs import DTYPES, Cell
from labkernels.kernels.spec import NumericPolicy, discover
from labkernels.measure import accuracy
from labkernels.measure.judge import ACCEPTED, REFUSED, VERDICT, Judge
from labkernels.measure.prefill_mutants import MUTANTS
from labkernels.measure.ragged_test import INPUTS, RaggedTest, draw
from labkernels.numerics import metrics

# Queries and inputs at each number of keys: what zeros hide does not depend on the length.
LENGTHS = {177: (37, INPUTS), 1009: (37, INPUTS), 8177: (4, ("random",))}
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


def run(task: Task, device: str, *, only: str = "") -> Iterator[tuple[Cell, dict[str, str]]]:
    """Yield every rule's answer to each prefill kernel, right and wrong, whose name holds `only`.

    device: "cpu" or "cuda".
    """
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
            cell = Cell(name, mutant, task.family, task.test.dtype, task.test.kv_len)
            yield cell, answers(judge, done, spec.policies[0])


def answers(judge: Judge, done, policy: NumericPolicy) -> dict[str, str]:
    """REFUSED, ACCEPTED or UNDECIDED by each of RULES, of what a kernel returned."""
    by_rule = judge.answers(done.out, policy, done.lse2)
    reference = judge.sample(done.out, policy).reference
    pairs = ((done.out, reference), (done.lse2, judge.truth_lse2))
    by_rule |= {
        name: ACCEPTED if all(_close(*pair, limit) for pair in pairs) else REFUSED
        for name, limit in THE_TEST.items()
    }
    return {name: by_rule[name] for name in RULES}


def _close(found, reference: np.ndarray, limit: float) -> bool:
    off = np.abs(metrics.difference(accuracy.as_float64(found), reference))
    return bool((off <= limit + limit * np.abs(reference)).all())
