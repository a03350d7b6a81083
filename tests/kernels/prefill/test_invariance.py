"""The rest of the batch, pages and layouts change no bit of a prefill."""

import pytest
import torch

from labkernels import ops
from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.caches.ragged import RaggedKV
from tests.kernels.contract import CUDA_PREFILLS, PAGED_PREFILLS
from tests.kernels.decode.cases import LAYOUTS, bits
from tests.kernels.prefill.cases import RAGGED_LAYOUTS, prefill_case, sums

Q_LENS = (0, 1, 17, 70, 20)
KV_LENS = (5, 100, 17, 150, 7)
every_kernel = pytest.mark.parametrize("kernel", CUDA_PREFILLS)
every_paged_kernel = pytest.mark.parametrize("kernel", PAGED_PREFILLS)


def fixed(kernel, **options):
    """Return options that make the plan independent of the batch."""
    spec = CUDA_PREFILLS[kernel]
    tile = spec.tiles(spec.shape(head_dim=64), spec.policies[0])[0]
    return {"kernel": kernel, "tile": tile.label, "keys_per_split": 96, **options}


def assert_same(left, right):
    assert torch.equal(bits(left.out), bits(right.out))
    assert torch.equal(bits(left.lse2), bits(right.lse2))


def every_layout():
    for name, spec in CUDA_PREFILLS.items():
        for layout, page_size in (("ragged", None), ("paged", 16)):
            if layout in spec.layouts:
                yield pytest.param(name, page_size, id=f"{name}-{layout}")


@pytest.mark.parametrize(("kernel", "page_size"), list(every_layout()))
def test_the_rest_of_the_batch_changes_nothing(kernel, page_size):
    layout = "thd" if page_size is None else "nhd"
    case = prefill_case(Q_LENS, KV_LENS, page_size=page_size, layout=layout)
    together = case.run(**fixed(kernel))
    assert together.plan.batch_invariant
    q_ends, k_ends = sums(Q_LENS).tolist(), sums(KV_LENS).tolist()
    for i, (n, m) in enumerate(zip(Q_LENS, KV_LENS, strict=True)):
        tokens, keys = slice(q_ends[i], q_ends[i + 1]), slice(k_ends[i], k_ends[i + 1])
        kv = case.kv
        if page_size is None:
            kv = RaggedKV(kv.k[keys], kv.v[keys], sums((m,)))
        else:
            kv = PagedKV(kv.k, kv.v, kv.page_table[i : i + 1], kv.kv_len[i : i + 1])
        alone = case.changed(q=case.q[tokens], kv=kv, cu_seqlens_q=sums((n,))).run(**fixed(kernel))
        assert torch.equal(bits(alone.out), bits(together.out[tokens]))
        assert torch.equal(bits(alone.lse2), bits(together.lse2[tokens]))


@every_kernel
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_pages_and_layouts_change_nothing(kernel, causal):
    first = prefill_case(Q_LENS, KV_LENS, causal=causal).run(**fixed(kernel))
    for layout in RAGGED_LAYOUTS[1:]:
        case = prefill_case(Q_LENS, KV_LENS, causal=causal, layout=layout)
        assert_same(first, case.run(**fixed(kernel)))
    sizes = zip((1, 3, 64, 256), LAYOUTS, strict=True) if kernel in PAGED_PREFILLS else ()
    for page_size, layout in sizes:
        case = prefill_case(Q_LENS, KV_LENS, causal=causal, page_size=page_size, layout=layout)
        assert_same(first, case.run(**fixed(kernel)))


@every_paged_kernel
def test_the_order_of_pages_in_the_pool_changes_nothing(kernel):
    case = prefill_case(Q_LENS, KV_LENS, page_size=16, layout="nhd")
    kv = case.kv
    order = torch.randperm(len(kv.k), generator=torch.Generator().manual_seed(8))
    k, v = torch.empty_like(kv.k), torch.empty_like(kv.v)
    k[order], v[order] = kv.k, kv.v
    known = kv.page_table < len(order)
    table = torch.where(known, order[kv.page_table.clamp(max=len(order) - 1)], 0).int()
    moved = case.changed(kv=PagedKV(k, v, table, kv.kv_len))
    assert_same(case.run(**fixed(kernel)), moved.run(**fixed(kernel)))


@every_paged_kernel
def test_the_order_of_requests_changes_their_order_alone(kernel):
    case = prefill_case(Q_LENS, KV_LENS, page_size=16, layout="nhd")
    kv, order = case.kv, [3, 0, 4, 2, 1]
    first = case.run(**fixed(kernel))
    ends = sums(Q_LENS).tolist()
    rows = torch.cat([torch.arange(ends[i], ends[i + 1]) for i in order])
    turned = case.changed(
        q=case.q[rows],
        kv=PagedKV(kv.k, kv.v, kv.page_table[order], kv.kv_len[order]),
        cu_seqlens_q=sums([Q_LENS[i] for i in order]),
    ).run(**fixed(kernel))
    assert torch.equal(bits(turned.out), bits(first.out[rows]))
    assert torch.equal(bits(turned.lse2), bits(first.lse2[rows]))


@every_kernel
def test_the_heads_that_share_a_tile_change_nothing(kernel):
    """The heads of a group share a tile; heads with K and V of their own do not."""
    case = prefill_case(Q_LENS, KV_LENS, group=3)
    apart = [x.repeat_interleave(3, dim=1) for x in (case.kv.k, case.kv.v)]
    alone = case.changed(kv=RaggedKV(*apart, case.kv.cu_seqlens))
    options = fixed(kernel, splits=1)
    del options["keys_per_split"]
    assert_same(case.run(**options), alone.run(**options))


@every_kernel
def test_again_gives_the_same_bits(kernel):
    case = prefill_case(Q_LENS, KV_LENS)
    first = case.run(**fixed(kernel))
    for _ in range(3):
        assert_same(first, case.run(**fixed(kernel)))


@every_kernel
def test_a_split_longer_than_the_request_is_no_split(kernel):
    case = prefill_case((70, 20), (90, 96))
    assert_same(case.run(**fixed(kernel)), case.run(**fixed(kernel, keys_per_split=10_000)))


@every_paged_kernel
def test_a_step_runs_again_with_other_pages(kernel):
    case = prefill_case((33, 20), (40, 40), page_size=16, layout="nhd")
    kv = PagedKV(case.kv.k, case.kv.v, case.kv.page_table.clone(), case.kv.kv_len)
    step = ops.prefill_step(case.q, kv, case.cu_seqlens_q, **fixed(kernel))
    for order in ([0, 1], [1, 0], [0, 0]):
        kv.page_table.copy_(case.kv.page_table[order])
        step.out.fill_(torch.nan)
        step.run()
        fresh = ops.prefill(case.q, kv, case.cu_seqlens_q, **fixed(kernel))
        assert_same(step, fresh)
