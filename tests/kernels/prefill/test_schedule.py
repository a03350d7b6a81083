"""The cut of a prefill into blocks obeys the same laws for every batch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labkernels import hardware
from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.checks import REACH, division
from labkernels.kernels.packed_gqa.schedule import (
    SHORT,
    SHORT_AT_END,
    Lengths,
    schedule,
    steps_of_tiles,
    visible_keys,
)
from labkernels.kernels.packed_gqa.tile import PrefillTile
from labkernels.kernels.prefill.wgmma.launch import L2_SHARE
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.registry import discover
from labkernels.variant import AttentionVariant

SLOTS = 264
TILE = PrefillTile(64, 32, 4, 2, 2)
BATCHES = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 700)), min_size=1, max_size=6)


def lengths_of(batch):
    q, kv = np.array(batch, np.int64).T
    return Lengths(q, kv)


def cut(batch, *, kv_heads, group=1, causal=True, slots=SLOTS, **how):
    """Return the blocks of tiles of 64 rows and 32 keys."""
    shape = {"kv_heads": kv_heads, "group": group, "slots": slots}
    return schedule(lengths_of(batch), TILE, variant=AttentionVariant(causal), **shape, **how)


@given(
    batch=BATCHES,
    kv_heads=st.integers(1, 3),
    group=st.sampled_from([1, 3, 8]),
    causal=st.booleans(),
    how=st.sampled_from([{}, {"splits": 1}, {"splits": 3}, {"keys_per_split": 37}]),
)
def test_every_pair_of_a_row_and_a_key_belongs_to_one_block(batch, kv_heads, group, causal, how):
    lengths = lengths_of(batch)
    made = cut(batch, kv_heads=kv_heads, group=group, causal=causal, **how)
    request, q_tile, kv_head, split = made.work.T
    assert len(np.unique(made.work, axis=0)) == len(made.work)
    for i, (n, _) in enumerate(batch):
        tiles = -(-n * group // TILE.q_rows)
        assert (request == i).any() == (n > 0)
        for tile in range(tiles):
            of_tile = (np.array([i]), np.array([tile]), TILE.q_rows)
            variant = AttentionVariant(causal)
            (seen,) = visible_keys(lengths, *of_tile, group, variant, TILE.keys)
            mine = (request == i) & (q_tile == tile)
            live = max(1, -(-seen // made.keys_per_split))
            found = {(h, s) for h, s in zip(kv_head[mine], split[mine], strict=True)}
            assert found == {(h, s) for h in range(kv_heads) for s in range(live)}
        assert (q_tile[request == i] < tiles).all()
    assert split.max(initial=0) < made.splits


@given(batch=BATCHES, group=st.sampled_from([1, 4]))
def test_every_tile_has_a_ticket_of_its_own(batch, group):
    lengths, kv_heads = lengths_of(batch), 2
    made = cut(batch, kv_heads=kv_heads, group=group, causal=False)
    request, q_tile, kv_head, _ = made.work.T.astype(np.int64)
    first_token = (np.cumsum(lengths.q) - lengths.q)[request]
    # as lab::ticket_index
    ticket = (first_token * group // TILE.q_rows + request + q_tile) * kv_heads + kv_head
    tiles = len(np.unique(made.work[:, :3], axis=0))
    assert len(np.unique(ticket)) == tiles
    assert ticket.max(initial=-1) < made.split_semaphores


def test_the_heaviest_blocks_start_first_and_those_of_the_same_keys_side_by_side():
    made = cut([(1024, 1024)] * 4, kv_heads=4, splits=1)
    assert (np.diff(made.work[:, 1]) <= 0).all()
    made = cut([(256, 256)] * 3, kv_heads=2, causal=False)
    assert made.work[:4].tolist() == [[0, tile, 0, 0] for tile in range(4)]


def test_heads_that_fit_the_cache_come_before_others_and_short_blocks_last():
    made = cut([(1024, 1024)] * 4, kv_heads=4, splits=1, cached_keys=3 * 1024)
    heads = [tuple(head) for head in made.work[:, [0, 2]].tolist()]
    steps = (made.work[:, 1] + 1) * TILE.q_rows // TILE.keys
    is_short = SHORT * steps <= steps.max()
    assert not is_short[: -is_short.sum()].any()
    assert (np.diff(steps[is_short]) <= 0).all()
    first = len(set(heads[: heads.index((0, 3))]))
    assert first <= 3, "a fourth head's K and V do not fit"


def test_no_more_short_blocks_wait_for_the_end_than_fill_it():
    slots = 2
    made = cut([(1024, 1024)] * 4, kv_heads=4, slots=slots, splits=1, cached_keys=1024)
    steps = (made.work[:, 1] + 1) * TILE.q_rows // TILE.keys
    is_short = SHORT * steps <= steps.max()
    at_end = SHORT_AT_END * slots
    assert is_short.sum() > at_end
    assert is_short[-at_end:].all()
    # Earlier, a KV head's short blocks follow its long ones, while its K and V are cached.
    heads = np.unique(made.work[:-at_end, [0, 2]], axis=0, return_index=True)[1]
    changes = (np.diff(made.work[:-at_end, [0, 2]], axis=0) != 0).any(1).sum()
    assert changes == len(heads) - 1


@pytest.mark.parametrize(
    ("batch", "kv_heads", "least", "most"),
    [
        ([(4096, 4096)], 32, 1, 1),  # more blocks than slots
        ([(1, 131_072)], 8, 30, 33),  # 8 blocks in 264 slots
        ([(1, 8192)] * 17, 8, 3, 3),  # 136 blocks: the second round of two splits has 8 blocks
        ([(64, 100_000)] + [(64, 200)] * 63, 1, 60, 270),  # one long request among short ones
        ([(64, 16_384)] * 16 + [(1, 4096)] * 31, 8, 2, 2),  # the long ones last too long
        ([(64, 256)], 1, 1, 1),  # too short to cut
        ([(5, 0)], 1, 1, 1),
        ([(0, 5)], 1, 1, 1),
    ],
)
def test_splits_fill_the_gpu_and_no_more(batch, kv_heads, least, most):
    made = cut(batch, kv_heads=kv_heads, causal=False)
    assert least <= made.splits <= most
    assert made.keys_per_split % TILE.keys == 0


def test_a_quotient_by_an_inverse_is_the_quotient():
    largest = 2**31 - 1
    for divisor in (*range(1, 257), 1009, 2**30 + 1, largest):
        shift, inverse = division(divisor)
        assert inverse < 2**32
        near = {k * divisor + e for k in (1, 2, largest // divisor) for e in (-1, 0, 1)}
        for n in {0, 1, largest, *near}:
            if 0 <= n <= largest:
                assert (2 * n * inverse >> 32) >> shift == n // divisor


def test_a_pool_out_of_reach_is_refused():
    def cache(elements):
        how = {"dtype": torch.half, "device": "meta"}
        strides = (elements - 16 * 128, 128, 64, 1)
        k, v = (torch.empty_strided((2, 16, 2, 64), strides, **how) for _ in "kv")
        table, lengths = (torch.zeros(shape, device="meta").int() for shape in ((1, 2), (1,)))
        return PagedKV(k, v, table, lengths)

    cache(REACH).require_reach()
    with pytest.raises(ValueError, match=f"k extends over {REACH + 8} elements, allowed: {REACH}"):
        cache(REACH + 8).require_reach()


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("length", [2048, 8192, 16384])
def test_an_order_for_the_cache_leaves_no_slot_idle_for_long(head_dim, length):
    """Slots that take block after block end within 3 % of an even share, as without the cache."""
    slots = hardware.gpu("h200").sm_count
    made = schedule(
        lengths_of([(length, length)] * (16384 // length)),
        PrefillTile(128, 80 if head_dim == 256 else 128, 12, 2, 1),
        kv_heads=2048 // head_dim,
        group=1,
        slots=slots,
        variant=AttentionVariant(True),
        splits=1,
        cached_keys=int(L2_SHARE * hardware.gpu("h200").l2_bytes) // (4 * head_dim),
    )
    ends = np.zeros(slots)
    steps = -(-(made.work[:, 1] + 1) * 128 // (80 if head_dim == 256 else 128)) + 2
    for length_of_block in steps:  # the fixed work of a block takes as long as two steps
        ends[ends.argmin()] += length_of_block
    assert ends.max() <= 1.03 * steps.sum() / slots


@pytest.mark.parametrize(("window", "keys"), [(1024, 64), (2048, 64), (4096, 80), (None, 80)])
def test_wide_heads_take_the_step_that_goes_over_fewer_keys(window, keys):
    """A step of 64 keys takes 1.025 times as long as 4/5 of one of 80 (recorded, full)."""
    variant = AttentionVariant(causal=True, window_left=window)
    work = Prefill((8192,) * 2, (8192,) * 2, 16, 8, 256, variant=variant)
    spec = discover()["prefill_wgmma"]
    shape = spec.shape(head_dim=256, group=2, rows=2**14, layout="ragged", variant=variant)
    assert spec.instance(shape).tile.keys == keys
    taken = {n: n * steps_of_tiles(work, 128, n).sum() for n in (64, 80)}
    taken[64] *= 1.025
    assert min(taken, key=taken.get) == keys
