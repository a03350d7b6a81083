from dataclasses import replace

import numpy as np
import pytest
import torch

from labkernels import ops
from labkernels.chapters import live
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.kernels.decode.inputs import decode_inputs
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.random_inputs import ExactNormal, Normal
from labkernels.kernels.registry import discover
from labkernels.measure import error_budget, real_inputs
from labkernels.measure.judge.judge import judge_of
from labkernels.numerics import metrics, rounding
from labkernels.numerics.emulation.decode import SOURCES, emulate
from labkernels.numerics.error import budget as model
from labkernels.numerics.truth.problem import Problem
from labkernels.policy import CUDA_CORES, TENSOR_CORES, NumericPolicy

LENGTHS = (300, 17, 0, 200)
BITS = [  # kernel, head_dim, group, policy
    ("decode_mma", 128, 4, TENSOR_CORES),
    ("decode_mma", 64, 16, NumericPolicy(p="input_x2", denominator="rounded", out="fp32")),
    ("decode_mma_n8", 128, 4, replace(TENSOR_CORES, out="fp32")),
    ("decode_mma_n8", 128, 4, NumericPolicy(accumulate="promoted", out="fp32")),
    ("decode_mma_n8", 256, 4, replace(TENSOR_CORES, exp2="poly5")),
    ("decode_fma", 64, 4, CUDA_CORES),
    ("decode_fma", 128, 1, CUDA_CORES),
    ("decode_fma", 128, 4, replace(CUDA_CORES, out="fp32")),
    ("decode_fma", 256, 16, replace(CUDA_CORES, exp2="poly3")),
]


def case(group=4, head_dim=128, dtype="bf16", lengths=LENGTHS):
    workload = Decode(lengths, 2 * group, 2, head_dim, 16, dtype)
    return decode_inputs(workload, ExactNormal(0))


def test_only_the_store_of_a_sinks_value_errs_less_than_the_budget():
    drawn, how = real_inputs.decode_of(range(193, 257), ("first key",)), {"kernel": "decode_mma"}
    policy = NumericPolicy(out="fp32")
    budget = error_budget.error_budget(*drawn.arguments, policy, **how)
    spread = metrics.rms(budget.z(live.output("decode", drawn, **how, policy=policy)), by="head")
    assert np.allclose(spread, 1, atol=0.15)
    stored = budget.stored("bf16")
    spread = metrics.rms(stored.z(live.output("decode", drawn, **how)), by="head")
    assert np.allclose(spread, (1, 0.8, 0.2), atol=0.05)
    rounded = metrics.rms(stored.z(rounding.round_to(budget.o, "bf16")), by="head")
    assert np.allclose(spread, rounded, atol=0.06)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("kernel", "head_dim", "group", "policy"), BITS)
@pytest.mark.parametrize("keys_per_split", [1024, 48])
def test_the_chain_in_numpy_has_the_kernels_bits(kernel, head_dim, group, policy, keys_per_split):
    inputs = case(group, head_dim)
    way = {"kernel": kernel, "policy": policy, "keys_per_split": keys_per_split}
    out = ops.decode(inputs.q, inputs.cache, **way).out.double().numpy()
    found = error_budget.setting(inputs.q, inputs.cache, **way)
    assert (emulate(found.problem, found.policy, found.order) == out).all()


@pytest.mark.parametrize("policy", [TENSOR_CORES, replace(CUDA_CORES, out="fp32")])
def test_a_measured_budget_is_near_its_prediction(policy):
    inputs = case(lengths=(400,) * 12)
    kernel = "decode_fma" if policy.accumulate == "fma" else "decode_mma_n8"
    measured = error_budget.measured_budget(inputs.q, inputs.cache, policy, kernel=kernel)
    predicted = error_budget.error_budget(inputs.q, inputs.cache, policy, kernel=kernel)
    assert (predicted.sigma == measured.budget.sigma).all()
    rows = measured.rows(by="head")
    assert [row["source"] for row in rows[::8]] == [error_budget.TOTAL, *SOURCES]
    totals = [row for row in rows if row["source"] == error_budget.TOTAL]
    spread = np.sqrt([row["measured_share"] for row in totals])
    assert spread == pytest.approx(np.ones(8), rel=0.25)
    parts = [row for row in rows if row["source"] != error_budget.TOTAL]
    assert sum(row["predicted_share"] for row in parts) == pytest.approx(8, rel=1e-9)
    assert sum(row["measured_share"] for row in parts) == pytest.approx(
        sum(row["measured_share"] for row in totals), rel=0.1
    )
    assert {row["sample"] for row in measured.rows(by="sample")} == set(range(12))


def test_a_comparison_notices_a_bias_and_its_noise():
    inputs = case(lengths=(64,) * 6)
    budget = error_budget.error_budget(inputs.q, inputs.cache, kernel="decode_mma_n8")
    error = budget.bias + 1e-3 * np.sign(budget.o)
    how = (error_budget.TOTAL, error, budget.bias, budget.sigma**2, budget)
    row = error_budget.comparison(*how, by="head")[0]
    assert row["measured_bias"] - row["predicted_bias"] == pytest.approx(1e-3)
    assert row["bias_noise"] == pytest.approx(0, abs=1e-12)
    assert row["measured_variance"] == pytest.approx(1e-6)
    z = 1e-3 / budget.sigma
    assert row["measured_share"] == pytest.approx(metrics.mean(z**2, by="head")[0])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("out", ["fp32", "input"])
def test_the_budget_holds_for_causal_prefill(dtype, out):
    tokens, keys, head_dim = 150, 220, 64
    generator = torch.Generator().manual_seed(0)
    kind = {"fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
    shapes = ((tokens, 4, head_dim), (keys, 2, head_dim), (keys, 2, head_dim))
    q, k, v = (torch.randn(shape, generator=generator).to(kind) for shape in shapes)
    ends = [torch.tensor([0, n], dtype=torch.int32) for n in (tokens, keys)]
    policy = replace(CUDA_CORES, out=out)
    way = {"causal": True, "kernel": "prefill_fma", "policy": policy}
    result = ops.prefill(q, RaggedKV(k, v, ends[1]), ends[0], **way)
    problem = Problem.packed(
        *(x.double().numpy() for x in (q, k, v)),
        ends[1].numpy(),
        scale=head_dim**-0.5,
        cu_seqlens_q=ends[0].numpy(),
        causal=True,
    )
    spec = discover()["prefill_fma"]
    instance = spec.instances(spec.shape(dtype=dtype, head_dim=head_dim, rows=256), policy)[0]
    order = error_budget.summation_order(instance, keys)
    budget = model.error_budget(problem, policy.of(dtype), order)
    z = budget.z(result.out.double().numpy())
    assert metrics.rms(z, by="head") == pytest.approx(np.ones(4), rel=0.15)
    assert metrics.rms(z[:20], by="all") == pytest.approx(1, rel=0.15)  # rows of few keys


@pytest.mark.parametrize("kernel", ["decode_fma", "decode_mma"])
def test_heads_that_fill_a_part_of_their_tiles(kernel):
    q, cache = decode_inputs(Decode((300, 64), 8, 2, 80, 16, "bf16"), Normal(0, "cpu")).arguments
    found = error_budget.measured_budget(q, cache, kernel=kernel, keys_per_split=128)
    assert metrics.rms(found.error / found.budget.sigma, by="all") == pytest.approx(1, rel=0.15)


@pytest.fixture(params=["fp16", "bf16"])
def ragged(request):
    workload = Decode((300, 0, 64), 8, 2, 64, 16, request.param)
    return decode_inputs(workload, Normal(0, "cpu"))


def test_without_tensor_cores_only_the_store_rounds_and_they_add_a_variance(ragged):
    truth = judge_of("decode", ragged).reference.o
    dtype = ragged.workload.dtype
    stored = metrics.rms(metrics.difference(rounding.round_to(truth, dtype), truth), by="all")
    off, on, unstored = (
        error_budget.decode_sigma(ragged, policy=policy)
        for policy in (CUDA_CORES, TENSOR_CORES, replace(TENSOR_CORES, out="fp32"))
    )
    assert metrics.rms(off, by="all") == pytest.approx(stored, rel=0.1)
    kept = np.array([0, 2])
    assert (on[kept] > off[kept]).all()
    assert np.allclose(on[kept] ** 2, off[kept] ** 2 + unstored[kept] ** 2, rtol=1e-3)
    assert not on[1].any()  # a request without keys
