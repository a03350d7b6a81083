"""The option batch_invariant: what it fixes, what it refuses, and that gradients follow it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labkernels import ops
from labkernels.kernels.checks import INVARIANT_KEYS_PER_SPLIT
from labkernels.kernels.decode.schedule import invariant_keys_per_split, most_invariant_splits
from tests.kernels.decode.cases import assert_same, bits, decode_case
from tests.kernels.mla.cases import mla_case
from tests.kernels.prefill.cases import prefill_case, sums


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kernel", ["decode_fma", "decode_mma", "decode_mma_n8", "triton_decode"])
@pytest.mark.parametrize("window", [{}, {"window_left": 2100}], ids=["whole", "window"])
def test_a_decode_is_split_by_each_request_s_own_length(kernel, window):
    lengths = (20, 300, 2048, 2049, 2600)
    case = decode_case(lengths, kv_heads=1)
    found = case.run(kernel, batch_invariant=True, **window)
    assert (found.plan.batch_invariant, found.plan.splits) == (True, 8)
    assert not case.step(None).plan.batch_invariant
    assert case.step(None, batch_invariant=True, keys_per_split=96).plan.keys_per_split == 96
    for i, n in enumerate(lengths):
        seen = min(n, window.get("window_left", n) + 1)
        alone = case.chosen([i])
        fixed = alone.run(kernel, keys_per_split=512 if seen > 2048 else 256, **window)
        again = alone.run(kernel, batch_invariant=True, **window)
        assert torch.equal(bits(found.out[i]), bits(fixed.out[0]))
        assert torch.equal(bits(again.out), bits(fixed.out))


@pytest.mark.parametrize(
    ("kernel", "length", "keys"),
    [
        ("decode_fma", 65_540, 2048),
        ("decode_mma_n8", 262_150, 4096),
        pytest.param("triton_decode", 65_540, 2048, marks=pytest.mark.long),
    ],
)
def test_a_long_request_has_long_splits(kernel, length, keys):
    case = decode_case((length,), kv_heads=1, group=1, head_dim=64, page_size=256)
    found = case.run(kernel, batch_invariant=True)
    assert_same(case.run(kernel, keys_per_split=keys), found)


@given(st.integers(1, 2_000_000), st.floats(0, 1))
def test_a_grid_has_all_splits_of_every_length(longest, part):
    n = math.ceil(part * longest)
    most = most_invariant_splits(longest)
    assert math.ceil(n / invariant_keys_per_split(n)) <= most
    assert most <= 2 * math.ceil(longest / invariant_keys_per_split(longest))  # few blocks idle


def test_a_prefill_has_the_tile_of_long_requests_and_no_splits():
    short, long = prefill_case((3, 5), (300, 40)), prefill_case((3000, 5), (3000, 40))
    plans = [
        ops.prefill_step(c.q, c.kv, c.cu_seqlens_q, batch_invariant=True).plan
        for c in (short, long)
    ]
    assert plans[0].tile == plans[1].tile
    assert plans[0].batch_invariant
    assert [plan.splits for plan in plans] == [1, 1]


def test_an_mla_decode_has_splits_of_one_size():
    plan = mla_case((1, 2), (2000, 10), heads=16).run(None, batch_invariant=True).plan
    assert plan.batch_invariant
    assert plan.keys_per_split == INVARIANT_KEYS_PER_SPLIT


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"splits": 2}, "splits = 2 and batch_invariant"),
        ({"keys_per_split": 64, "window_left": 9}, "keys_per_split = 64 with window_left"),
        ({"batch_invariant": 1}, "True, False"),
    ],
)
def test_what_would_look_at_the_batch_is_refused(options, words):
    case = prefill_case((3, 5), (30, 40))
    with pytest.raises(ValueError, match=words):
        case.run(None, **{"batch_invariant": True, **options})


def test_splits_that_begin_with_a_window_make_no_promise():
    """They begin with the window of a tile's first row, which a chunk moves."""
    whole = prefill_case((90,), (600,))
    how = {"keys_per_split": 128, "window_left": 270}
    found, chunk = (
        case.run("prefill_mma", tile="128x64x4x2x2-backward", **how)
        for case in (whole, whole.changed(q=whole.q[-1:], cu_seqlens_q=sums((1,))))
    )
    assert not torch.equal(bits(chunk.out), bits(found.out[-1:]))
    assert not found.plan.batch_invariant
    how["keys_per_split"] = None
    assert whole.run(None, batch_invariant=True, **how).plan.batch_invariant


def test_gradients_are_those_of_the_request_alone():
    lengths = (40, 70)
    torch.manual_seed(0)
    q, k, v, dout = (torch.randn(110, 2, 64).half() for _ in range(4))

    def run(part):
        n = part.stop - part.start
        ends = sums(lengths if n == 110 else (n,))
        leaves = [x[part].clone().requires_grad_() for x in (q, k, v)]
        out, _ = ops.attention(*leaves, ends, ends, causal=True, batch_invariant=True)
        return out.detach(), *torch.autograd.grad(out, leaves, dout[part])

    together = run(slice(0, 110))
    for part in (slice(0, 40), slice(40, 110)):
        for alone, among in zip(run(part), together, strict=True):
            assert torch.equal(bits(alone), bits(among[part]))
