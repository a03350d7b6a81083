"""The most splits that a plan chooses, and the order of the kernels."""

from math import ceil

import numpy as np

from labkernels import hardware
from labkernels.kernels.decode.schedule import FULL_BLOCKS_PER_SM, keys_per_split
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
    lengths = Lengths(np.array([1]), np.array([KEYS]))
    found = [
        schedule(
            lengths,
            PrefillTile(16, 64, 4, 2, 1),
            kv_heads=1,
            group=1,
            slots=slots,
            variant=AttentionVariant(True),
        ).splits
        for slots in (1, 132, SPLITS[-1], 10 * SPLITS[-1])
    ]
    assert found[0] == 1
    assert max(found) == SPLITS[-1]


def test_a_decode_of_any_number_of_blocks_has_no_more_splits_than_one_block():
    slots = 8 * MOST_SMS
    how = {"max_kv_len": KEYS, "slots": slots, "sm_count": MOST_SMS, "step": 64}
    found = [ceil(KEYS / keys_per_split(units=n, **how)) for n in range(1, 3 * slots)]
    assert found[0] == max(found) == FULL_BLOCKS_PER_SM * MOST_SMS


def test_a_parent_computes_the_same_operation_or_the_forward_pass():
    kernels = discover()
    for name, kernel in kernels.items():
        if kernel.parent is not None:
            forward = {"backward": {"backward", "prefill"}}
            allowed = forward.get(kernel.operation, {kernel.operation})
            assert kernels[kernel.parent].operation in allowed, name
