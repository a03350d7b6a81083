"""Prefill verbs choose kernels, tiles and splits, and say why."""

from dataclasses import replace

import pytest
import torch

from labkernels import hardware, ops
from labkernels.kernels import checks as arguments
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.policy import CUDA_CORES, NumericPolicy
from tests.kernels.contract import CUDA_PREFILLS, run_checked
from tests.kernels.decode.cases import assert_same, sums
from tests.kernels.prefill.cases import prefill_case
from tests.kernels.trials import CUTS, PREFILL

LENGTHS = (33, 5)


def case_of(**options):
    return prefill_case(LENGTHS, LENGTHS, **options)


def test_defaults_are_the_preferred_kernel_and_a_fresh_output():
    for head_dim, head_dim_v in ((64, 64), (192, 128)):
        case = case_of(head_dim=head_dim, dtype="bf16")
        result = ops.prefill(case.q, case.kv, case.cu_seqlens_q)
        assert result.out.shape == (*case.q.shape[:2], head_dim_v)
        assert result.out.dtype == case.q.dtype
        assert result.lse2.shape == case.q.shape[:2]
        assert result.plan.kernel == "prefill_wgmma"
        assert result.plan.why.startswith(
            "prefill_wgmma: the first of prefill_wgmma, prefill_wgmma_basic,"
        )


def test_the_plan_says_whether_the_batch_could_change_a_request():
    case = case_of()
    options = {"kernel": "prefill_fma", "causal": True}
    tile = ops.prefill(case.q, case.kv, case.cu_seqlens_q, **options).plan.tile

    def plan(**more):
        return ops.prefill_step(case.q, case.kv, case.cu_seqlens_q, **options, **more).plan

    assert not plan().batch_invariant
    assert not plan(splits=1).batch_invariant, "the tile follows the longest request"
    assert not plan(tile=tile).batch_invariant, "so do the splits"
    assert not plan(tile=tile, splits=2).batch_invariant, "and the keys of each"
    assert plan(tile=tile, splits=1).batch_invariant
    assert plan(tile=tile, keys_per_split=32).batch_invariant


def test_splits_are_obeyed_and_reported():
    case = prefill_case((100,), (1000,), kv_heads=1)
    options = {"kernel": "prefill_fma", "tile": "64x64x4x1x2"}
    for more, keys, splits in (
        ({"splits": 1}, 1024, 1),
        ({"splits": 3}, 384, 3),
        ({"keys_per_split": 300}, 300, 4),
    ):
        plan = ops.prefill_step(case.q, case.kv, case.cu_seqlens_q, **options, **more).plan
        assert (plan.keys_per_split, plan.splits) == (keys, splits)
        assert plan.blocks == 4 * splits
    assert plan.waves == plan.blocks / (plan.blocks_per_sm * hardware.gpu("h200").sm_count)
    assert plan.policy == CUDA_CORES.label
    assert plan.launches == 1


def test_what_the_tma_cannot_bring_goes_to_the_kernel_that_can():
    x, ends = torch.randn(9, 4, 64).half(), sums((9,))
    shared = RaggedKV(x[:, :1].expand(9, 4, 64), x, ends)
    result = ops.prefill(x, shared, ends)
    assert result.plan.kernel == "prefill_mma"
    assert (
        "a stride of 0 in q, k or v, allowed for prefill_wgmma: positive strides" in result.plan.why
    )
    wide = torch.randn(3, 200, 64).half()
    result = ops.prefill(wide, RaggedKV(wide[:, :1], wide[:, :1], sums((3,))), sums((3,)))
    assert "200 query heads per KV head, allowed for prefill_wgmma: up to 128" in result.plan.why
    with pytest.raises(
        ValueError, match="a stride of 0.*positive strides; of the kernels: prefill_mma"
    ):
        ops.prefill(x, shared, ends, kernel="prefill_wgmma")


def test_a_policy_goes_to_a_kernel_that_has_it():
    x, ends = torch.randn(9, 2, 64).half(), sums((9,))
    kv = RaggedKV(x[:, :1], x[:, :1], ends)
    plan = ops.prefill(x, kv, ends, policy=CUDA_CORES, target="h200").plan
    assert plan.kernel == "prefill_fma"
    assert "prefill_wgmma lacks the policy asked for" in plan.why
    with pytest.raises(ValueError, match="policy = p=e4m3.* allowed for prefill_wgmma"):
        ops.prefill(x, kv, ends, policy=NumericPolicy(p="e4m3"), target="h200")


def test_few_rows_go_to_the_kernel_that_has_tiles_for_them():
    for tokens, kernel in ((8, "prefill_mma"), (9, "prefill_wgmma")):
        x, ends = torch.randn(tokens, 2, 64).half(), sums((tokens,))
        plan = ops.prefill(x, RaggedKV(x[:, :1], x[:, :1], ends), ends, splits=1).plan
        assert plan.kernel == kernel
        assert not plan.batch_invariant, "another request could change the kernel"
    plan = ops.prefill(
        x, RaggedKV(x[:, :1], x[:, :1], ends), ends, splits=1, kernel="prefill_wgmma"
    ).plan
    assert plan.batch_invariant


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("head_dim", "page_size"), [(64, None), (64, 3), (128, 16), (128, 1), (256, None)]
)
def test_blocks_that_stay_take_tile_after_tile(head_dim, page_size, monkeypatch):
    """Each of two multiprocessors gets ten tiles, some without keys, some of one step."""
    few = replace(hardware.gpu("h200"), sm_count=2)
    monkeypatch.setattr(arguments, "target_gpu", lambda device, target: few)
    q_lens, kv_lens = (*PREFILL[0], 200, 300), (*PREFILL[1], 200, 500)
    for causal in (False, True):
        case = prefill_case(
            q_lens, kv_lens, causal=causal, group=1, head_dim=head_dim, page_size=page_size
        )
        for cut in CUTS[:2]:
            result = run_checked(case, "prefill_wgmma", **cut)
            assert result.plan.blocks >= 10 * few.sm_count


@pytest.mark.parametrize("kernel", CUDA_PREFILLS)
def test_packed_qkv_is_the_same_as_three_tensors(kernel):
    qkv = torch.randn(50, 3, 4, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    ends = sums((20, 0, 30))
    for causal in (False, True):
        options = {"kernel": kernel, "causal": causal}
        packed = ops.varlen_qkvpacked(qkv, ends, **options)
        q, k, v = (x.contiguous() for x in qkv.unbind(1))
        apart = ops.prefill(q, RaggedKV(k, v, ends), ends, **options)
        assert_same(packed, apart)
