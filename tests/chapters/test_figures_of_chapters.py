"""What two chapters trace or compute of kernels is what they say."""

import pandas as pd
import pytest

from labkernels import Prefill
from labkernels.chapters import the_ladder
from labkernels.chapters import what_a_tensor_core_computes as five


def places(events, what, of):
    """Return the places in the trace of each block's events of a kind, of both warpgroups."""
    chosen = events[(events.what == what) & (events.of == of)]
    return chosen.reset_index().groupby("block")["index"]


@pytest.mark.parametrize("rung", ["wgmma", "ping-pong"])
def test_a_stage_is_filled_again_only_when_both_warpgroups_have_read_it(rung):
    events = pd.DataFrame(the_ladder.trace(rung, blocks=4))
    for of in ("K", "V"):
        asked, begun, ended = (places(events, what, of) for what in ("ask", "begin", "end"))
        assert asked.size().tolist() == [1] * 4
        assert begun.size().tolist() == ended.size().tolist() == [2] * 4
        for block in range(2):
            assert ended.max()[block] < asked.min()[block + 2]
            assert asked.min()[block] < begun.min()[block]


def test_only_ping_pong_asks_for_the_next_scores_before_p_v_is_done():
    for rung, overlaps in (("wgmma", False), ("ping-pong", True)):
        own = pd.DataFrame(the_ladder.trace(rung, blocks=4))
        own = own[own.warpgroup == 1].reset_index(drop=True)
        scores, values = (places(own, what, of) for what, of in (("begin", "K"), ("end", "V")))
        assert (scores.min()[1] < values.max()[0]) == overlaps


def test_five_gpus_compute_in_two_ways():
    work = Prefill((33,), (160,), 2, 2, 128, dtype="fp16")
    rows = five.differing(five.outputs("prefill", work, "prefill_mma"))
    table = {row.pop("bits of"): row for row in rows}
    assert list(table) == ["sm_80", "sm_89", "sm_90", "sm_100", "sm_120"]
    assert table["sm_80"]["sm_89"] == table["sm_90"]["sm_100"] == table["sm_90"]["sm_120"] == 0
    assert 0 < table["sm_80"]["sm_90"] < 10


def test_tensor_cores_make_the_least_time_of_a_large_prefill_shorter():
    rows = five.least_times(Prefill((1024,) * 4, (1024,) * 4, 16, 16, 128))
    assert len(rows) == len(five.GPUS)
    assert all(row["on"] < row["off"] for row in rows)
