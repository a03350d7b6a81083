"""A variant says which keys a query sees."""

import numpy as np
import pytest
import torch

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
