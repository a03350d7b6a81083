"""Eight bits: what was recorded, inputs that a cache of 8 bits holds, and two tiles of keys."""

from dataclasses import replace

import numpy as np
import pytest
from torch.nn.functional import pad

from labkernels.chapters import eight_bits as chapter
from labkernels.chapters import live
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.kernels.decode.inputs import decode_inputs
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.prefill.fp8 import CODES, step_of
from labkernels.kernels.prefill.inputs import prefill_inputs
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.random_inputs import Normal
from labkernels.measure import real_inputs
from labkernels.numerics.error.quantization import Stored
from labkernels.policy import NumericPolicy

FEW = {"q_heads": 4, "kv_heads": 2, "head_dim": 64, "dtype": "bf16"}


def test_recorded_times_have_both_caches():
    found = chapter.times()
    assert set(found.cache) == {"16 bits", "e4m3", "e5m2"}
    assert ((found.rate > 0.1) & (found.rate < 1.1)).all()
    assert not found.duplicated(["shape", "heads", "dtype", "cache", "kernel"]).any()


@pytest.mark.parametrize("each_head", [False, True])
def test_a_held_cache_is_the_inputs_but_for_their_rounding(each_head):
    drawn = decode_inputs(Decode((40, 17), **FEW), Normal(0, "cpu"))
    given, eight = chapter.held(drawn, "e4m3", each_head=each_head)
    for before, after in zip(given.cache.values(), eight.cache.values(), strict=True):
        off = (before.double() - after).abs()
        assert (off <= 2**-4 * before.double().abs() + 1e-3).all()
    scales = eight.cache.k_scale
    assert (scales[0] == scales[1]) != each_head
    assert eight.cache.k.float().abs().max() == 448


def test_the_expected_error_of_a_decode_and_of_a_prefill():
    drawn = decode_inputs(Decode((200,) * 12, **FEW), Normal(3, "cpu"))
    drawn.q.div_(2)
    given, eight = chapter.held(drawn, "e4m3")
    chunk = prefill_inputs(Prefill((8,) * 4, (200,) * 4, **FEW), Normal(4, "cpu"))
    chunk.q.div_(2)
    read, stored = chapter.held_prefill(chunk, "e4m3")
    cases = ((given, eight, chapter.stored_as(eight)), (chunk, read, stored))
    for (before, after, how), operation in zip(cases, ("decode", "prefill"), strict=True):
        out = live.output(operation, after, f"{operation}_fma")
        error = out - live.truth(before)
        sigma = chapter.expected(before, after, how, NumericPolicy())
        assert abs(np.sqrt((error**2).mean() / (sigma**2).mean()) - 1) <= 0.1


def check_forward(given, accumulate):
    """Compare the error of a prefill of codes with the error to expect, by head and by sample."""
    work, ends, inputs = replace(given.workload, head_dim=128), given.kv.cu_seqlens, []
    tensors = [pad(x, (0, 128 - x.shape[2])) for x in (given.q, given.kv.k, given.kv.v)]
    for q, k, v in (tensors, [x.to(CODES).to(x.dtype) for x in tensors]):
        inputs.append(replace(given, workload=work, q=q, kv=RaggedKV(k, v, ends)))
    policy = NumericPolicy(accumulate=accumulate)
    step = step_of(inputs[1], policy=policy, splits=1, target="h200")
    step.run()
    stored, policy = dict.fromkeys("qkv", Stored("e4m3")), replace(policy, p="e4m3")
    parts = (
        live.truth(inputs[0]) - step.out.double().numpy(),
        chapter.expected(*inputs, stored, policy),
    )
    error, told = (x.reshape(len(ends) - 1, -1, *x.shape[1:]) ** 2 for x in parts)
    for others in ((0, 1, 3), (1, 2, 3)):
        assert np.sqrt(error.mean(others) / told.mean(others)) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("accumulate", ["promoted", "tensor_core"])
@pytest.mark.parametrize("keys", [256, 1024])
@pytest.mark.parametrize("mean", [0.0, 1.0])
def test_the_whole_error_of_products_in_8_bits(mean, keys, accumulate):
    work = Prefill((64,) * 2, (keys,) * 2, q_heads=4, kv_heads=2, head_dim=128, dtype="bf16")
    given = prefill_inputs(work, Normal(1, "cpu"))
    given.q.div_(2)
    given.kv.v.add_(mean)
    check_forward(given, accumulate)


@pytest.mark.parametrize("accumulate", ["promoted", "tensor_core"])
def test_the_whole_error_of_products_in_8_bits_in_a_trained_model(accumulate):
    check_forward(real_inputs.prefill_of((224, 240, 256), queries=32), accumulate)


def test_tiles_part_behind_the_first_edge_as_predicted():
    found = chapter.parted([95, 96, 97, 160, 192, 256], "e4m3").set_index("x")
    assert (found.y.loc[:96] == 0).all()
    assert (found.y.loc[97:] > 0).all()
    assert (np.abs(found.y.loc[97:] / found.predicted.loc[97:] - 1) <= 0.2).all()
