import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkernels.budget import least_time
from labkernels.hardware import GPUS, gpu
from labkernels.kernels.backward.workload import Backward
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.mla.workload import MlaDecode
from labkernels.kernels.prefill.workload import Prefill

CASE_000 = Decode.uniform(57, 8192, q_heads=32, kv_heads=8)


@pytest.mark.parametrize(("key", "ms"), [("a100", 0.94), ("h100", 0.57), ("h200", 0.40)])
def test_case_000_is_bound_by_memory(key, ms):
    for tensor_cores in (False, True):
        floor = least_time(CASE_000, gpu(key), tensor_cores=tensor_cores)
        assert (floor.bound, round(floor.time_s * 1e3, 2)) == ("memory", ms)
    rate = gpu("h200").measured_copy_bytes_per_s
    floor = least_time(CASE_000, gpu("h200"), tensor_cores=True, bytes_per_s=rate)
    assert floor.time_s == CASE_000.bytes / rate


def test_tensor_cores_compute_whole_tiles():
    h200 = gpu("h200")
    rows16 = least_time(CASE_000, h200, tensor_cores=True, mma_rows=16)
    rows8 = least_time(CASE_000, h200, tensor_cores=True, mma_rows=8)
    assert rows16.math_s == pytest.approx(4 * CASE_000.flops / h200.tensor_fp16_flops)
    assert rows16.math_s == pytest.approx(2 * rows8.math_s)
    cuda_cores = least_time(CASE_000, h200, tensor_cores=False)
    assert cuda_cores.math_s == pytest.approx(CASE_000.flops / h200.fp32_flops)


def test_a_large_group_is_bound_by_math_or_by_exponentials():
    wide = Decode.uniform(57, 8192, q_heads=256, kv_heads=8)
    assert least_time(wide, gpu("h200"), tensor_cores=False).bound == "math"
    assert least_time(wide, gpu("h200"), tensor_cores=True).bound == "memory"
    small = Decode.uniform(57, 8192, q_heads=512, kv_heads=4, head_dim=16)
    floor = least_time(small, gpu("h200"), tensor_cores=True, mma_rows=16)
    assert floor.bound == "exp"
    assert floor.exp_s == pytest.approx(57 * 8192 * 512 / (132 * 16 * 1.98e9))


def test_tokens_of_a_prefill_fill_the_tiles():
    h200, causal = gpu("h200"), Prefill((4096,) * 4, (4096,) * 4, 32, 8, 128, causal=True)
    floor = least_time(causal, h200, tensor_cores=True)
    assert floor.math_s == pytest.approx(4 * 4096**2 / 2 * 4 * 32 * 128 / h200.tensor_fp16_flops)
    backward = Backward((4096,) * 4, (4096,) * 4, 32, 8, 128, causal=True)
    assert least_time(backward, h200, tensor_cores=True).math_s == pytest.approx(2.5 * floor.math_s)
    assert causal.exps == backward.exps == pytest.approx(4 * 4096**2 / 2 * 32)


@given(st.sampled_from(sorted(GPUS)), st.lists(st.integers(0, 10**5), min_size=1, max_size=4))
def test_the_floor_is_the_largest_of_its_parts_and_grows(key, lengths):
    def floor(kv_lens):
        return least_time(Decode(kv_lens, 32, 8, 128), gpu(key), tensor_cores=True, mma_rows=16)

    short, long = floor(lengths), floor([n + 1 for n in lengths])
    assert short.time_s == max(short.memory_s, short.math_s, short.exp_s)
    assert short.time_s == getattr(short, f"{short.bound}_s")
    assert short.time_s < long.time_s


def test_bad_requests_are_refused():
    with pytest.raises(ValueError, match=r"mma_rows = 12, allowed: None, 8, 16"):
        least_time(CASE_000, gpu("h200"), tensor_cores=True, mma_rows=12)
    for rate in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"bytes_per_s = .*, allowed: a"):
            least_time(CASE_000, gpu("h200"), tensor_cores=True, bytes_per_s=rate)


def test_mla_turns_from_memory_to_products_at_the_ridge():
    """A row takes 2 x 1088 FLOPs per key of 1152 bytes: the ridge is at 109 rows at peak rates."""
    h200 = gpu("h200")
    bounds = {
        heads: least_time(MlaDecode((8192,) * 64, heads), h200, tensor_cores=True).bound
        for heads in (16, 64, 112, 128)
    }
    assert bounds == {16: "memory", 64: "memory", 112: "math", 128: "math"}
    padded = least_time(MlaDecode((8192,), 16), h200, tensor_cores=True, mma_rows=64)
    plain = least_time(MlaDecode((8192,), 16), h200, tensor_cores=True)
    assert padded.math_s == pytest.approx(4 * plain.math_s)
