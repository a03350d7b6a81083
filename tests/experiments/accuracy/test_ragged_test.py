"""Each kind of inputs of the ragged test shows certain bugs to a rule, as was recorded."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest

from labkernels import ops
from labkernels.chapters.the_test_that_could_not_fail import INPUTS, draw, ragged_test
from labkernels.kernels.registry import discover
from labkernels.measure.judge.criteria import ACCEPTED, REFUSED, VERDICT, Criteria
from labkernels.measure.mutants.prefill import MUTANTS
from labkernels.numerics import arrays, metrics
from labkernels.numerics.verdict.verdict import BUG, ROUNDING

ON_KEYS = ("keys one row early", "keys of another head", "scale applied twice", "missing rescale")
SEEN_BY_LSE = ("padding in the denominator", "dropped key", "mask one key late")
THE_TEST = {"the test, 1e-3": 1e-3, "the test, 1e-2": 1e-2}  # one limit for out and LSE
RULES = (*THE_TEST, "FA 2x", "PyTorch fudge", "cosine", VERDICT)


def criteria_of(drawn):
    return Criteria(SimpleNamespace(dtype=drawn.workload.dtype, problem=drawn.problem))


@functools.cache
def answers(inputs: str, kernel: str = "prefill_fma"):
    """Return {(mutant, rule): answer} on one causal test in bf16, on the CPU build."""
    drawn = draw(ragged_test(True, "bf16"), inputs, seed=0)
    judge, policy, found = criteria_of(drawn), discover()[kernel].policies[0], {}
    wrong = {name: mutant.spec(kernel) for name, mutant in MUTANTS.items()}
    for name, spec in {"": kernel, **wrong}.items():
        args = (drawn.q, drawn.kv, drawn.cu_seqlens_q)
        done = ops.prefill(*args, causal=True, scale=drawn.scale, kernel=spec)
        reference = judge.sample(done.out, policy).reference
        pairs = ((done.out, reference), (done.lse2, judge.truth_lse2))
        by_rule = judge.answers(done.out, policy, done.lse2)
        for rule, limit in THE_TEST.items():
            by_rule[rule] = ACCEPTED if all(close(*pair, limit) for pair in pairs) else REFUSED
        found |= {(name, rule): by_rule[rule] for rule in RULES}
    return found


def close(out, reference, limit):
    off = np.abs(metrics.difference(arrays.as_float64(out), reference))
    return (off <= limit + limit * np.abs(reference)).all()


def refused_by(rule: str, found) -> set[str]:
    """Return the mutants that a rule refuses; "" is the right kernel."""
    return {mutant for (mutant, by), word in found.items() if by == rule and word == REFUSED}


def test_inputs_are_zero_where_they_say():
    for inputs in INPUTS:
        drawn = draw(ragged_test(True, "bf16", q_len=17, kv_len=17), inputs, seed=0)
        assert (not drawn.kv.k.any()) == (inputs != "random")
        assert (not drawn.kv.v.any()) == (inputs == "K = V = 0")
        assert drawn.q.any()
        assert drawn.problem().out_shape == (34, 4, 128)
    with pytest.raises(ValueError, match="inputs = 'K', allowed: K = 0, K = V = 0, random"):
        draw(ragged_test(True, "bf16"), "K", seed=0)


def test_without_keys_no_rule_sees_a_bug_of_the_keys():
    found = answers("K = 0")
    for rule in RULES:
        assert not refused_by(rule, found) & {*ON_KEYS, ""}
    assert refused_by(VERDICT, found) == set(MUTANTS) - set(ON_KEYS)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_queries_that_are_one_computation_count_once(dtype):
    """With equal keys and a full mask every query of a head has the same output and error."""
    drawn = draw(ragged_test(False, dtype), "K = 0", seed=0)
    done = ops.prefill(drawn.q, drawn.kv, drawn.cu_seqlens_q, kernel="prefill_mma")
    judge, policy = criteria_of(drawn), discover()["prefill_mma"].policies[0]
    assert judge.verdict(done.out, policy, done.lse2).answer == ROUNDING
    wrong = done.out * 1.004  # an ulp of bf16, and eight of fp16
    named = dtype == "bf16"  # the search for the name takes ten times as long as the rest
    assert judge.verdict(wrong, policy, done.lse2, named=named).answer == BUG


def test_without_values_only_lse_can_tell():
    found = answers("K = V = 0")
    assert refused_by(VERDICT, found) == set(SEEN_BY_LSE)
    everything = {mutant for mutant, _ in found}
    told = "of two zeros the cosine rule says that they differ"
    assert refused_by("cosine", found) == everything, told


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kernel", ["prefill_fma", "prefill_mma"])
def test_on_random_inputs_the_verdict_sees_all_and_accuses_none(kernel):
    found = answers("random", kernel)
    assert refused_by(VERDICT, found) == set(MUTANTS)
    assert found["", VERDICT] == ACCEPTED
