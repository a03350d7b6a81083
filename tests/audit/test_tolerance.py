"""A computed tolerance accepts right outputs, is not loose, and lists the bugs that it misses."""

import numpy as np
import pytest

from labkernels import cli, ops
from labkernels.audit import tolerance
from labkernels.chapters.eight_bits import held
from labkernels.kernels.decode.inputs import decode_inputs
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.random_inputs import Normal
from labkernels.measure.mistakes import unseen
from labkernels.numerics import rounding
from labkernels.numerics.error import bounds
from labkernels.numerics.truth import oracle
from labkernels.policy import NumericPolicy
from tests.measure.strangers import inputs, right

KINDS = ("flash, blocks of 64", "flash, blocks of 16 shuffled, l of rounded P", "flash, 4 splits")


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("shape", [inputs.Shape(4, 8, 2, 1, 500, 64), inputs.SHAPES[2]])
def test_right_outputs_keep_it_and_it_is_not_loose(dtype, shape):
    causal = shape.causal
    found = tolerance.tolerance(
        shape.batch,
        shape.keys,
        queries=shape.queries,
        q_heads=shape.q_heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.dim,
        dtype=dtype,
        causal=causal,
    )
    used = []
    for seed in range(4):
        call = inputs.call("normal", shape, dtype, seed)
        truth = right.exact(call)[0].numpy()
        for kind in KINDS:
            out = right.RIGHT[kind](call).double().numpy()
            assert found.accepts(out, truth), kind
            reference = rounding.round_to(truth, dtype)
            off = np.abs(out - reference)
            assert (off <= found.atol + found.rtol_to_rounded * np.abs(reference)).all()
            used.append(((np.abs(out - truth) - found.rtol * np.abs(truth)) / found.atol).max())
    assert 0.1 < max(used) <= 1  # rows of few keys are worse than most


def test_it_holds_for_given_inputs_and_stays_below_the_bound():
    problem = tolerance.sample(4, 300, 1, 4, 2, 64, "bf16")
    policy = NumericPolicy(denominator=None).of("bf16")
    found = tolerance.of_problem(problem, policy)
    assert found.elements == np.prod(problem.out_shape)
    o, _ = oracle.attention(problem)
    assert (found.atol + found.rtol * np.abs(o) < bounds.out_bound(problem, policy)).all()
    assert not found.accepts(np.where(o == o.max(), np.nan, o), o)


@pytest.mark.parametrize("kv_dtype", ["e4m3", "e5m2"])
def test_a_cache_of_8_bits_keeps_its_own(kv_dtype):
    sizes = {"q_heads": 8, "kv_heads": 2, "head_dim": 64}
    found = tolerance.tolerance(6, 500, dtype="bf16", kv_dtype=kv_dtype, **sizes)
    used = []
    for seed in range(4):
        drawn = decode_inputs(Decode.uniform(6, 500, dtype="bf16", **sizes), Normal(seed, "cpu"))
        before, after = held(drawn, kv_dtype)
        truth = oracle.attention(before.problem().in_numpy())[0]
        out = ops.decode(*after.arguments, scale=after.scale).out.double().numpy()
        assert found.accepts(out, truth)
        used.append(((np.abs(out - truth) - found.rtol * np.abs(truth)) / found.atol).max())
    assert 0.3 < max(used) <= 1
    assert f"what {kv_dtype} rounds of K and V" in found.summary()


def test_p_in_8_bits_has_no_bound():
    policy = NumericPolicy(p="e4m3", denominator=None)
    assert "no bound, since P in e4m3" in tolerance.tolerance(2, 999, policy=policy).summary()


def test_mistakes_that_a_tolerance_lets_through_are_said():
    shape = unseen.shape_like(2, 8, 2, 1, 512, 64, causal=False)
    wide = tolerance.tolerance(2, 512, q_heads=8, kv_heads=2, head_dim=64, dtype="bf16")
    passed, tried = unseen.mistakes(wide, shape, "bf16", count=120)
    errors = [error for error, _ in passed]
    assert errors == sorted(errors, reverse=True)
    assert 0 < len(passed) < tried / 2
    assert not any(mistake.edit.startswith("the output of") for _, mistake in passed)


def test_the_command_prints_the_pair_and_refuses_nonsense(capsys):
    assert cli.main(["tolerance", "--decode", "3x256", "--heads", "4/2", "--head-dim", "64"]) == 0
    text = capsys.readouterr().out
    assert "atol = " in text
    assert "simulated mistakes" in text
    for wrong in (["--decode", "3"], ["--decode", "0x5"], ["--decode", "1x5", "--heads", "3/2"]):
        assert cli.main(["tolerance", *wrong]) == 2
        assert capsys.readouterr().err.count("\n") == 1
