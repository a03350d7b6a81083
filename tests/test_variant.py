"""A variant says which keys a query sees; what a kernel does not compute is refused."""

import numpy as np
import pytest
import torch

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
        every = (variant.seen(query, q_len, kv_len) for query in range(q_len))
        assert variant.pairs(q_len, kv_len) == sum(every)


def test_arrays_give_what_numbers_give():
    query, q_len, kv_len = np.arange(5), np.full(5, 5), np.array([9, 2, 5, 0, 4])
    for variant in (FULL, CAUSAL, AttentionVariant(True, 1)):
        triples = zip(query.tolist(), q_len.tolist(), kv_len.tolist(), strict=True)
        one_by_one = [variant.seen(*triple) for triple in triples]
        assert variant.seen(query, q_len, kv_len).tolist() == one_by_one
    assert torch.equal(CAUSAL.end(torch.arange(3), 3, 5), torch.tensor([3, 4, 5]))


@pytest.mark.parametrize(
    ("field", "value", "feature"),
    [
        ("window_left", 4, "window"),
        ("window_right", 4, "window"),
        ("soft_cap", 30.0, "soft_cap"),
        ("sinks", True, "sinks"),
        ("alibi", True, "alibi"),
        ("mask", True, "mask"),
        ("reach", 128, "bias"),
    ],
)
def test_a_kernel_refuses_the_feature_that_it_does_not_compute(field, value, feature):
    variant = AttentionVariant(**{field: value})
    assert variant.features == (feature,)
    able = discover()["prefill_mma"]
    assert able.instances(able.shape(head_dim=64, variant=variant))[0].features == (feature,)
    kernel = discover()["triton_backward"]
    with pytest.raises(ValueError, match=f"a variant with {feature}, allowed for triton_backward"):
        kernel.instances(kernel.shape(head_dim=64, variant=variant))


def test_a_label_names_the_features_and_their_numbers():
    whole = AttentionVariant(True, 1023, None, 50.0, sinks=True, alibi=True, mask=True)
    assert whole.label == "window 1023, soft cap 50, slopes, sinks, bit mask"
    assert whole.numbers_per_head == 2
    assert AttentionVariant(window_left=0, window_right=3).label == "window 0/3"
    assert AttentionVariant(window_right=0).label == "window all/0"
    assert (CAUSAL.label, FULL.label, FULL.numbers_per_head) == ("", "", 0)
