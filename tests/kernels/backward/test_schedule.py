"""The cut of a backward pass has every tile of every head once, and long tiles start first."""

import heapq
import itertools
from pathlib import Path

import numpy as np
import pytest

from labkernels.cuda.compiler.specialization import VOCABULARY
from labkernels.cuda.host.build import build
from labkernels.kernels.backward.kernel import NUMBERS, BackwardTile
from labkernels.kernels.backward.schedule import ROW_PADDING, padded_rows, schedule
from labkernels.kernels.packed_gqa.schedule import Lengths
from labkernels.variant import AttentionVariant
from tests.cuda.host.small_kernels import run

TILE = BackwardTile(64, 128, 8, 2, 1)
Q_LENS, KV_LENS = (1, 0, 70, 300, 128), (130, 5, 0, 129, 128)


def made(q_lens=Q_LENS, kv_lens=KV_LENS, *, causal=True, l2_bytes=1, **how):
    lengths = Lengths(np.array(q_lens, np.int64), np.array(kv_lens, np.int64))
    return schedule(
        lengths,
        TILE,
        kv_heads=2,
        group=3,
        head_dims=(64, 64),
        variant=AttentionVariant(causal),
        l2_bytes=l2_bytes,
        **how,
    )


def tiles(lengths, size, heads):
    return {
        (r, t, h, 0)
        for r, n in enumerate(lengths)
        for t in range(-(-n // size))
        for h in range(heads)
    }


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("l2_bytes", [1, 2**18, 2**40])
@pytest.mark.parametrize("last_keys_first", [False, True])
def test_every_tile_of_every_head_is_there_once(causal, l2_bytes, last_keys_first):
    found = made(causal=causal, l2_bytes=l2_bytes, last_keys_first=last_keys_first)
    for work, expected in (
        (found.keys, tiles(KV_LENS, TILE.keys, 2)),
        (found.rows, tiles(Q_LENS, TILE.q_rows, 6)),
        (found.padded, tiles(Q_LENS, ROW_PADDING, 6)),
    ):
        assert work.dtype == np.int32
        assert len(work) == len(expected)
        assert {tuple(map(int, item)) for item in work} == expected


def test_blocks_of_more_steps_start_first_where_all_heads_fit_the_cache():
    found = made((512,), (512,), l2_bytes=2**40)
    assert found.keys[:, 1].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]  # the first keys are seen most
    steps = found.rows[:, 1] // 2  # every two tiles of rows see one more tile of keys
    assert (np.diff(steps) <= 0).all()
    assert (steps[0], steps[-1]) == (3, 0)


def test_a_head_but_for_its_short_blocks_is_done_before_the_next_where_one_fits():
    found = made((1024,), (1024,), l2_bytes=1)
    assert found.keys[:14, 2].tolist() == [0] * 7 + [1] * 7
    assert found.keys[:7, 1].tolist() == list(range(7))
    assert found.keys[14:, 1:3].tolist() == [[7, 0], [7, 1]]  # 2 steps, where the longest have 16


@pytest.mark.parametrize(("requests", "length", "head_dim"), [(8, 2048, 256), (2, 8192, 128)])
def test_the_multiprocessors_finish_together(requests, length, head_dim):
    tile, heads = BackwardTile(64, {128: 128, 256: 64}[head_dim], 12, 2, 1), 2048 // head_dim
    lengths = Lengths(*(np.full(requests, length, np.int64) for _ in range(2)))
    shape = {"kv_heads": heads, "group": 1, "head_dims": (head_dim, head_dim)}
    found = schedule(lengths, tile, variant=AttentionVariant(True), l2_bytes=60 * 2**20, **shape)
    steps = (length - found.keys[:, 1] * tile.keys) / tile.q_rows
    free = [0.0] * 132
    for block in steps:
        heapq.heapreplace(free, free[0] + block)
    assert max(free) < 1.03 * steps.sum() / 132


def test_nothing_to_do_is_no_block():
    found = made((0, 0), (0, 0))
    assert (len(found.keys), len(found.rows), len(found.padded)) == (0, 0, 0)
    assert found.padded_rows == 2 * ROW_PADDING


def test_requests_have_whole_tiles_of_the_workspace_to_themselves():
    """The kernels' own source says where the rows of a request begin."""
    numbers = {f"LAB_{name}": number for name, number in (VOCABULARY | NUMBERS).items()}
    kernel = build(
        "workspace.cuh",
        instance="workspace::first_rows",
        params="workspace::Params",
        defines=numbers,
        include_dirs=[Path(__file__).parent],
    )
    generator = np.random.default_rng(0)
    for _ in range(50):
        q = generator.integers(0, 400, generator.integers(1, 9))
        ends = np.concatenate([[0], np.cumsum(q)]).astype(np.int32)
        first = run(kernel, ends, np.full(len(q), -1), len(q), threads=64)
        end = first + -(-q // ROW_PADDING) * ROW_PADDING
        assert (first % ROW_PADDING == 0).all()
        assert (end[:-1] <= first[1:]).all()
        assert first[0] >= 0
        assert end[-1] <= padded_rows(Lengths(q, q))


LENGTHS = (70, 0, 300, 1000), (90, 40, 300, 700)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_a_block_that_waits_starts_after_those_with_later_keys(causal):
    started = made(*LENGTHS, causal=causal, l2_bytes=500_000, last_keys_first=True).keys
    for request, head in itertools.product(range(4), range(2)):
        tiles = started[(started[:, 0] == request) & (started[:, 2] == head), 1]
        assert np.all(np.diff(tiles) == -1)
        assert tiles[-1] == 0
