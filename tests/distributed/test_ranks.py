"""Ranks have the bits of one process, and fail together with one line."""

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from labkernels.chapters import across_a_wire as chapter
from labkernels.chapters import live
from labkernels.distributed import (
    LostRank,
    Ranks,
    context_parallel_decode,
    decode_in_parts,
    on_cpus,
    on_gpus,
    ring_backward_in_turn,
    ring_prefill,
    shard,
    zigzag,
)
from labkernels.distributed.ranks import WATCHDOG
from labkernels.kernels.caches.paged import PagedKV, QuantizedKV
from labkernels.numerics.error.gradient_bounds import gradient_bounds
from labkernels.numerics.truth import gradients
from labkernels.ops import decode
from labkernels.policy import TENSOR_CORES
from tests.distributed import on_ranks
from tests.distributed.cases import rows_of


@pytest.fixture(scope="module")
def seen():
    """Return what four ranks saw; the last one's place holds its error."""
    return on_cpus(on_ranks.everything, 4, check=False, timeout_s=30)


def test_ranks_have_the_bits_of_one_process(seen):
    assert [found[2] for found in seen[:2]] == [[], []]
    assert [found[4] for found in seen[:3]] == [[], [], []]


def test_every_rank_refuses_with_the_same_line(seen):
    first = seen[0]["refused"]
    assert [found["refused"] for found in seen[:3]] == [first] * 3
    assert {kind for kind, _ in first} == {"ValueError"}
    words = [text for _, text in first]
    assert words[0] == "rank 2: q.dtype = torch.float16, allowed: torch.bfloat16, as k"
    assert words[1] == "rank 2: page_table.shape[1] = 4, allowed: 3, as on rank 0"
    assert words[2] == "rank 2: carry = input, allowed: fp32, as on rank 0"
    assert words[3].startswith("rank 0: context_parallel_decode() got an unexpected option 'window")
    assert words[4] == "rank 2: q.shape = (16, 4, 64), allowed: (8, 4, 64), as on rank 0"
    assert all(line.startswith("rank 0: kernel = 'none', allowed:") for line in words[5:7])
    assert words[7] == "rank 2: lse2.dtype = torch.float64, allowed: torch.float32"


def test_a_rank_that_is_late_or_dies_ends_the_others_with_one_line(seen):
    assert str(seen[3]) == "rank 3 ended with exit code 7, and without a result"
    for kind, words in (seen[0]["late"], *(found["lost"] for found in seen[:3])):
        assert kind == "LostRank"
        assert "lost another rank in a comparison of arguments" in words
        assert "\n" not in words
    assert all(found["seconds"] < 20 for found in seen[:3])


def test_a_rank_that_hangs_is_killed():
    with pytest.raises(LostRank, match=r"^rank 1 did not end with the others, and was killed$"):
        on_cpus(on_ranks.hangs, 2, timeout_s=4)


@pytest.mark.parametrize(
    ("signals", "named"),
    [
        ((None, 9), (1, 0)),  # as a replay of a graph waits for a dead rank
        ((15, 9), (1, None)),  # NCCL's watchdog ends a rank whose peer has died
        ((15, None), (0, 1)),  # or whose peer is stopped
    ],
)
def test_the_rank_that_ended_first_is_named(signals, named):
    ended, hung = named
    words = f"rank {ended} ended with exit code -{signals[ended]}, and without a result"
    if hung is not None:
        words += f"; rank {hung} did not end with the others, and was killed"
    with pytest.raises(LostRank, match=f"^{words}$"):
        on_cpus(on_ranks.ends, 2, *signals, timeout_s=20)


@pytest.mark.parametrize(("told", "found"), [(None, "250"), ("7000", "7000")])
def test_watchdogs_of_a_new_group_end_a_process_soon_unless_told_otherwise(
    monkeypatch, told, found
):
    name, _ = WATCHDOG
    header = "include/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"
    assert f'"{name}"' in (Path(torch.__file__).parent / header).read_text()
    monkeypatch.setattr(os, "environ", {name: told} if told else {})
    for function in ("get_rank", "get_world_size", "new_group"):
        monkeypatch.setattr(dist, function, lambda *_, **__: os.environ.get(name))
    assert Ranks.join().group == found


REFUSED = {
    "ranks = 0, allowed: an integer >= 1": lambda q, c: on_cpus(len, 0),
    "ranks = 1000, allowed: at most": lambda q, c: on_gpus(len, 1000),
    "parts = 0, allowed: an integer >= 1": lambda q, c: decode_in_parts(q, c, 0),
    "len(q) = 1, allowed: 4, the requests": lambda q, c: decode_in_parts(q[:1], c, 2),
    "len(q) = 0 requests, allowed: 1": lambda q, c: context_parallel_decode(q[:0], c, Ranks()),
    "ranks.rank = -1, allowed: 0 to 1": lambda q, c: context_parallel_decode(q, c, Ranks(-1, 2)),
    "rank = 2, allowed: 0 to 1": lambda q, c: zigzag(8, 2, 2),
    "rank = 1.5, allowed: 0 to 1": lambda q, c: shard(c, 1.5, 2),
    "causal = 'no', allowed: True, False": lambda q, c: ring_prefill(q, q, q, Ranks(), causal="no"),
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_wrong_argument_is_refused(words):
    inputs = chapter.decode_of(*on_ranks.LENGTHS)
    with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
        REFUSED[words](*inputs.arguments)


@pytest.mark.parametrize(("ranks", "numbers"), [(2, 1000), (3, 1000), (4, 10**6)])
def test_a_probe_finds_the_order_in_which_gloo_adds(ranks, numbers):
    seen = on_cpus(on_ranks.sums, ranks, numbers)
    assert seen == [seen[0]] * ranks
    trees, off, in_turn, other_order = seen[0]
    assert (off, other_order) == (0, 0)
    assert (in_turn > numbers // 10) == (ranks > 2)  # so that the order shows
    # share c of the numbers goes down the ring of ranks, from the one before rank c to rank c
    places = [[(c - 1 - rank) % ranks for rank in range(ranks)] for c in range(ranks)]
    chains = [[[1 + max(i, j) * (i != j) for j in x] for i in x] for x in places]
    assert trees == (chains if ranks > 2 else chains[:1])


@pytest.mark.parametrize("by", ["contiguous", "interleaved"])
@pytest.mark.parametrize("parts", [2, 3, 8, 64])
def test_parts_of_one_launch_are_decodes_of_each_rank(by, parts):
    inputs = chapter.decode_of(*on_ranks.LENGTHS)
    done = decode_in_parts(*inputs.arguments, parts, by=by)
    shards = [shard(inputs.cache, rank, parts, by) for rank in range(parts)]
    assert torch.equal(sum(part.kv_len for part in shards), inputs.cache.kv_len)
    how = {"policy": replace(TENSOR_CORES, out="fp32"), "batch_invariant": True}
    for rank in (0, parts // 2, parts - 1):
        alone = decode(inputs.q, shards[rank], **how)
        assert torch.equal(alone.out, done.outs[rank])
        assert torch.equal(alone.lse2, done.lse2s[rank])


@pytest.mark.parametrize("by", ["contiguous", "interleaved"])
def test_parts_of_a_cache_of_8_bits_keep_the_scales_of_their_pages(by):
    inputs = chapter.decode_of(*on_ranks.LENGTHS)
    k, v, *pages = inputs.cache.tensors.values()
    scales = 0.5 + torch.rand(2, len(k), 1, 1, generator=torch.Generator().manual_seed(3))
    cache = QuantizedKV(*(x.to(torch.float8_e4m3fn) for x in (k, v)), *pages, *scales)
    done = decode_in_parts(inputs.q, cache, 3, by=by)
    wide = [(x.float() * y[..., None]) for x, y in zip((cache.k, cache.v), scales, strict=True)]
    right = live.truth(replace(inputs, cache=PagedKV(*(x.to(inputs.q) for x in wide), *pages)))
    assert np.abs(done.out.double().numpy() - right).max() < 2.0**-4  # values of 8 bits, times 1.5


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("carry", ["fp32", "bf16 hops"])
def test_a_ring_of_any_size_is_the_prefill(ranks, carry):
    inputs = chapter.prefill_of(16, 16)
    right = live.truth(inputs)
    off = np.abs(chapter.ring(inputs, ranks, carry).double().numpy() - right)
    assert (off <= 2.0**-7 * (np.abs(right).max() + 1)).all()  # P, parts and sums in bf16


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_gradients_of_a_ring_are_within_their_bound(ranks):
    inputs, whole, places, rows = rows_of(ranks)
    problem = replace(inputs.problem(), causal=True)
    wide = (x.double().numpy() for x in (whole.dout, whole.out, whole.lse2))
    given, size = gradients.Given(problem, *wide), gradients.Totals(problem)
    for some in problem.row_blocks():
        for part in gradients.parts(given, some):
            size.add(part, part.dout, part.p, abs(part.ds), abs_values=True)
    exact, bounds = gradients.gradients(given), gradient_bounds(given, TENSOR_CORES.of("bf16"))
    found = ring_backward_in_turn(rows)
    for number, kind in enumerate(zip(exact, bounds, size.scaled(), strict=True)):
        for place, got in zip(places, found, strict=True):
            right, bound, sizes = (x[place] for x in kind)
            # a pair's gradients are rounded to bf16, and there is one for each rank
            off = np.abs(got[number].double().numpy() - right)
            assert (off <= bound + 2.0**-8 * sizes * (ranks > 1)).all()
