"""The detection experiment runs every bug at every dtype and length, and counts all answers."""

import pytest

from labkernels import ops
from labkernels.experiments.accuracy import detection
from labkernels.experiments.accuracy import detection_runs as runs
from labkernels.experiments.accuracy.detection_runs import Judged, Task
from labkernels.experiments.experiment import Options
from labkernels.experiments.harness import CPU
from labkernels.kernels.decode.inputs import DISTRIBUTIONS, distributed_inputs
from labkernels.kernels.random_inputs import ExactNormal
from labkernels.measure.judge.criteria import ACCEPTED, REFUSED, UNDECIDED, VERDICT, Criteria
from labkernels.measure.mutants.decode import EMPTY_REQUEST, LENGTHS, MUTANTS
from labkernels.numerics.verdict.criteria import RULES
from labkernels.policy import NumericPolicy
from labkernels.records import schema

ORIGIN = {"device": CPU, "commit": "abc1234", "started_utc": "2026-12-01T00:00:00Z"}


def test_every_bug_meets_every_dtype_and_length_and_a_thousand_runs_are_right():
    tasks = runs.tasks(detection.SEEDS)
    assert len(set(tasks)) == len(tasks)
    needs = {task.needs for task in tasks if task.is_of_mutants}
    assert needs == {mutant.needs for mutant in MUTANTS.values()}
    right = [task for task in tasks if not task.is_of_mutants]
    assert {task.family for task in right} == set(DISTRIBUTIONS)
    assert 4 * len(right) >= 1000  # three CUDA kernels and the reference; Triton comes on top
    assert {(task.dtype, task.kv_len) for task in right} == {
        (dtype, kv_len) for dtype in runs.DTYPES for kv_len in LENGTHS
    }


def test_answers_are_counted_by_cell_and_rule():
    cell = Judged("decode_mma", "P truncated", "normal", "bf16", 305)
    other = Judged("decode_mma", "", "peaky", "bf16", 305)
    answers = [
        (cell, {"a": REFUSED, "b": ACCEPTED}),
        (cell, {"a": REFUSED, "b": UNDECIDED}),
        (other, {"a": ACCEPTED}),
    ]
    rows = detection.count(answers)
    counted = {
        (row["mutant"], row["rule"]): (row["runs"], row["refused"], row["undecided"])
        for row in rows
    }
    assert counted == {
        ("P truncated", "a"): (2, 2, 0),
        ("P truncated", "b"): (2, 0, 1),
        ("", "a"): (1, 0, 0),
    }
    for row in rows:
        schema.validate(row | ORIGIN, schema.TABLES["detection"])


def test_a_task_gives_every_rules_answer_to_every_kernel():
    found = runs.run(Task(EMPTY_REQUEST, "", "bf16", 305, 0), "cpu")
    assert {cell.kernel for cell, _ in found} == set(MUTANTS["NaN without keys"].edits)
    for _, answers in found:
        assert set(answers) == {*RULES, VERDICT}
        assert set(answers.values()) == {REFUSED}


@pytest.mark.parametrize("seed", [0, 1])
def test_right_kernels_are_accepted(seed):
    task = Task("", "mean-shifted", "bf16", 305, seed)
    found = runs.run(task, "cpu")
    assert {"decode_fma", "decode_mma", "decode_mma_n8", "reference"} <= {
        cell.kernel for cell, _ in found
    }
    assert [answers[VERDICT] for _, answers in found] == [ACCEPTED] * len(found)
    assert (0 in runs.right_workload(task).kv_lens) == bool(seed)


def test_a_denominator_that_is_not_told_makes_no_false_alarm():
    # l sums the rounded P, one key has nearly all the weight, and the store in fp32 hides nothing
    task = Task("", "peaky", "fp16", 2033, 7)
    case = distributed_inputs(task.family, runs.right_workload(task), ExactNormal(107))
    policy = NumericPolicy(denominator="rounded", out="fp32")
    out = ops.decode(case.q, case.cache, kernel="decode_mma", policy=policy).out
    assert Criteria(case).verdict(out, policy).answer != "BUG"


def test_a_quick_recording_compiles_each_mutant_once():
    tasks = [task for cell in detection.cells(Options(quick=True)) for task in cell.of]
    assert {(task.dtype, task.kv_len, task.seed) for task in tasks} == {("bf16", 305, 0)}
    wrong = [task for task in tasks if task.is_of_mutants]
    assert {task.needs for task in wrong} == {mutant.needs for mutant in MUTANTS.values()}
    chosen = [k for m in MUTANTS.values() for k in runs.kernels(m, every=wrong[0].every_kernel)]
    assert len(chosen) == len(MUTANTS)
    assert set(chosen) == {kernel for mutant in MUTANTS.values() for kernel in mutant.edits}
    assert all(task.every_kernel for cell in detection.cells(Options()) for task in cell.of)
