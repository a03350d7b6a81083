"""Every bug meets every dtype and length, all answers are counted, and the table shows it."""

import pytest

from labkernels import ops
from labkernels.experiments.accuracy import detection
from labkernels.experiments.accuracy import detection_runs as runs
from labkernels.experiments.accuracy.detection_runs import Judged, Task
from labkernels.experiments.experiment import Options
from labkernels.experiments.harness import CPU
from labkernels.kernels.decode.inputs import DISTRIBUTIONS, distributed_inputs
from labkernels.kernels.random_inputs import ExactNormal
from labkernels.kernels.registry import discover
from labkernels.measure.judge.criteria import ACCEPTED, REFUSED, UNDECIDED, VERDICT, Criteria
from labkernels.measure.mutants import decode
from labkernels.measure.mutants.decode import EMPTY_REQUEST, LENGTHS, MUTANTS
from labkernels.numerics.verdict.criteria import RULES
from labkernels.policy import NumericPolicy
from labkernels.records import schema, store

ORIGIN = {"device": CPU, "commit": "abc1234", "started_utc": "2026-12-01T00:00:00Z"}


def test_every_bug_meets_every_dtype_and_length_and_a_thousand_runs_are_right():
    tasks = runs.tasks(detection.SEEDS)
    assert len(set(tasks)) == len(tasks)
    needs = {mutant.needs for mutant in MUTANTS.values()}
    assert {task.needs for task in tasks if task.is_of_mutants} == needs
    right = [task for task in tasks if not task.is_of_mutants]
    assert {task.family for task in right} == set(DISTRIBUTIONS)
    assert 4 * len(right) >= 1000  # three CUDA kernels and the reference; Triton comes on top
    assert {(task.dtype, task.kv_len) for task in right} == {
        (dtype, kv_len) for dtype in runs.DTYPES for kv_len in LENGTHS
    }
    quick = [task for cell in detection.cells(Options(quick=True)) for task in cell.of]
    assert {(task.dtype, task.kv_len, task.seed) for task in quick} == {("bf16", 305, 0)}
    assert {task.needs for task in quick if task.is_of_mutants} == needs


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


PATH = store.DATA_DIR / detection.DATA_FILE
WANTED_SHARE = 0.99
AGAIN = "P truncated"  # the smallest of all errors; each output is judged in seconds
KERNEL = "decode_mma_n8"  # one of those that have this bug


@pytest.fixture(scope="module")
def rows():
    return store.read(PATH)


def total(rows, column):
    return sum(row[column] for row in rows)


def test_verdict_finds_nearly_all_bugs_and_calls_no_right_kernel_wrong(rows):
    mine = [row for row in rows if row["rule"] == VERDICT]
    wrong = [row for row in mine if row["mutant"]]
    assert {row["mutant"] for row in wrong} == set(MUTANTS)
    assert total(wrong, "refused") >= WANTED_SHARE * total(wrong, "runs")
    right = [row for row in mine if not row["mutant"]]
    for on_cpu in (True, False):
        found = [row for row in right if (row["device"] == CPU) == on_cpu]
        assert total(found, "runs") >= 1000
        assert total(found, "refused") == 0
        assert {row["kernel"] for row in found} >= {
            "decode_fma",
            "decode_mma",
            "decode_mma_n8",
            "reference",
        }


@pytest.mark.long
def test_a_part_of_the_table_comes_out_again(rows):
    kv_len, dtype = min(LENGTHS), "bf16"
    seen = []
    for seed in range(detection.SEEDS):
        case = decode.exposing_case(MUTANTS[AGAIN], kv_len, dtype, seed=seed, device="cpu")
        out = decode.decode(MUTANTS[AGAIN], KERNEL, case)
        answers = Criteria(case).answers(out, discover()[KERNEL].policies[0])
        seen.append((runs.Judged(KERNEL, AGAIN, "normal", dtype, kv_len), answers))
    again = {key(row): row for row in detection.count(seen)}
    # The CPU build gives the GPU's bits, so the counts do not depend on the recording machine.
    recorded = {key(row): row for row in rows}
    assert len(again) == len(RULES) + 1
    for place, row in again.items():
        then = recorded[place]
        assert row["runs"] == then["runs"], place
        if row["rule"] != VERDICT:
            assert (row["refused"], row["undecided"]) == (then["refused"], then["undecided"]), place
            continue
        # The verdict has learned of more right kernels since the recording: what it refused then
        # it may now leave undecided, but accepts none of it, and still refuses most of it.
        assert row["refused"] + row["undecided"] == then["refused"] + then["undecided"], place
        assert row["refused"] > 0.5 * then["refused"], place


def key(row):
    return tuple(row[name] for name in ("kernel", "mutant", "family", "dtype", "kv_len", "rule"))
