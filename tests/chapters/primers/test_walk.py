"""A tile skips what none of its rows sees, and masks what only some see."""

import numpy as np
import pytest

from labkernels.chapters.primers import walk
from labkernels.variant import CAUSAL, FULL, AttentionVariant


@pytest.mark.parametrize("variant", [FULL, CAUSAL, AttentionVariant(True, window_left=40)])
@pytest.mark.parametrize("lengths", [(96, 160), (50, 70), (1, 33)])
def test_every_pair_of_query_and_key_is_in_its_block(variant, lengths):
    q_len, kv_len = lengths
    query, key = np.indices(lengths)
    seen = (key >= variant.begin(query, *lengths)) & (key < variant.end(query, *lengths))
    found = walk.blocks(variant, *lengths, rows=32, keys=16)
    assert len(found) == -(-q_len // 32) * -(-kv_len // 16)
    for part in found:
        inside = (query // 32 == part["tile"]) & (key // 16 == part["block"])
        share = {"all": 1, "none": 0}.get(part["seen"])
        mean = seen[inside].mean()
        assert mean == share if share is not None else 0 < mean < 1
