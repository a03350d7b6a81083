"""Every CUDA prefill kernel keeps its contract on the CPU build."""

import math
from dataclasses import replace

import pytest
import torch

from labkernels import hardware, ops
from labkernels.kernels import checks as arguments
from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.caches.ragged import RaggedKV
from tests.kernels.contract import CUDA_PREFILLS, PAGED_PREFILLS, run_checked
from tests.kernels.decode.cases import LAYOUTS, bits
from tests.kernels.prefill.cases import RAGGED_LAYOUTS, prefill_case, sums

# no query, no key, more queries than keys, a new token, around a tile
Q_LENS = (0, 1, 15, 16, 17, 70, 20)
KV_LENS = (5, 1, 0, 16, 150, 65, 7)
GROUPS = (1, 2, 3, 5, 7, 8, 16)
CUTS = ({}, {"splits": 2}, {"keys_per_split": 37})  # the plan's choice; a number; no whole steps
every_kernel = pytest.mark.parametrize("kernel", CUDA_PREFILLS)
every_paged_kernel = pytest.mark.parametrize("kernel", PAGED_PREFILLS)


def every_tile():
    """Yield every tile once, and the preferred tile of each head_dim, with alternating formats."""
    for name, spec in CUDA_PREFILLS.items():
        seen = set()
        for head_dim in spec.head_dims:
            for i, tile in enumerate(spec.tiles(spec.shape(head_dim=head_dim), spec.policies[0])):
                if i == 0 or tile.label not in seen:
                    seen.add(tile.label)
                    yield pytest.param(name, head_dim, tile.label, ("bf16", "fp16")[i % 2])


@pytest.mark.few_of_each("kernel", 3)
@every_kernel
@pytest.mark.parametrize("group", GROUPS)
def test_every_group(kernel, group):
    layout = RAGGED_LAYOUTS[group % len(RAGGED_LAYOUTS)]
    kv_heads = 2 if group < 8 else 1
    for causal in (False, True):
        case = prefill_case(
            Q_LENS, KV_LENS, causal=causal, group=group, kv_heads=kv_heads, layout=layout
        )
        run_checked(case, kernel, **CUTS[group % len(CUTS)])


@pytest.mark.few_of_each("kernel", 2)
@pytest.mark.parametrize(("kernel", "head_dim", "tile", "dtype"), list(every_tile()))
def test_every_tile(kernel, head_dim, tile, dtype):
    spec = CUDA_PREFILLS[kernel]
    ragged = spec.tiles(spec.shape(head_dim=head_dim, layout="ragged"), spec.policies[0])
    page_size = None if tile in {each.label for each in ragged} else 3  # a tile for pages alone
    sizes = {"head_dim": head_dim, "page_size": page_size}
    case = prefill_case((150, 3), (200, 3), kv_heads=1, dtype=dtype, **sizes)
    result = run_checked(case, kernel, tile=tile)
    assert result.plan.tile == tile
    run_checked(case, kernel, tile=tile, keys_per_split=96)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("head_dim", "page_size"), [(64, None), (64, 3), (128, 16), (128, 1), (256, None)]
)
def test_blocks_that_stay_take_tile_after_tile(head_dim, page_size, monkeypatch):
    """Each of two multiprocessors gets ten tiles, some without keys, some of one step."""
    few = replace(hardware.gpu("h200"), sm_count=2)
    monkeypatch.setattr(arguments, "target_gpu", lambda device, target: few)
    q_lens, kv_lens = (*Q_LENS, 200, 300), (*KV_LENS, 200, 500)
    for causal in (False, True):
        case = prefill_case(
            q_lens, kv_lens, causal=causal, group=1, head_dim=head_dim, page_size=page_size
        )
        for cut in CUTS[:2]:
            result = run_checked(case, "prefill_wgmma", **cut)
            assert result.plan.blocks >= 10 * few.sm_count


@pytest.mark.few_of_each("kernel", 2)
@every_paged_kernel
@pytest.mark.parametrize("page_size", [1, 3, 16, 64, 256])
def test_every_page_size(kernel, page_size):
    layout = LAYOUTS[page_size % len(LAYOUTS)]
    case = prefill_case(Q_LENS, KV_LENS, page_size=page_size, layout=layout, dtype="bf16")
    for cut in CUTS:
        run_checked(case, kernel, **cut)


@pytest.mark.few_of_each("kernel", 2)
@every_paged_kernel
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_paged_layout(kernel, layout):
    case = prefill_case((20, 33), (40, 33), head_dim=192, kv_heads=1, page_size=3, layout=layout)
    run_checked(case, kernel)


@pytest.mark.few_of_each("kernel", 2)
@every_kernel
@pytest.mark.parametrize("layout", RAGGED_LAYOUTS)
def test_every_ragged_layout(kernel, layout):
    for lengths in ((0, 17, 1, 70), (33,)):
        for causal in (False, True):
            case = prefill_case(lengths, lengths, causal=causal, group=1, layout=layout)
            run_checked(case, kernel)


@every_kernel
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_lengths_around_a_tile_and_a_step(kernel, causal):
    lengths = (1, 15, 16, 17, 63, 64, 65, 127, 128, 129)
    for keys in (lengths, lengths[::-1], (64,) * len(lengths), (129,) * len(lengths)):
        case = prefill_case(lengths, keys, causal=causal, group=1, kv_heads=1)
        run_checked(case, kernel, splits=1)


@every_kernel
def test_splits_that_some_tiles_do_not_see(kernel):
    case = prefill_case((300, 0, 2), (300, 10, 290), kv_heads=1)
    result = run_checked(case, kernel, keys_per_split=32)
    assert result.plan.splits == 10


def test_outputs_in_fp32_of_rows_that_few_keys_decide():
    """A key with a high score has a tenth of a row's weight, so the error of its score shows."""
    policies = [
        p for p in CUDA_PREFILLS["prefill_fma"].policies if (p.out, p.exp2) == ("fp32", "mufu")
    ]
    assert policies
    case = prefill_case((1, 40, 200), (900, 400, 200), group=4, seed=11)
    for policy in policies:
        run_checked(case, "prefill_fma", policy=policy, keys_per_split=300)


@every_kernel
def test_a_query_alone_is_a_decode(kernel):
    case = prefill_case((1, 1, 1), (200, 0, 17), group=8, kv_heads=1, causal=True)
    run_checked(case, kernel)
    whole = case.changed(causal=False)
    assert torch.equal(bits(case.run(kernel).out), bits(whole.run(kernel).out))


@every_kernel
def test_no_query_and_no_key_at_all(kernel):
    run_checked(prefill_case((0, 0), (5, 0)), kernel)
    run_checked(prefill_case((3, 40), (0, 0)), kernel, keys_per_split=16)


@every_paged_kernel
def test_no_page_at_all(kernel):
    pool = torch.empty(0, 16, 2, 64, dtype=torch.float16)
    empty = PagedKV(pool, pool, torch.empty(2, 0, dtype=torch.int32), sums((0,)))
    result = ops.prefill(torch.randn(7, 4, 64).half(), empty, sums((3, 4)), kernel=kernel)
    assert not result.out.any()
    assert (result.lse2 == -math.inf).all()


@every_kernel
def test_packed_qkv_is_the_same_as_three_tensors(kernel):
    qkv = torch.randn(50, 3, 4, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    ends = sums((20, 0, 30))
    for causal in (False, True):
        options = {"kernel": kernel, "causal": causal}
        packed = ops.varlen_qkvpacked(qkv, ends, **options)
        q, k, v = (x.contiguous() for x in qkv.unbind(1))
        apart = ops.prefill(q, RaggedKV(k, v, ends), ends, **options)
        assert torch.equal(bits(packed.out), bits(apart.out))
        assert torch.equal(bits(packed.lse2), bits(apart.lse2))


@every_kernel
def test_large_and_tiny_scores(kernel):
    """Scores of hundreds leave one key with all the weight; scores of nearly 0 leave it to all."""
    case = prefill_case(Q_LENS, KV_LENS, seed=3)
    for factor in (30.0, 2.0**-12):
        run_checked(case.changed(q=case.q * factor), kernel, keys_per_split=100, sharp=False)


@every_kernel
def test_scale_is_the_callers(kernel):
    case = prefill_case(Q_LENS, KV_LENS, seed=3)
    for scale in (0.02, 1.5):
        run_checked(case.changed(scale=scale), kernel, sharp=False)
