"""Runs of the detection experiment: a kernel, wrong or right, judged by verdict and rules."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from labkernels.kernels.decode.inputs import DISTRIBUTIONS, distributed_inputs
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.random_inputs import ExactNormal
from labkernels.kernels.registry import discover
from labkernels.measure.judge.criteria import Criteria
from labkernels.measure.mutants import decode
from labkernels.measure.mutants.decode import LENGTHS, MUTANTS
from labkernels.measure.mutants.mutant import Mutant

DTYPES = ("fp16", "bf16")
GROUPS = (4, 1, 7, 16)  # query heads per KV head in runs of right kernels, by seed
KV_HEADS = 2


@dataclass(frozen=True)
class Judged:
    """The columns that identify a kernel and a kind of inputs; mutant is "" for a right kernel."""

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
    every_kernel: bool = True  # else each mutant is run in one of its kernels

    @property
    def label(self) -> str:
        """The task in one line without its seed; tasks with the same label fill the same rows."""
        wrong = f"mutants, {self.needs}" if self.needs else "mutants"
        kind = wrong if self.is_of_mutants else f"right/{self.family}"
        return f"{kind}/{self.dtype}/{self.kv_len}"

    @property
    def is_of_mutants(self) -> bool:
        """Whether the kernels are mutants."""
        return not self.family


def tasks(seeds: int) -> list[Task]:
    """Return the tasks of mutants and right kernels, the longest first.

    The longest requests, whose tasks take the most time, have half the seeds.
    """
    lengths = sorted(LENGTHS, reverse=True)
    needs = sorted({mutant.needs for mutant in MUTANTS.values()})
    kinds = [(need, "") for need in needs] + [("", family) for family in DISTRIBUTIONS]
    return [
        Task(need, family, dtype, kv_len, seed)
        for kv_len in lengths
        for dtype in DTYPES
        for seed in range(-(-seeds // 2) if kv_len == lengths[0] else seeds)
        for need, family in kinds
    ]


def kernels(mutant: Mutant, *, every: bool) -> list[str]:
    """Return the kernels in which a mutant is run: all that have its line, or one of them.

    Successive mutants take the next of their kernels.
    """
    having = list(mutant.edits)
    return having if every else [having[list(MUTANTS).index(mutant.name) % len(having)]]


def run(task: Task, device: str) -> list[tuple[Judged, dict[str, str]]]:
    """Run a task's kernels on "cpu" or "cuda", and return every rule's answer to each."""
    found = _mutant_runs(task, device) if task.is_of_mutants else _right_runs(task, device)
    return list(found)


def _mutant_runs(task: Task, device: str) -> Iterator[tuple[Judged, dict[str, str]]]:
    chosen = [mutant for mutant in MUTANTS.values() if mutant.needs == task.needs]
    case = decode.exposing_case(chosen[0], task.kv_len, task.dtype, seed=task.seed, device=device)
    judge = Criteria(case)
    for mutant in chosen:
        for kernel in kernels(mutant, every=task.every_kernel):
            out = decode.decode(mutant, kernel, case)
            judged = Judged(kernel, mutant.name, "normal", task.dtype, task.kv_len)
            yield judged, judge.answers(out, discover()[kernel].policies[0])


def right_workload(task: Task) -> Decode:
    """Return requests of one length; odd seeds add an empty request and a short one."""
    lengths = (task.kv_len,) * LENGTHS[task.kv_len].batch + (0, 17) * (task.seed % 2)
    q_heads = KV_HEADS * GROUPS[task.seed % len(GROUPS)]
    return Decode(lengths, q_heads, KV_HEADS, decode.HEAD_DIM, decode.PAGE_SIZE, task.dtype)


def _right_runs(task: Task, device: str) -> Iterator[tuple[Judged, dict[str, str]]]:
    """Run every decode kernel; the seed chooses the policy, and whether to set keys_per_split."""
    from labkernels import ops

    case = distributed_inputs(
        task.family, right_workload(task), ExactNormal(100 + task.seed, device)
    )
    judge = Criteria(case)
    for name, spec in discover().items():
        if spec.operation != "decode" or (spec.language == "triton" and device == "cpu"):
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
        out = done.out
        if policy.out == "fp64":  # the reference's output is rounded, as a kernel's store does
            out, policy = out.to(case.q.dtype), replace(policy, out="input")
        yield Judged(name, "", task.family, task.dtype, task.kv_len), judge.answers(out, policy)
