"""A variant says which keys a query sees; what no kernel computes yet is refused."""

import re

import numpy as np
import pytest
import torch

from labkernels.hardware import gpu
from labkernels.kernels.choice import choose
from labkernels.kernels.registry import discover
from labkernels.variant import CAUSAL, FULL, AttentionVariant


@pytest.mark.parametrize("right", ["causal", None, 0, 2])
@pytest.mark.parametrize("window_left", [None, 0, 1, 2])
def test_a_query_sees_the_keys_that_a_mask_of_all_pairs_leaves(right, window_left):
    causal = right == "causal"
    variant = AttentionVariant(causal, window_left, window_right=None if causal else right)
    for q_len, kv_len in ((3, 7), (5, 2), (4, 0), (1, 1)):
        for query in range(q_len):
            place = kv_len - q_len + query
            last = kv_len - 1 if right is None else place + (0 if causal else right)
            first = -1 if window_left is None else place - window_left
            keys = [key for key in range(kv_len) if first <= key <= last]
            ends = (variant.begin(query, q_len, kv_len), variant.end(query, q_len, kv_len))
            assert list(range(*ends)) == keys
            assert variant.seen(query, q_len, kv_len) == max(0, len(keys))


def test_arrays_give_what_numbers_give():
    query, q_len, kv_len = np.arange(5), np.full(5, 5), np.array([9, 2, 5, 0, 4])
    for variant in (FULL, CAUSAL, AttentionVariant(True, 1)):
        triples = zip(query.tolist(), q_len.tolist(), kv_len.tolist(), strict=True)
        one_by_one = [variant.seen(*triple) for triple in triples]
        assert variant.seen(query, q_len, kv_len).tolist() == one_by_one
    assert torch.equal(CAUSAL.end(torch.arange(3), 3, 5), torch.tensor([3, 4, 5]))


@pytest.mark.parametrize(
    ("field", "value"),
    [("window_left", 4), ("window_right", 4), ("soft_cap", 30.0), ("sinks", True), ("alibi", True)],
)
def test_what_no_kernel_computes_is_refused_by_name(field, value):
    kernel = discover()["prefill_mma"]
    shape = kernel.shape(head_dim=64).__class__(
        "bf16", 64, 64, 1, 64, "ragged", variant=AttentionVariant(**{field: value})
    )
    message = f"{field} = {value!r}, allowed: {getattr(FULL, field)!r}, as all kernels"
    with pytest.raises(ValueError, match=re.escape(message)):
        choose("prefill", shape, gpu("h200"))
