"""Merged outputs are those over all keys, whatever the parts; and a shared prefix is read once."""

import math
from dataclasses import replace

import pytest
import torch

from labkernels import ops
from labkernels.kernels.caches.paged import PagedKV
from tests.kernels.decode.cases import bits

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
ROUNDOFF = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}


def drawn(states, rows, heads, channels, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    outs = torch.randn(states, rows, heads, channels, generator=generator).to(dtype)
    return outs, 8 * torch.randn(states, rows, heads, generator=generator)


def exact(outs, lse2s):
    """Return the merge in float64, its log-sum-exp, and sum w |outs|; empty parts are left out."""
    weights = torch.exp2(lse2s.double())
    total = weights.sum(0)
    weights = torch.where(total > 0, weights / total, 0.0)[..., None]
    outs = torch.where(weights > 0, outs.double(), 0.0)
    return (weights * outs).sum(0), total.log2(), (weights * outs.abs()).sum(0)


def assert_merged(merged, outs, lse2s):
    want, lse2, size = exact(outs, lse2s)
    out = merged.out.double()
    bound = (len(outs) + 8) * 2.0**-23 * size
    bound += ROUNDOFF[merged.out.dtype] * (want.abs() + bound) + 2.0**-25  # subnormal outputs
    assert ((out - want).abs() <= bound).all()
    empty = lse2 == -math.inf
    assert torch.equal(merged.lse2 == -math.inf, empty)
    # log2 of a sum: 2 ulp of max(1, |m|), and the sum's relative error, in log2 units
    errors = (merged.lse2.double() - lse2)[~empty].abs()
    assert (errors <= 2.0**-22 * lse2[~empty].abs().clamp(min=1.0) * (len(outs) + 8) / 8).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [32, 64, 80, 96, 128, 256, 512])
def test_every_dtype_and_width(dtype, channels):
    outs, lse2s = drawn(3, 5, 3, channels, dtype)
    merged = ops.merge_states(outs, lse2s, checks=True)
    assert merged.out.dtype == dtype
    assert_merged(merged, outs, lse2s)


@pytest.mark.parametrize("states", [1, 2, 4, 5, 37])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_of_states_from_fp32(states, dtype):
    outs, lse2s = drawn(states, 9, 2, 64)
    out = torch.empty(9, 2, 64, dtype=dtype)
    merged = ops.merge_states(outs, lse2s, out=out)
    assert merged.out is out
    assert_merged(merged, outs, lse2s)


def test_a_part_without_keys_is_not_read():
    outs, lse2s = drawn(4, 6, 2, 64)
    lse2s[1, 2], lse2s[:, 4] = -math.inf, -math.inf
    outs[1, 2], outs[:, 4] = math.nan, math.nan
    merged = ops.merge_states(outs, lse2s, checks=True)
    assert_merged(merged, outs, lse2s)
    assert torch.equal(merged.out[4], torch.zeros(2, 64))


def test_nan_is_not_hidden():
    outs, lse2s = drawn(3, 4, 1, 64)
    outs[2, 1, 0, 5], lse2s[0, 2, 0] = math.nan, math.nan
    merged = ops.merge_states(outs, lse2s)
    found = merged.out.isnan()[:, 0]
    assert found[1].nonzero().flatten().tolist() == [5]
    assert found[2].all()
    assert merged.lse2[2].isnan().all()
    assert not found[[0, 3]].any()


def test_a_part_that_outweighs_the_others_by_far_keeps_its_bits():
    outs, lse2s = drawn(3, 4, 2, 64)
    lse2s[1] = 1e4
    merged = ops.merge_states(outs, lse2s)
    assert torch.equal(bits(merged.out), bits(outs[1]))
    assert torch.equal(merged.lse2, lse2s[1])


def test_strides_and_neighbours_change_no_bit():
    outs, lse2s = drawn(3, 7, 4, 128, torch.bfloat16)
    want = ops.merge_states(outs, lse2s).out
    wide = torch.full((7, 3, 6, 136), math.nan, dtype=torch.bfloat16)
    wide[:, :, 1:5, :128] = outs.transpose(0, 1)
    turned = lse2s.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    strided = ops.merge_states(wide[:, :, 1:5, :128].transpose(0, 1), turned)
    assert torch.equal(bits(strided.out), bits(want))
    alone = ops.merge_states(outs[:, 3:4], lse2s[:, 3:4])
    assert torch.equal(bits(alone.out), bits(want[3:4]))


def test_no_rows():
    merged = ops.merge_states(torch.zeros(2, 0, 4, 64), torch.zeros(2, 0, 4))
    assert (merged.out.shape, merged.plan.launches) == ((0, 4, 64), 0)


REFUSED = {
    r"outs.shape = \(2, 4, 64\), allowed: \[states": (torch.zeros(2, 4, 64), torch.zeros(2, 4)),
    r"outs.shape = \(0, 1, 4, 64\), allowed": (torch.zeros(0, 1, 4, 64), torch.zeros(0, 1, 4)),
    r"outs.dtype = torch.float64, allowed": (torch.zeros(1, 1, 1, 64).double(), torch.zeros(1)),
    r"lse2s.dtype = torch.float64": (torch.zeros(1, 1, 1, 64), torch.zeros(1, 1, 1).double()),
    r"lse2s.shape = \(1, 1, 2\), allowed: \(1, 1, 1\)": (
        torch.zeros(1, 1, 1, 64),
        torch.zeros(1, 1, 2),
    ),
    r"head_dim = 48, allowed for merge_states": (torch.zeros(1, 1, 1, 48), torch.zeros(1, 1, 1)),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_refused(words):
    with pytest.raises(ValueError, match=words):
        ops.merge_states(*REFUSED[words])


def test_out_may_not_lie_in_the_parts():
    outs, lse2s = drawn(2, 3, 1, 64)
    with pytest.raises(ValueError, match="out lies in the memory of outs"):
        ops.merge_states(outs, lse2s, out=outs[0])
    with pytest.raises(ValueError, match=r"out.dtype = torch.float32 for outs of torch.float16"):
        ops.merge_states(outs.half(), lse2s, out=torch.empty(3, 1, 64))


def cascade(prefix_keys, kv_lens, *, q_heads=8, kv_heads=2, channels=64, dtype=torch.float16):
    """Return q, the prefix, the requests' own keys, and one cache with the keys of both.

    The whole cache has a page for each key, so that the two agree whatever the page size.
    """
    generator = torch.Generator().manual_seed(0)
    size, batch = 16, len(kv_lens)
    prefix_pages, own_pages = -(-prefix_keys // size), max(-(-max(kv_lens) // size), 1)
    n = prefix_pages + batch * own_pages
    pools = torch.full((2, n + 1, size, kv_heads, channels), math.nan, dtype=dtype)
    order = torch.randperm(n, generator=generator).int() + 1
    first, rest = order[:prefix_pages][None], order[prefix_pages:].reshape(batch, own_pages)
    slots = []
    for table, lengths in ((first, [prefix_keys]), (rest, kv_lens)):
        for pages, length in zip(table, lengths, strict=True):
            slots.append([int(pages[i // size]) * size + i % size for i in range(length)])
            for pool in pools:
                shape = (length, kv_heads, channels)
                pool.flatten(0, 1)[slots[-1]] = torch.randn(shape, generator=generator).to(dtype)
    lengths = torch.tensor(kv_lens, dtype=torch.int32)
    prefix = PagedKV(*pools, first, torch.tensor([prefix_keys], dtype=torch.int32))
    whole = torch.zeros(batch, prefix_keys + max(kv_lens), dtype=torch.int32)
    for i, own in enumerate(slots[1:]):
        whole[i, : prefix_keys + len(own)] = torch.tensor(slots[0] + own)
    singles = pools.flatten(1, 2)[:, :, None]
    q = torch.randn(batch, q_heads, channels, generator=generator).to(dtype)
    both = PagedKV(*singles, whole, lengths + prefix_keys)
    return q, prefix, PagedKV(*pools, rest, lengths), both


@pytest.mark.parametrize(
    ("prefix_keys", "kv_lens", "more"),
    [
        (121, (5, 0, 33, 64, 1), {}),
        (1, (300,), {"channels": 128, "dtype": torch.bfloat16}),
        (40, (0, 0), {"q_heads": 3, "kv_heads": 3}),
        (200, (17,) * 9, {"q_heads": 16, "kv_heads": 1, "channels": 256}),
    ],
)
def test_a_cascade_is_a_decode_over_both(prefix_keys, kv_lens, more):
    q, prefix, own, both = cascade(prefix_keys, kv_lens, **more)
    step = ops.cascade_decode(q, prefix, own, checks=True)
    want = ops.decode(q, both, kernel="reference")
    # P has 16 bits in each part, relative to the part's own maximum, and out is rounded once
    limit = 2.0 ** (-9 if q.dtype == torch.float16 else -6)
    assert (step.out.double() - want.out.double()).abs().max() <= limit
    assert (step.lse2.double() - want.lse2.double()).abs().max() <= 2.0**-12
    assert step.plan.kernel.endswith("+ merge_states")


def test_a_cascade_follows_lengths_that_change():
    q, prefix, own, _ = cascade(50, (20, 7))
    step = ops.cascade_decode_step(q, prefix, own)
    step.run()
    before = step.out.clone()
    own.kv_len[1] = 9
    own.k.nan_to_num_(0.5)
    own.v.nan_to_num_(0.5)
    step.run()
    assert torch.equal(bits(step.out[0]), bits(before[0]))
    assert not torch.equal(bits(step.out[1]), bits(before[1]))


def test_the_batch_changes_no_bit_of_a_request_of_a_cascade_that_promises_so():
    """Alone, a free plan cuts the prefix for one request, and beside others for forty."""
    q, prefix, own, _ = cascade(3000, (20, 7, 0, 1, *(9,) * 36))

    def run(requests, **how):
        cache = replace(own, page_table=own.page_table[requests], kv_len=own.kv_len[requests])
        return ops.cascade_decode(q[requests], prefix, cache, **how)

    together = run(list(range(40)), batch_invariant=True)
    assert together.plan.batch_invariant
    assert not run([0]).plan.batch_invariant
    for requests in ([0], [1], [2], [3, 0], [39, 2, 1]):
        alone = run(requests, batch_invariant=True)
        assert torch.equal(bits(alone.out), bits(together.out[requests]))
        assert torch.equal(bits(alone.lse2), bits(together.lse2[requests]))


def test_a_prefix_of_two_requests_is_refused():
    q, _, own, _ = cascade(5, (20, 7))
    with pytest.raises(ValueError, match=r"prefix.batch = 2, allowed: 1"):
        ops.cascade_decode(q, own, own)
    with pytest.raises(ValueError, match="prefix is of type Tensor, allowed: PagedKV"):
        ops.cascade_decode(q, q, own)
