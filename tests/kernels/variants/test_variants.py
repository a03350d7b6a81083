"""What a variant changes besides the numbers, which the contract checks: plans and refusals."""

import math
import re

import pytest
import torch

from labkernels import ops
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.kernels.call import ALL_KEYS
from labkernels.variant import AttentionVariant
from tests.kernels.append.cases import append_case
from tests.kernels.contract import SPECS
from tests.kernels.decode.cases import assert_same, decode_case, poisoned, sums
from tests.kernels.prefill.cases import prefill_case
from tests.kernels.variants.cases import masked, varied

DECODE, PREFILL = decode_case((33, 5)), prefill_case((3, 20), (33, 30), page_size=16, layout="nhd")
ONES = torch.ones(8)
KERNELS = ("decode_mma", "triton_decode", "prefill_mma", "triton_prefill")
REFUSED = [
    ({"window_left": -1}, f"window_left = -1, allowed: None, 0 to {ALL_KEYS - 1:,}"),
    ({"window_left": 1.0}, "window_left = 1.0, allowed"),
    ({"window_right": True}, "window_right = True, allowed"),
    ({"window_right": 2**30}, "window_right = 1073741824, allowed"),
    ({"soft_cap": math.nan}, "soft_cap = nan, allowed: None, a positive number to 1e+06"),
    ({"soft_cap": 0.0}, "soft_cap = 0.0, allowed"),
    ({"soft_cap": math.inf}, "soft_cap = inf, allowed"),
    ({"soft_cap": "50"}, "soft_cap = '50', allowed"),
    ({"alibi": ONES[:7]}, "alibi is torch.float32 (7,) on cpu, allowed: torch.float32 (8,) on cpu"),
    ({"sinks": ONES.double()}, "sinks is torch.float64 (8,) on cpu, allowed: torch.float32 (8,)"),
    ({"sinks": ONES.to("meta")}, "sinks is torch.float32 (8,) on meta, allowed"),
    ({"alibi": torch.ones(16)[::2]}, "alibi.stride() = (2,), allowed: contiguous"),
    (
        {"bias": torch.ones(8, 4)},
        "bias is torch.float32 (8, 4) on cpu, allowed: torch.float32 (8, 5)",
    ),
    ({"alibi": [0.5] * 8}, "alibi"),
]


@pytest.mark.parametrize(("variant", "words"), REFUSED, ids=[words[:24] for _, words in REFUSED])
@pytest.mark.parametrize("verb", ["decode", "prefill"])
def test_a_variant_out_of_range_is_refused_by_name_and_nothing_is_written(verb, variant, words):
    case = DECODE if verb == "decode" else prefill_case((3,), (33,), group=4)
    outputs = poisoned(case)
    with pytest.raises(ValueError, match=re.escape(words)):
        case.run(out=outputs.out, lse2=outputs.lse2, **variant)
    assert outputs.out.isnan().all()
    assert outputs.lse2.isnan().all()


MASK = masked(([3], [33]), 0.5, torch.Generator().manual_seed(0))
REFUSED_MASKS = [
    (MASK[:-4], "len(mask) = 12, allowed: 16 or more, the bits of these requests in whole words"),
    (MASK.int(), "mask is torch.int32 (16,) on cpu, allowed: torch.uint8 [bytes] on cpu"),
    (MASK.view(4, 4), "mask is torch.uint8 (4, 4) on cpu, allowed"),
    (MASK.to("meta"), "mask is torch.uint8 (16,) on meta, allowed"),
    (MASK.repeat(2)[::2], "mask has stride (2,)"),
    (MASK.repeat(2)[1:], "allowed: (1,) at a multiple of 4"),
    (b"bits", "mask"),
]


@pytest.mark.parametrize(("mask", "words"), REFUSED_MASKS, ids=[x[:30] for _, x in REFUSED_MASKS])
def test_a_mask_that_does_not_fit_is_refused_and_nothing_is_written(mask, words):
    case = prefill_case((3,), (33,), group=4)
    outputs = poisoned(case)
    with pytest.raises(ValueError, match=re.escape(words)):
        case.run(out=outputs.out, lse2=outputs.lse2, mask=mask)
    assert outputs.out.isnan().all()


@pytest.mark.parametrize("masks", [(), (torch.ones(3, 3),)], ids=["none", "floats"])
def test_masks_that_cannot_be_packed_are_refused(masks):
    with pytest.raises(ValueError, match="^masks.*allowed"):
        ops.pack_mask(masks)


@pytest.mark.parametrize(
    "kernel", ["prefill_mma", "prefill_fma", "prefill_wgmma", "triton_prefill"]
)
@pytest.mark.usefixtures("interpreted")
def test_a_causal_mask_of_bits_gives_the_bits_of_a_causal_call(kernel):
    """Keys that no row of a step sees change nothing: each row's steps are the same."""
    case = prefill_case((70, 3, 0, 5), (90, 33, 7, 2), group=4, kv_heads=1)
    lengths = zip(*case.lengths, strict=True)
    seen = [torch.ones(n, keys).tril(keys - n).bool() for n, keys in lengths]
    causal = case.run(kernel, splits=1)
    assert_same(case.run(kernel, splits=1, mask=ops.pack_mask(seen)), causal)


def test_the_planner_takes_a_kernel_that_reads_bits():
    case = prefill_case((300,), (300,), group=4)
    mask = masked(case.lengths, 0.5, torch.Generator())
    assert case.step(mask=mask, target="h200").plan.kernel == "prefill_wgmma"
    assert case.step(mask=mask, target="a100").plan.kernel == "prefill_mma"
    shape = SPECS["decode_mma"].shape(head_dim=64, variant=AttentionVariant(mask=True))
    words = "a variant with mask, allowed for decode_mma: window, soft_cap"
    assert words in SPECS["decode_mma"].refuses(shape)


def test_a_masks_bits_may_change_between_runs():
    case = prefill_case((3, 4), (33, 9), group=4)
    first, second = (masked(case.lengths, x, torch.Generator().manual_seed(1)) for x in (0.2, 0.8))
    mask = first.clone()
    step = case.step(mask=mask)
    for bits in (first, second):
        mask.copy_(bits)
        step.run()
        assert_same(step, case.run(mask=bits))


def test_biases_to_a_reach_of_128_are_those_of_t5():
    """Its 32 buckets end at a distance of 128; a table of distances holds every one of them."""
    weights = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))

    def bucket(distance):  # transformers' T5Attention._relative_position_bucket, of both sides
        far = distance.abs().clamp(min=1)
        large = 8 + (torch.log(far / 8) / math.log(128 / 8) * 8).long()
        within = torch.where(far < 8, distance.abs(), large.clamp(max=15))
        return torch.where(distance > 0, 16, 0) + within

    case = prefill_case((3, 300), (3, 300), group=4, kv_heads=1)
    table = weights[bucket(torch.arange(-128, 129))].T.contiguous()
    found = case.run("prefill_mma", bias=table, scale=1.0, causal=False).out[3:].double()
    place = torch.arange(300)
    q, k, v = (x[3:].double().transpose(0, 1) for x in (case.q, case.kv.k, case.kv.v))
    scores = q @ k.mT + weights[bucket(place - place[:, None])].permute(2, 0, 1)
    assert torch.allclose(found.transpose(0, 1), scores.softmax(-1) @ v, atol=3e-3)


@pytest.mark.parametrize("name", ["alibi", "sinks", "bias"])
@pytest.mark.parametrize("case", [DECODE, PREFILL], ids=["decode", "prefill"])
def test_an_output_over_a_variants_tensor_is_refused(name, case):
    heads, rows = case.q.shape[1], case.q.shape[0]
    whole = torch.zeros(rows * heads)
    given = whole[:heads].view(heads, 1) if name == "bias" else whole[:heads]
    with pytest.raises(ValueError, match=name):
        case.run(lse2=whole.view(rows, heads), **{name: given})


@pytest.mark.parametrize("kernel", ["decode_mma", "triton_decode"])
@pytest.mark.usefixtures("interpreted")
def test_a_decode_has_as_many_splits_as_its_window_needs(kernel):
    """The hash of a call holds the variant, so that no plan serves another window."""
    case = decode_case((2000, 5), kv_heads=1)
    splits = {
        window: case.step(kernel, keys_per_split=128, window_left=window).plan.splits
        for window in (None, 127, 128, 640, None, 127)
    }
    assert splits == {None: 16, 127: 1, 128: 2, 640: 6}
    freely = [case.step(kernel, window_left=window).plan for window in (200, 1999)]
    assert [plan.splits for plan in freely] == [1, 8]


def test_a_prefill_has_as_many_splits_as_its_window_needs():
    case = prefill_case((2,), (2000,), kv_heads=1)
    steps = {
        w: case.step("prefill_mma", keys_per_split=128, window_left=w) for w in (None, 63, 900)
    }
    assert {w: step.plan.splits for w, step in steps.items()} == {None: 16, 63: 1, 900: 8}


@pytest.mark.parametrize("kernel", [*KERNELS, "decode_mma_n8", "prefill_fma"])
@pytest.mark.usefixtures("interpreted")
def test_a_variant_that_changes_nothing_gives_the_plain_output(kernel):
    """A window beyond all keys hides none; sinks of -inf weigh nothing; slopes of 0 add nothing."""
    decodes = SPECS[kernel].operation == "decode"
    case = decode_case((50, 200, 0)) if decodes else prefill_case((5, 70), (50, 200), group=4)
    plain = case.run(kernel)
    nothing = {"window_left": 10**6, "sinks": torch.full((8,), -math.inf)}
    assert_same(case.run(kernel, **nothing), plain)


@pytest.mark.parametrize("kernel", [*KERNELS, "prefill_fma", "prefill_wgmma"])
@pytest.mark.usefixtures("interpreted")
def test_a_variants_bits_depend_on_neither_batch_nor_chunk(kernel):
    """A row's keys come in the same steps, wherever the window of its tile's first row begins."""
    decodes = SPECS[kernel].operation == "decode"
    both = decode_case((150, 200)) if decodes else prefill_case((70, 90), (150, 200))
    both = varied(both, window_left=70, sinks=True)
    masks = [] if decodes else [torch.rand(n, m) < 0.5 for n, m in zip(*both.lengths, strict=True)]
    alone, masked_too = both.chosen([1]), "mask" in SPECS[kernel].features

    def run(case, shown):
        bits = {"mask": ops.pack_mask(shown)} if masked_too else {}
        return case.run(kernel, batch_invariant=True, **bits)

    found = run(alone, masks[1:])
    assert_same(found, run(both, masks), rows=both.rows([1]))
    if not decodes:
        chunk = alone.changed(q=alone.q[-20:], cu_seqlens_q=sums((20,)))
        assert_same(run(chunk, [masks[1][-20:]]), found, rows=slice(-20, None))


def test_a_tree_of_drafts_after_a_cache_that_grows():
    """Each draft sees the cache, its ancestors and itself: as if its path alone were appended."""
    paths = [[0], [0, 1], [0, 2], [0, 1, 3], [0, 2, 4]]
    case = append_case((20, 5), kv_heads=2, page_size=4, layout="nhd", head_dim=64)
    cache, k_new, v_new, ends = case.arguments
    seen = torch.ones(5, 25).bool()
    for draft, path in enumerate(paths):
        seen[draft, 20:] = False
        seen[draft, [20 + i for i in path]] = True
    q = torch.randn(5, 4, 64).to(k_new.dtype)
    step = ops.with_kvcache(q, cache, k_new, v_new, ends, causal=False, mask=ops.pack_mask([seen]))
    k, v = cache.of_request(0)
    for draft in range(5):
        rows = seen[draft].nonzero()[:, 0]
        given = (x[rows].contiguous() for x in (k, v))
        kv = RaggedKV(*given, sums((len(rows),)))
        alone = ops.prefill(q[draft : draft + 1], kv, sums((1,)))
        assert torch.allclose(step.out[draft], alone.out[0], atol=2e-3)
        assert torch.allclose(step.lse2[draft], alone.lse2[0], atol=1e-5)
