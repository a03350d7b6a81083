"""Ranks have the bits of one process, and fail together with one line."""

from dataclasses import replace

import pytest
import torch

from labkernels.distributed import decode_in_parts, on_cpus, shard
from labkernels.ops import decode
from labkernels.policy import TENSOR_CORES
from tests.distributed import on_ranks

FP32_OUT = replace(TENSOR_CORES, out="fp32")


@pytest.fixture(scope="module")
def seen():
    """Return what four ranks saw; the last one's place holds its error."""
    return on_cpus(on_ranks.everything, 4, check=False, timeout_s=20)


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_have_the_bits_of_one_process(seen, ranks):
    assert [found[ranks] for found in seen[: min(ranks, 3)]] == [[]] * min(ranks, 3)


def test_every_rank_refuses_with_the_same_line(seen):
    first = seen[0]["refused"]
    assert [found["refused"] for found in seen[:3]] == [first] * 3
    assert {kind for kind, _ in first} == {"ValueError"}
    words = [text for _, text in first]
    assert words[0] == "rank 2: q.dtype = torch.bfloat16, allowed: torch.float16, as on rank 0"
    assert words[1].startswith("rank 2: len(q) = 3, allowed: 4")
    assert words[2] == "rank 2: page_table.shape[1] = 4, allowed: 3, as on rank 0"
    assert words[3] == "rank 2: carry = input, allowed: fp32, as on rank 0"
    assert words[4].startswith("rank 0: context_parallel_decode() got an unexpected option 'window")
    assert words[5].startswith("rank 2: q.shape = (16, 2, 64), allowed: (8, 2, 64)")


def test_a_rank_that_is_late_or_dies_ends_the_others_with_one_line(seen):
    kind, words = seen[0]["timed out"]
    assert kind == "LostRank"
    assert words.startswith("rank 0 of 2 lost another rank in a comparison of arguments: Timed out")
    assert str(seen[3]) == "rank 3 ended with exit code 7, and without a result"
    for found in seen[:3]:
        kind, words = found["lost"]
        assert kind == "LostRank"
        assert "\n" not in words
        assert found["seconds"] < 20


@pytest.mark.parametrize("by", ["contiguous", "interleaved"])
@pytest.mark.parametrize("parts", [2, 3, 8, 64])
def test_parts_of_one_launch_are_decodes_of_each_rank(by, parts):
    q, cache = on_ranks.drawn()
    done = decode_in_parts(q, cache, parts, by=by)
    shards = [shard(cache, rank, parts, by) for rank in range(parts)]
    assert torch.equal(sum(part.kv_len for part in shards), cache.kv_len)
    for rank in (0, parts // 2, parts - 1):
        alone = decode(q, shards[rank], policy=FP32_OUT, batch_invariant=True)
        assert torch.equal(alone.out, done.outs[rank])
        assert torch.equal(alone.lse2, done.lse2s[rank])
