"""The trace of the ladder's kernel keeps the order that its barriers promise."""

import pandas as pd
import pytest

from labkernels.chapters import the_ladder


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
