"""The cut of a decode into splits obeys the same laws for every shape."""

import math

from hypothesis import given
from hypothesis import strategies as st

from labkernels import hardware
from labkernels.kernels.decode.schedule import MAX_SPLITS, keys_per_split
from tests.kernels.contract import CUDA

SHAPES = {
    "units": st.integers(1, 100_000),
    "max_kv_len": st.integers(0, 2**24),
    "slots": st.integers(1, 2000),
    "sm_count": st.integers(1, 160),
    "step": st.sampled_from([32, 64, 128]),
}


@given(**SHAPES)
def test_a_split_is_whole_steps_and_no_more_than_a_grid_holds(
    units, max_kv_len, slots, sm_count, step
):
    keys = keys_per_split(
        units=units, max_kv_len=max_kv_len, slots=slots, sm_count=sm_count, step=step
    )
    assert keys >= step
    assert keys % step == 0
    assert math.ceil(max_kv_len / keys) <= MAX_SPLITS


@given(units=st.integers(1, 8), max_kv_len=st.integers(1, 2**20))
def test_a_small_decode_keeps_the_sms_busy_as_far_as_its_keys_reach(units, max_kv_len):
    gpu = hardware.gpu("h200")
    keys = keys_per_split(
        units=units, max_kv_len=max_kv_len, slots=3 * 132, sm_count=gpu.sm_count, step=64
    )
    splits = math.ceil(max_kv_len / keys)
    assert units * splits >= gpu.sm_count or keys <= 256


def test_the_blocks_that_a_plan_counts_on_fit_every_gpu():
    for gpu in hardware.GPUS.values():
        for spec in CUDA.values():
            for head_dim in spec.head_dims:
                instance = spec.instance(
                    spec.shape(dtype="fp16", head_dim=head_dim, group=8), gpu=gpu
                )
                assert spec.blocks_per_sm(instance, gpu) >= 1
