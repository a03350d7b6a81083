"""The verdict on an attention over ranks places every mutant of a rank or of the merge."""

import math

import pytest
import torch

from labkernels import defects
from labkernels.audit.ranks import verdict_ranks
from labkernels.ops import decode, merge_states
from tests.distributed.judged import FP32_OUT, by_hops, decode_of, ring_of

BF16 = torch.bfloat16


def judged(ranks, outs=None, lse2s=None, out=None, **how):
    q, caches, done = decode_of(ranks, how.pop("carry", "fp32"))
    outs, lse2s = (given or list(x) for given, x in ((outs, done.outs), (lse2s, done.lse2s)))
    return verdict_ranks(outs, lse2s, q, caches, out=done.out if out is None else out, **how)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("carry", ["fp32", "input"])
def test_right_ranks_are_rounding(ranks, carry):
    found = judged(ranks, carry=carry)
    assert found.answer == "ROUNDING", found.summary()


def test_sixteen_bits_a_hop_are_rounding_where_the_wire_has_them():
    q, caches, done = decode_of(4, "input")
    found = verdict_ranks(
        list(done.outs), list(done.lse2s), q, caches, out=by_hops(done.outs, done.lse2s), hops=True
    )
    assert found.answer == "ROUNDING", found.summary()


def weighed(done, change):
    """Return a merge in float64 whose weights are changed."""
    weights = change(done.lse2s.double())
    return ((weights / weights.sum(0))[..., None] * done.outs.double()).sum(0).to(BF16)


def twice(rank):
    def change(lse2s):
        weights = torch.exp2(lse2s)
        weights[rank] *= 2
        return weights

    return change


MERGES = {
    "LSEs of base 2 are read as natural": lambda done: weighed(done, torch.exp),
    "parts are not weighted": lambda done: weighed(done, torch.ones_like),
    "rank 2 counts twice": lambda done: weighed(done, twice(2)),
    "rank 1 is left out": lambda done: weighed(
        done, lambda x: torch.exp2(x) * torch.tensor([1, 0, 1, 1])[:, None, None]
    ),
    "a stale chunk, rank 0's part stands in the place of rank 3's": lambda done: (
        merge_states(
            done.outs[[0, 1, 2, 0]], done.lse2s[[0, 1, 2, 0]], out=torch.empty_like(done.out)
        ).out
    ),
}


@pytest.mark.parametrize("words", MERGES)
def test_a_wrong_merge_is_named(words):
    found = judged(4, out=MERGES[words](decode_of(4)[2]))
    assert (found.answer, found.kind, found.in_merge) == ("BUG", defects.MERGE, True)
    assert found.why == f"the merge: {words}"


def test_a_rank_whose_lse_is_natural_is_placed():
    done = decode_of(4)[2]
    lse2s = list(done.lse2s)
    lse2s[2] = lse2s[2] * math.log(2)
    found = judged(4, lse2s=lse2s)
    assert (found.answer, found.kind, found.ranks) == ("BUG", defects.LSE, (2,))
    assert "in base e" in found.why


def test_a_rank_that_attends_to_another_ranks_keys_is_placed():
    q, caches, done = decode_of(4)
    stale = decode(q, caches[0], policy=FP32_OUT, batch_invariant=True)
    outs, lse2s = list(done.outs), list(done.lse2s)
    outs[1], lse2s[1] = stale.outputs()
    found = judged(4, outs=outs, lse2s=lse2s)
    assert (found.answer, found.kind, found.ranks) == ("BUG", defects.INDEX_K, (1,))
    assert found.why == "rank 1: a stale chunk, its part is that of the keys of rank 0"


@pytest.mark.parametrize("shift", [0, 1])
def test_a_causal_misalignment_between_chunks_is_placed(shift):
    q, ends, caches, outs, lse2s = ring_of(shift)
    found = verdict_ranks(outs, lse2s, q, caches, causal=[True, False], cu_seqlens_q=ends)
    if not shift:
        assert found.answer == "ROUNDING", found.summary()
        return
    assert (found.answer, found.kind, found.ranks) == ("BUG", defects.MASK, (0,)), found.summary()
