"""Runs of the ragged test: kernels, wrong and right, and every rule's answer to their outputs."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from labkernels.chapters.the_test_that_could_not_fail import INPUTS, RaggedTest, draw
from labkernels.experiments.accuracy.detection_runs import Judged
from labkernels.kernels.registry import discover
from labkernels.measure.judge.criteria import ACCEPTED, REFUSED, VERDICT, Criteria
from labkernels.measure.mutants.prefill import MUTANTS
from labkernels.numerics import arrays, metrics
from labkernels.policy import NumericPolicy

# Queries and inputs for each number of keys. The longest has random inputs alone: which bugs inputs
# of zeros hide does not depend on the length.
LENGTHS = {177: (37, INPUTS), 1009: (37, INPUTS), 8177: (4, ("random",))}
THE_TEST = {"the test, 1e-3": 1e-3, "the test, 1e-2": 1e-2}  # one limit for out and LSE
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
        """The inputs and the mask, as the data names them."""
        return f"{self.inputs}, {'causal' if self.test.causal else 'full'}"


def run(task: Task, device: str, *, only: str = "") -> Iterator[tuple[Judged, dict[str, str]]]:
    """Yield every rule's answer to each prefill kernel, right and wrong, whose name holds `only`.

    device: "cpu" or "cuda".
    """
    from labkernels import ops

    drawn = draw(task.test, task.inputs, seed=task.seed, device=device)
    judge = Criteria(drawn)
    for name, spec in discover().items():
        if spec.operation != "prefill" or spec.language != "cuda" or only not in name:
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
            judged = Judged(name, mutant, task.family, task.test.dtype, task.test.kv_len)
            yield judged, answers(judge, done, spec.policies[0])


def answers(judge: Criteria, done, policy: NumericPolicy) -> dict[str, str]:
    """Return REFUSED, ACCEPTED or UNDECIDED by each of RULES for what a kernel returned."""
    by_rule = judge.answers(done.out, policy, done.lse2)
    reference = judge.sample(done.out, policy).reference
    pairs = ((done.out, reference), (done.lse2, judge.truth_lse2))
    by_rule |= {
        name: ACCEPTED if all(_close(*pair, limit) for pair in pairs) else REFUSED
        for name, limit in THE_TEST.items()
    }
    return {name: by_rule[name] for name in RULES}


def _close(found, reference: np.ndarray, limit: float) -> bool:
    off = np.abs(metrics.difference(arrays.as_float64(found), reference))
    return bool((off <= limit + limit * np.abs(reference)).all())
