"""The ragged test's runs: what each kind of inputs lets a rule see; the recorded table again."""

import functools

import pytest

from labkernels.experiments import _ragged_runs as runs
from labkernels.experiments import ragged_test
from labkernels.experiments._ragged_runs import Task
from labkernels.measure.prefill_mutants import MUTANTS
from labkernels.measure.ragged_test import INPUTS, RaggedTest, draw
from labkernels.records import schema

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
