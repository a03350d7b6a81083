"""The verdict on an attention over ranks places every mutant of a rank or of the merge."""

import math
from dataclasses import replace

import pytest
import torch

from labkernels import defects
from labkernels.audit.ranks import verdict_ranks
from labkernels.chapters import across_a_wire as chapter
from tests.distributed.cases import parts_of, ring_of


def judged(ranks=4, carry="fp32", out=None, hops=False, **changed):
    inputs, shards, done = parts_of(ranks, carry)
    outs, lse2s = changed.get("outs", done.outs), changed.get("lse2s", done.lse2s)
    how = {"out": done.out if out is None else out, "scale": inputs.scale, "hops": hops}
    return verdict_ranks(list(outs), list(lse2s), inputs.q, shards, **how)


@pytest.mark.parametrize("carry", ["fp32", "input"])
def test_right_ranks_are_rounding(carry):
    assert judged(2, carry).answer == "ROUNDING"
    hopped = chapter.in_parts(parts_of(4)[0], 4, "bf16 hops")
    assert judged(4, "input", hopped, hops=True).answer == "ROUNDING"


DONE = parts_of(4)[2]
WEIGHTS = torch.exp2(DONE.lse2s.double())
STALE = torch.tensor([0, 1, 2, 0])
ONE_OUT, TWICE = (torch.tensor(x)[:, None, None] for x in ([1, 0, 1, 1], [1, 1, 2, 1]))
MERGES = {
    "LSEs of base 2 are read as natural": (torch.exp(DONE.lse2s.double()), DONE.outs),
    "parts are not weighted": (torch.ones_like(WEIGHTS), DONE.outs),
    "rank 2 counts twice": (WEIGHTS * TWICE, DONE.outs),
    "rank 1 is left out": (WEIGHTS * ONE_OUT, DONE.outs),
    "a stale chunk, rank 0's part stands in the place of rank 3's": (
        WEIGHTS[STALE],
        DONE.outs[STALE],
    ),
}


@pytest.mark.parametrize("words", MERGES)
def test_a_wrong_merge_is_named(words):
    weights, outs = MERGES[words]
    out = ((weights / weights.sum(0))[..., None] * outs.double()).sum(0)
    found = judged(out=out.to(torch.bfloat16))
    assert (found.answer, found.kind, found.rank) == ("BUG", defects.MERGE, None)
    assert found.why == f"the merge: {words}"


def test_a_mistake_in_some_rows_is_named():
    out, other = DONE.out.clone(), (WEIGHTS * TWICE / (WEIGHTS * TWICE).sum(0))[..., None]
    out[1, 2] = (other * DONE.outs.double()).sum(0)[1, 2].to(out.dtype)
    assert judged(out=out).why == "the merge: rank 2 counts twice"


def test_of_two_ranks_a_stale_part_may_be_one_left_out():
    outs = parts_of(2)[2].outs
    words = "rank 1 is left out, or a stale chunk, the other's part, stands in its place"
    assert judged(2, out=outs[0].to(torch.bfloat16)).why == f"the merge: {words}"


def test_a_mean_over_ranks_without_keys_is_named():
    rows = {"outs": DONE.outs.clone(), "lse2s": DONE.lse2s.clone()}
    inputs, shards, _ = parts_of(4)
    empty = replace(shards[3], kv_len=0 * shards[3].kv_len)
    rows["outs"][3], rows["lse2s"][3] = 0, -math.inf
    given = list(rows["outs"]), list(rows["lse2s"]), inputs.q, [*shards[:3], empty]
    out = rows["outs"].double().mean(0).to(torch.bfloat16)
    why = verdict_ranks(*given, out=out, scale=inputs.scale).why
    assert why == "the merge: parts are not weighted, those without keys included"


def test_a_rank_whose_lse_is_natural_is_placed():
    lse2s = DONE.lse2s.clone()
    lse2s[2] *= math.log(2)
    found = judged(lse2s=lse2s)
    assert (found.answer, found.kind, found.rank) == ("BUG", defects.LSE, 2)
    assert "in base e" in found.why


def test_a_rank_that_attends_to_another_ranks_keys_is_placed():
    found = judged(outs=DONE.outs[STALE], lse2s=DONE.lse2s[STALE])
    assert (found.answer, found.kind, found.rank) == ("BUG", defects.INDEX_K, 3)
    assert found.why == "rank 3: a stale chunk, its part is that of the keys of rank 0"


@pytest.mark.parametrize("shift", [0, 1])
def test_a_causal_misalignment_between_chunks_is_placed(shift):
    q, ends, caches, done = ring_of(shift)
    how = {"causal": [True, False], "cu_seqlens_q": ends}
    found = verdict_ranks([x.out for x in done], [x.lse2 for x in done], q, caches, **how)
    right = ("BUG", defects.MASK, 0) if shift else ("ROUNDING", "", None)
    assert (found.answer, found.kind, found.rank) == right, found.why


def test_a_part_over_other_keys_is_no_mistake_of_its_lse():
    q, ends, caches, done = ring_of(0)
    x = caches[0]
    other = replace(x, k=torch.randn(x.k.shape, generator=torch.Generator().manual_seed(2)).to(q))
    how = {"causal": [True, False], "cu_seqlens_q": ends}
    parts = [x.out for x in done], [x.lse2 for x in done]
    found = verdict_ranks(*parts, q, [other, caches[1]], **how)
    assert (found.answer, found.rank) == ("BUG", 0)
    assert found.kind != defects.LSE, found.why
