"""The recorded detection table shows what it must, and a part of it is computed again."""

import pytest

from labkernels.experiments.accuracy import detection
from labkernels.experiments.accuracy import detection_runs as runs
from labkernels.experiments.harness import CPU
from labkernels.kernels.registry import discover
from labkernels.measure.judge.criteria import VERDICT, Criteria
from labkernels.measure.mutants import decode
from labkernels.measure.mutants.decode import LENGTHS, MUTANTS
from labkernels.numerics.verdict.criteria import RULES
from labkernels.records import store

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
        assert {row["kernel"] for row in found} >= {*decode.KERNELS, "reference"}


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
