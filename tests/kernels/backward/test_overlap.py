"""Launches of backward_wgmma overlap: each tile is cleared in time, and waits end."""

import numpy as np
import pytest
import torch

from labkernels.kernels import call
from labkernels.kernels.backward.kernel import BackwardTile
from labkernels.kernels.backward.schedule import schedule
from labkernels.kernels.backward.wgmma import overlap as module
from labkernels.kernels.backward.wgmma.overlap import AWAITS, overlap, separate
from labkernels.kernels.packed_gqa.schedule import Lengths
from labkernels.variant import AttentionVariant
from tests.kernels.backward.cases import backward_case

TILE = BackwardTile(64, 128, 12, 2, 1)
KV_HEADS, GROUP, ADDERS = 3, 2, 2
CASES = {
    "equal": ((512,) * 4, (512,) * 4),
    "ragged": ((700, 0, 1, 300, 128, 2000), (700, 130, 0, 299, 1500, 2000)),
    "one request": ((4096,), (4096,)),
    "no rows": ((0, 0), (5, 700)),
    "no keys": ((5, 700), (0, 0)),
}


def lists(case, *, causal, together=4, last_keys_first=False):
    lengths = Lengths(*(np.array(each, np.int64) for each in CASES[case]))
    shape = {"kv_heads": KV_HEADS, "group": GROUP}
    how = {"variant": AttentionVariant(causal), "l2_bytes": 2**21, "overlaps": True}
    how |= {"head_dims": (128, 128), "last_keys_first": last_keys_first}
    made = schedule(lengths, TILE, **shape, **how)
    more = {"variant": how["variant"], "adders": ADDERS, "together": together}
    return made, overlap(made, lengths, TILE, **shape, **more)


def head_of(rows):
    """Return the request and KV head of tiles of rows."""
    return list(zip(rows[:, 0].tolist(), (rows[:, 2] // GROUP).tolist(), strict=True))


@pytest.mark.parametrize("last_keys_first", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_every_tile_is_cleared_once_and_in_time(case, causal, last_keys_first):
    made, found = lists(case, causal=causal, last_keys_first=last_keys_first)
    by_launch_before = found.before[found.before[:, AWAITS] == 0]
    cleared = [*map(tuple, by_launch_before[:, :3]), *map(tuple, found.cleared[:, :3])]
    assert sorted(cleared) == sorted(map(tuple, made.padded[:, :3]))
    assert found.first_cleared[0] == 0
    assert found.first_cleared[-1] == len(found.cleared)
    clearing = np.repeat(np.arange(len(found.keys)), np.diff(found.first_cleared))
    starts = {}
    for block, (request, _, head, awaits) in enumerate(found.keys.tolist()):
        starts.setdefault((request, head), (block, awaits))
    for head, block in zip(head_of(found.cleared), clearing.tolist(), strict=True):
        assert block + 4 < starts[head][0]  # AHEAD times 4 blocks, and one


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_blocks_await_what_others_count(case, causal):
    made, found = lists(case, causal=causal)
    assert np.array_equal(found.keys[:, :3], made.keys[:, :3])
    assert sorted(map(tuple, found.after[:, :3])) == sorted(map(tuple, made.padded[:, :3]))
    counted = head_of(found.cleared)
    for request, _, head, awaits in found.keys.tolist():
        assert awaits == counted.count((request, head))
    blocks = [(request, head) for request, _, head, _ in found.keys.tolist()]
    for head, awaits in zip(head_of(found.after), found.after[:, AWAITS], strict=True):
        assert awaits == ADDERS * blocks.count(head)


def test_most_tiles_are_cleared_by_blocks_of_keys_where_there_are_many_heads():
    made, found = lists("equal", causal=False)
    assert len(found.cleared) > 0.5 * len(made.padded)
    per_block = np.diff(found.first_cleared)
    assert per_block.max() <= 2 * len(made.padded) / len(made.keys)  # spread over the blocks
    at_once = lists("equal", causal=False, together=10**6)[1]
    assert len(at_once.cleared) == 0, "a head whose blocks start at once is cleared before"
    apart = separate(made)
    for rows in (apart.before, apart.keys, apart.after):
        assert not rows[:, AWAITS].any()


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("head_dim", "lens", "causal", "deterministic"),
    [
        (64, (300, 0, 130, 64), True, True),
        (128, (200, 0, 130), False, True),
        (256, (130, 64), True, True),
        (256, (130, 0, 64), False, False),  # its consumers add dQ themselves
    ],
)
def test_gradients_do_not_depend_on_who_clears(head_dim, lens, causal, deterministic, monkeypatch):
    """Runs twice on one workspace: what a run leaves in the counts would stop the next one."""
    shape = {"head_dim": head_dim, "dtype": "bf16", "causal": causal}
    case = backward_case(lens, lens, **shape)
    how = {"deterministic": deterministic, "q_lens": lens, "kv_lens": lens}

    def gradients(ahead):
        monkeypatch.setattr(module, "AHEAD", ahead)
        call._CHECKED.clear()  # a call that is kept has its lists
        step = case.step("backward_wgmma", **how)
        step.run()
        step.run()
        return step.outputs()

    beside, before = gradients(0), gradients(100)
    call._CHECKED.clear()
    names = ("dq", "dk", "dv") if deterministic else ("dk", "dv")
    for name in names:
        assert torch.equal(getattr(beside, name), getattr(before, name)), name
    # In another order a few fp32 additions round otherwise, which shows in bf16 by one step, and by
    # more where the terms cancel.
    largest = float(before.dq.float().abs().max())
    torch.testing.assert_close(beside.dq, before.dq, atol=2**-20 * largest, rtol=2**-7)
