"""A run of the detection experiment: a kernel, wrong or right, judged by verdict and rules."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from labkernels.kernels.spec import discover
from labkernels.measure import mutants
from labkernels.measure.families import FAMILIES, family_case
from labkernels.measure.judge import Judge
from labkernels.measure.mutants import LENGTHS, MUTANTS
from labkernels.workload import Decode

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
    def label(self) -> str:
        """The task in one line, as `only` picks it."""
        kind = "mutants" if self.is_of_mutants else f"right/{self.family}"
        return f"{kind}/{self.dtype}/{self.kv_len}"

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
    judge = Judge(case)
    for mutant in chosen:
        for kernel in mutant.edits:
            out = mutants.decode(mutant, kernel, case)
            cell = Cell(kernel, mutant.name, "normal", task.dtype, task.kv_len)
            yield cell, judge.answers(out, discover()[kernel].policies[0])


def right_workload(task: Task) -> Decode:
    """Requests of one length; every other seed has an empty and a short one beside them."""
    lengths = (task.kv_len,) * LENGTHS[task.kv_len].batch + (0, 17) * (task.seed % 2)
    q_heads = KV_HEADS * GROUPS[task.seed % len(GROUPS)]
    return Decode(lengths, q_heads, KV_HEADS, mutants.HEAD_DIM, mutants.PAGE_SIZE, task.dtype)


def _right_runs(task: Task, device: str) -> Iterator[tuple[Cell, dict[str, str]]]:
    """Every decode kernel, its policies in turn by seed, split and not."""
    from labkernels import ops

    case = family_case(task.family, right_workload(task), seed=100 + task.seed, device=device)
    judge = Judge(case)
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
        out = done.out
        if policy.out == "fp64":  # the truth, stored as a kernel would
            out, policy = out.to(case.q.dtype), replace(policy, out="input")
        yield Cell(name, "", task.family, task.dtype, task.kv_len), judge.answers(out, policy)
