"""The ragged test's runs: what each kind of inputs lets a rule see; the recorded table again."""

import functools

import pytest

from labkernels import ops
from labkernels.experiments import _ragged_runs as runs
from labkernels.experiments import ragged_test
from labkernels.experiments._ragged_runs import Task
from labkernels.kernels.spec import discover
from labkernels.measure.prefill_mutants import MUTANTS
from labkernels.measure.ragged_test import INPUTS, RaggedTest, draw
from labkernels.records import schema, store

ON_KEYS = ("keys one row early", "keys of another head", "scale applied twice", "missing rescale")
SEEN_BY_LSE = ("padding in the denominator", "dropped key", "mask one key late")


@functools.cache
def refusals(inputs: str, kernel: str = "prefill_fma"):
    """Return {(kernel, mutant, rule): refused} of one causal task in bf16 on the CPU build."""
    task = Task(RaggedTest(True, "bf16").of_length(177), inputs, seed=0)
    found = list(runs.run(task, "cpu", only=kernel))
    assert {rule for *_, rule, _ in found} == set(runs.RULES)
    return {(kernel, mutant, rule): no for kernel, mutant, rule, no in found}


def test_inputs_are_zero_where_they_say():
    for inputs in INPUTS:
        drawn = draw(RaggedTest(True, "bf16").of_length(17), inputs, seed=0)
        assert (not drawn.kv.k.any()) == (inputs != "random")
        assert (not drawn.kv.v.any()) == (inputs == "K = V = 0")
        assert drawn.q.any()
        assert drawn.problem().out_shape == (34, 4, 128)
    with pytest.raises(ValueError, match="inputs = 'K', allowed: K = 0, K = V = 0, random"):
        draw(RaggedTest(True, "bf16"), "K", seed=0)


def test_every_mutant_is_made_of_a_line_that_is_there():
    for mutant in MUTANTS.values():
        assert mutant.edits
        for kernel in mutant.edits:
            assert mutant.spec(kernel).overlay is not None


def test_without_keys_no_rule_sees_a_bug_of_the_keys():
    found = refusals("K = 0")
    assert not any(no for (_, mutant, _), no in found.items() if mutant in (*ON_KEYS, ""))
    seen = {mutant for (_, mutant, rule), no in found.items() if no and rule == runs.VERDICT}
    assert seen == set(MUTANTS) - set(ON_KEYS)


@pytest.mark.parametrize("dtype", runs.DTYPES)
def test_queries_that_are_one_computation_count_once(dtype):
    """With equal keys and a full mask every query of a head has the same output and error."""
    drawn = draw(RaggedTest(False, dtype).of_length(177), "K = 0", seed=0)
    done = ops.prefill(drawn.q, drawn.kv, drawn.cu_seqlens_q, kernel="prefill_mma")
    answers = runs.Judge(drawn)(done.out, done.lse2, discover()["prefill_mma"].policies[0])
    assert not answers[runs.VERDICT]
    wrong = done.out * 1.004  # an ulp of bf16, and eight of fp16
    assert runs.Judge(drawn)(wrong, done.lse2, discover()["prefill_mma"].policies[0])[runs.VERDICT]


def test_without_values_only_lse_can_tell():
    found = refusals("K = V = 0")
    seen = {mutant for (_, mutant, rule), no in found.items() if no and rule == runs.VERDICT}
    assert seen == set(SEEN_BY_LSE)
    cosines = {no for (_, _, rule), no in found.items() if rule == "cosine"}
    assert cosines == {True}, "of two zeros the cosine rule says that they differ"


@pytest.mark.parametrize("kernel", ["prefill_fma", "prefill_mma"])
def test_on_random_inputs_the_verdict_sees_all_and_accuses_none(kernel):
    found = refusals("random", kernel)
    for (_, mutant, rule), no in found.items():
        if rule == runs.VERDICT:
            assert no == bool(mutant), mutant


def test_rows_are_whole():
    task = Task(RaggedTest(False, "bf16").of_length(17), "random", 0)
    counted = ragged_test.count([(task, [("prefill_fma", "", "cosine", True)] * 2)])
    assert [(row["runs"], row["refused"]) for row in counted] == [(2, 2)]
    origin = {"device": "a GPU", "commit": "abc1234", "started_utc": "2026-12-01T00:00:00Z"}
    schema.validate(counted[0] | origin, schema.DETECTION)


def test_the_recorded_answers_are_met_again_on_the_cpu():
    """The bits are the same, and so are all answers, for the seeds that were recorded."""
    rows = store.read(store.DATA_DIR / ragged_test.DETECTION_FILE)
    where = {"family": "K = V = 0, causal", "dtype": "bf16", "kv_len": 177}
    recorded = {
        (row["kernel"], row["mutant"], row["rule"]): row["refused"]
        for row in store.select(rows, where)
    }
    found = refusals("K = V = 0")
    assert found.keys() == {key for key in recorded if key[0] == "prefill_fma"}
    for key, no in found.items():
        # of zeros and of uniform weights every seed says the same
        assert recorded[key] == ragged_test.SEEDS * no, key
