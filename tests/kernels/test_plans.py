"""The cut of a decode into splits, the most splits of any plan, and the order of the kernels."""

from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkernels import hardware
from labkernels.kernels.choice import Ask, choose
from labkernels.kernels.decode.schedule import FULL_BLOCKS_PER_SM, MAX_SPLITS, keys_per_split
from labkernels.kernels.packed_gqa.schedule import SPLITS, Lengths, schedule
from labkernels.kernels.packed_gqa.tile import PrefillTile
from labkernels.kernels.registry import discover
from labkernels.numerics.error.execution import SPLITS_ALLOWED
from labkernels.variant import AttentionVariant

KEYS = 2**24
MOST_SMS = max(gpu.sm_count for gpu in hardware.GPUS.values())


def test_a_bound_allows_the_most_splits_that_a_plan_chooses():
    assert max(SPLITS[-1], FULL_BLOCKS_PER_SM * MOST_SMS) == SPLITS_ALLOWED


def test_packed_rows_are_cut_into_all_splits_that_are_tried():
    lengths, tile = Lengths(np.array([1]), np.array([KEYS])), PrefillTile(16, 64, 4, 2, 1)
    how = {"kv_heads": 1, "group": 1, "variant": AttentionVariant(True)}
    slots = (1, 132, SPLITS[-1], 10 * SPLITS[-1])
    found = [schedule(lengths, tile, slots=each, **how).splits for each in slots]
    assert found[0] == 1
    assert max(found) == SPLITS[-1]


@pytest.mark.parametrize("converts", [False, True])
def test_a_decode_of_any_number_of_blocks_has_no_more_splits_than_one_block(converts):
    slots = 8 * MOST_SMS
    how = {"max_kv_len": KEYS, "slots": slots, "sm_count": MOST_SMS, "step": 64}
    how["converts"] = converts
    found = [ceil(KEYS / keys_per_split(units=n, **how)) for n in range(1, 3 * slots)]
    assert found[0] == max(found) == FULL_BLOCKS_PER_SM * MOST_SMS


@given(
    units=st.integers(1, 100_000),
    max_kv_len=st.integers(0, 2**24),
    slots=st.integers(1, 2000),
    sm_count=st.integers(1, 160),
    step=st.sampled_from([32, 64, 128]),
    converts=st.booleans(),
)
def test_a_split_is_whole_steps_and_no_more_than_a_grid_holds(max_kv_len, step, **shape):
    keys = keys_per_split(max_kv_len=max_kv_len, step=step, **shape)
    assert keys >= step
    assert keys % step == 0
    assert ceil(max_kv_len / keys) <= MAX_SPLITS


@given(units=st.integers(1, 8), max_kv_len=st.integers(1, 2**20))
def test_a_small_decode_keeps_the_sms_busy_as_far_as_its_keys_reach(units, max_kv_len):
    how = {"slots": 3 * 132, "sm_count": 132, "step": 64}
    keys = keys_per_split(units=units, max_kv_len=max_kv_len, **how)
    assert units * ceil(max_kv_len / keys) >= 132 or keys <= max(256, 2 * max_kv_len**0.5 + 64)


@pytest.mark.parametrize(
    ("rows", "keys", "splits"), [(4, 65536, 64), (2, 65536, 86), (1, 65536, 128), (1, 4096, 16)]
)
def test_a_request_has_fewer_splits_where_one_warp_merges_more_rows(rows, keys, splits):
    how = {"units": 1, "slots": 528, "sm_count": 132, "step": 64, "merged_rows": rows}
    assert ceil(keys / keys_per_split(max_kv_len=keys, **how)) == splits


@pytest.mark.parametrize(
    ("units", "keys", "splits"), [(8, 131072, 64), (8, 262144, 64), (200, 8192, 2), (456, 8192, 1)]
)
def test_a_decode_of_8_bits_fills_the_blocks_that_the_gpu_holds(units, keys, splits):
    h200 = hardware.gpu("h200")
    shape = discover()["decode_mma_n8"].shape(head_dim=128, group=4, kv_dtype="e4m3")
    choice = choose("decode", shape, h200, Ask("decode_mma_n8"))
    step = choice.instance.tile.warps * choice.instance.tile.keys
    how = {"slots": choice.slots, "sm_count": h200.sm_count, "step": step}
    found = keys_per_split(units=units, max_kv_len=keys, converts=True, **how)
    assert ceil(keys / found) == splits
    assert choice.slots == 4 * h200.sm_count
    assert ceil(keys / keys_per_split(units=units, max_kv_len=keys, **how)) <= splits


def test_a_parent_computes_the_same_operation_or_the_forward_pass():
    kernels = discover()
    for name, kernel in kernels.items():
        if kernel.parent is not None:
            forward = {"backward": {"backward", "prefill"}}
            allowed = forward.get(kernel.operation, {kernel.operation})
            assert kernels[kernel.parent].operation in allowed, name
