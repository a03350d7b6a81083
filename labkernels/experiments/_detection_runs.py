"""A run of the detection experiment: a kernel, wrong or right, judged by verdict and rules."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from labkernels.kernels.spec import NumericPolicy, discover
from labkernels.measure import accuracy, expected, mutants
from labkernels.measure.cases import DecodeCase
from labkernels.measure.families import FAMILIES, family_case
from labkernels.measure.mutants import LENGTHS, MUTANTS
from labkernels.numerics import oracle, rules, verdict
from labkernels.numerics.problem import Problem
from labkernels.workload import Decode

VERDICT = "verdict"
REFUSED, ACCEPTED, UNDECIDED = "refused", "accepted", "undecided"
DTYPES = ("fp16", "bf16")
GROUPS = (4, 1, 7, 16)  # of right kernels, by seed
KV_HEADS = 2


@dataclass(frozen=True)
class Cell:
    """What the rows of one cell share; mutant is empty for a right kernel."""

    kernel: str
    mutant: str
    family: str
    dtype: str
    kv_len: int


@dataclass(frozen=True)
class Task:
    """Runs that share their inputs: every mutant on one workload, or right kernels on another."""

    needs: str
    family: str
    dtype: str
    kv_len: int
    seed: int

    @property
    def is_of_mutants(self) -> bool:
        """Whether the kernels are wrong ones."""
        return not self.family


def tasks(seeds: int) -> list[Task]:
    """Mutants and right kernels over dtypes, lengths, input families and seeds; long ones first.

    The longest, which cost most, take half the seeds.
    """
    lengths = sorted(LENGTHS, reverse=True)
    needs = sorted({mutant.needs for mutant in MUTANTS.values()})
    kinds = [(need, "") for need in needs] + [("", family) for family in FAMILIES]
    return [
        Task(need, family, dtype, kv_len, seed)
        for kv_len in lengths
        for dtype in DTYPES
        for seed in range(-(-seeds // 2) if kv_len == lengths[0] else seeds)
        for need, family in kinds
    ]


def run(task: Task, device: str) -> list[tuple[Cell, dict[str, str]]]:
    """Run a task's kernels on a device, "cpu" or "cuda"; every rule's answer to each."""
    found = _mutant_runs(task, device) if task.is_of_mutants else _right_runs(task, device)
    return list(found)


def _mutant_runs(task: Task, device: str) -> Iterator[tuple[Cell, dict[str, str]]]:
    chosen = [mutant for mutant in MUTANTS.values() if mutant.needs == task.needs]
    case = mutants.exposing_case(chosen[0], task.kv_len, task.dtype, seed=task.seed, device=device)
    judge = _Judge(case)
    for mutant in chosen:
        for kernel in mutant.edits:
            out = mutants.decode(mutant, kernel, case)
            cell = Cell(kernel, mutant.name, "normal", task.dtype, task.kv_len)
            yield cell, judge(out, discover()[kernel].policies[0])


def right_workload(task: Task) -> Decode:
    """Requests of one length; every other seed has an empty and a short one beside them."""
    lengths = (task.kv_len,) * LENGTHS[task.kv_len].batch + (0, 17) * (task.seed % 2)
    q_heads = KV_HEADS * GROUPS[task.seed % len(GROUPS)]
    return Decode(lengths, q_heads, KV_HEADS, mutants.HEAD_DIM, mutants.PAGE_SIZE, task.dtype)


def _right_runs(task: Task, device: str) -> Iterator[tuple[Cell, dict[str, str]]]:
    """Every decode kernel, its policies in turn by seed, split and not."""
    from labkernels import ops

    case = family_case(task.family, right_workload(task), seed=100 + task.seed, device=device)
    judge = _Judge(case)
    for name, spec in discover().items():
        if spec.family != "decode" or (spec.language == "triton" and device == "cpu"):
            continue
        policy = spec.policies[0 if spec.language == "torch" else task.seed % len(spec.policies)]
        done = ops.decode(
            case.q,
            case.cache,
            kernel=name,
            policy=policy,
            scale=case.scale,
            keys_per_split=None if task.seed % 3 else LENGTHS[task.kv_len].keys_per_split,
        )
        yield Cell(name, "", task.family, task.dtype, task.kv_len), judge(done.out, policy)


class _Judge:
    """Every rule's answer to outputs of one case; what they share is computed once."""

    def __init__(self, case: DecodeCase) -> None:
        cache = case.cache
        pools = (accuracy.as_float64(x) for x in (case.q, cache.k, cache.v))
        numbers = (cache.page_table.cpu().numpy(), cache.kv_len.cpu().numpy())
        self._problem = Problem(*pools, *numbers, case.scale)
        self._truth, _ = oracle.attention(self._problem)
        self._dtype, self._kind = case.workload.dtype, case.q.dtype
        self._eager = rules.eager_attention(self._problem, self._dtype)

    def __call__(self, out, policy: NumericPolicy) -> dict[str, str]:
        if policy.out == "fp64":
            policy, out = replace(policy, out="input"), out.to(self._kind)
        # of the denominator the verdict is not told: it takes either
        told = replace(expected.rounds_of(policy, self._dtype), denominator=None)
        out = accuracy.as_float64(out)
        found = verdict.judge(self._problem, out, rounds=told)
        answers = {verdict.ROUNDING: ACCEPTED, verdict.BUG: REFUSED}
        sample = rules.Sample(out, self._truth, self._eager, told.out_format)
        with np.errstate(invalid="ignore"):
            others = {
                name: ACCEPTED if rule.accepts(sample) else REFUSED
                for name, rule in rules.RULES.items()
            }
        return others | {VERDICT: answers.get(found.answer, UNDECIDED)}
