"""Prefill verbs check arguments and make plans. test_contract.py tests what kernels compute."""

import dataclasses
import math
import re

import pytest

torch = pytest.importorskip("torch")

from labkernels import (  # noqa: E402
    hardware,
    ops,
)
from labkernels.kernels.caches.paged import PagedKV  # noqa: E402
from labkernels.kernels.caches.ragged import RaggedKV  # noqa: E402
from labkernels.policy import (  # noqa: E402
    CUDA_CORES,
    NumericPolicy,
)
from tests.kernels.decode.cases import poisoned  # noqa: E402
from tests.kernels.prefill.cases import (  # noqa: E402
    prefill_case,
    sums,
)

LENGTHS = (33, 5)


def case_of(**options):
    return prefill_case(LENGTHS, LENGTHS, **options)


def entry(index, value):
    def change(tensor):
        tensor[index] = value
        return tensor

    return change


def gapped(tensor):
    """Return the same values with a stride of 2 in the last dimension."""
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


def meta(tensor):
    return tensor.to("meta")


BAD_TENSORS = [
    ("q", lambda x: x.float(), "q.dtype = torch.float32, allowed: torch.float16, as k"),
    ("q", meta, "q.device = meta, allowed: cpu, where k is"),
    ("q", lambda x: x[0], "q.shape = (4, 64), allowed: [total, q_heads, head_dim]"),
    ("q", lambda x: x[:, :3], "q.shape[1] = 3 query heads, allowed: a multiple of 2 KV heads"),
    ("q", lambda x: x[..., :32], "q.shape[2] = 32, allowed: 64, the head_dim of k"),
    ("q", gapped, "allowed: last stride 1 (a contiguous head_dim)"),
    ("q", lambda x: x[:-1], "cu_seqlens_q[-1] = 38, allowed: 37, the rows that there are"),
    ("k", lambda x: x.double(), "k.dtype = torch.float64, allowed: torch.float16"),
    ("k", lambda x: x[:, 0], "k.shape = (38, 64), allowed: [total, kv_heads, head_dim]"),
    ("k", lambda x: x[:-1], "v.shape = (38, 2, 64), allowed: (37, 2, 64), as k"),
    ("k", gapped, "k.stride() = "),
    ("v", lambda x: x.bfloat16(), "v.dtype = torch.bfloat16, allowed: torch.float16, as k"),
    ("v", lambda x: x[:, :1], "v.shape = (38, 1, 64), allowed: (38, 2, 64), as k"),
    ("v", lambda x: x[..., :32], "head_dim_v = 32, allowed for prefill_fma: 64 with head_dim 64"),
    ("v", meta, "v.device = meta, allowed: cpu, where k is"),
    ("cu_seqlens_q", lambda x: x.long(), "cu_seqlens_q.dtype = torch.int64, allowed: torch.int32"),
    ("cu_seqlens_q", lambda x: x[None], "cu_seqlens_q.shape = (1, 3), allowed: [batch + 1]"),
    (
        "cu_seqlens_q",
        lambda x: x[:1],
        "cu_seqlens_q.shape = (1,), allowed: [batch + 1], batch >= 1",
    ),
    ("cu_seqlens_q", lambda x: x[:2], "len(cu_seqlens_q) = 2, allowed: 3, the requests of kv"),
    ("cu_seqlens_q", gapped, "cu_seqlens_q.stride() = (2,), allowed: (1,)"),
    ("cu_seqlens_q", meta, "cu_seqlens_q.device = meta, allowed: cpu, where k is"),
    ("cu_seqlens_q", entry(0, 1), "cu_seqlens_q[0] = 1, allowed: 0"),
    ("cu_seqlens_q", entry(1, 39), "cu_seqlens_q[2] = 38, allowed: 39 or more, as it ascends"),
    ("cu_seqlens_q", entry(2, 37), "cu_seqlens_q[-1] = 37, allowed: 38, the rows that there are"),
    ("cu_seqlens", lambda x: x.float(), "cu_seqlens.dtype = torch.float32, allowed: torch.int32"),
    ("cu_seqlens", entry(0, -1), "cu_seqlens[0] = -1, allowed: 0"),
    ("cu_seqlens", entry(1, -7), "cu_seqlens[1] = -7, allowed: 0 or more, as it ascends"),
    ("cu_seqlens", entry(2, 40), "cu_seqlens[-1] = 40, allowed: 38, the rows that there are"),
]
BAD_OPTIONS = [
    ({"kernel": "decode_fma"}, "kernel = 'decode_fma', allowed: reference_prefill, prefill_fma"),
    ({"tile": "9x9x9x9x9"}, "tile = '9x9x9x9x9', allowed for prefill_fma: 128x64x8x1x1, "),
    ({"policy": NumericPolicy()}, "allowed for prefill_fma: p=fp32,"),
    ({"scale": math.nan}, "scale = nan, allowed: a positive number"),
    ({"keys_per_split": 0}, "keys_per_split = 0, allowed: 1 to "),
    ({"splits": 0}, "splits = 0, allowed: 1 to 65535"),
    ({"splits": 2, "keys_per_split": 16}, "splits = 2 and keys_per_split = 16, allowed: one of"),
    ({"target": "h300"}, "target = 'h300', allowed: t4, a100, "),
    ({"out": torch.empty(38, 4, 64)}, "out.dtype = torch.float32, allowed: torch.float16"),
    ({"out": torch.empty(37, 4, 64).half()}, "out: shape (37, 4, 64)"),
    ({"lse2": torch.empty(4, 38)}, "lse2: shape (4, 38)"),
]


def refuse(message, *, change=None, page_size=None, **options):
    """Assert that the call raises with these words, and writes nothing."""
    case = case_of(page_size=page_size, layout="nhd" if page_size else "thd")
    outputs = poisoned(case)
    options = {"kernel": "prefill_fma", "out": outputs.out, "lse2": outputs.lse2, **options}
    names = [field.name for field in dataclasses.fields(case.kv)]
    tensors = {"q": case.q, "cu_seqlens_q": case.cu_seqlens_q}
    tensors |= {name: getattr(case.kv, name) for name in names}
    if change is not None:
        name, make = change
        tensors[name] = make(tensors[name].clone())

    def call():
        kv = type(case.kv)(**{name: tensors[name] for name in names})
        ops.prefill(tensors["q"], kv, tensors["cu_seqlens_q"], **options)

    with pytest.raises(ValueError, match=re.escape(message)):
        call()
    assert all(whole.isnan().all() for whole in outputs.storage), "something was written"


@pytest.mark.parametrize(("name", "make", "message"), BAD_TENSORS, ids=[m for *_, m in BAD_TENSORS])
def test_bad_tensor_is_named(name, make, message):
    refuse(message, change=(name, make))


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS, ids=[m for _, m in BAD_OPTIONS])
def test_bad_option_is_named(options, message):
    refuse(message, **options)


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("kv_len", entry(1, -1), "kv_len[1] = -1, allowed: 0 to 64"),
        ("kv_len", entry(0, 65), "kv_len[0] = 65, allowed: 0 to 64"),
        ("page_table", entry((1, 0), 9), "page_table[1, 0] = 9, allowed: 0 to 8"),
        ("page_table", entry((0, 2), -1), "page_table[0, 2] = -1, allowed: 0 to 8"),
    ],
)
def test_bad_pages_are_named(name, make, message):
    refuse(message, change=(name, make), page_size=16)


def test_packed_qkv_of_another_shape_is_refused():
    for shape in ((5, 2, 4, 64), (5, 3, 64)):
        message = re.escape(f"qkv.shape = {shape}, allowed: [total, 3, heads, head_dim]")
        with pytest.raises(ValueError, match=message):
            ops.varlen_qkvpacked(torch.empty(shape).half(), sums((5,)))


def test_unknown_head_dim_is_refused():
    x = torch.empty(5, 2, 96).half()
    with pytest.raises(
        ValueError, match="head_dim = 96, allowed for prefill_fma: 64, 128, 192, 256"
    ):
        ops.prefill(x, RaggedKV(x, x, sums((5,))), sums((5,)), kernel="prefill_fma")


def test_tensors_without_memory_are_refused():
    x, ends = torch.empty(5, 2, 64, device="meta").half(), sums((5,)).to("meta")
    with pytest.raises(ValueError, match="q.device = meta, allowed: cpu, cuda"):
        ops.prefill(x, RaggedKV(x, x, ends), ends)


def test_tensors_without_memory_have_a_plan_for_a_named_target():
    x, ends = torch.empty(5, 2, 64).half(), sums((5,))
    real = ops.prefill_step(x, RaggedKV(x, x, ends), ends, target="a100").plan
    x, ends = x.to("meta"), ends.to("meta")
    how = {"q_lens": (5,), "kv_lens": (5,), "target": "a100"}
    assert ops.prefill_step(x, RaggedKV(x, x, ends), ends, **how).plan == real


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


def test_more_splits_than_there_are_states_for_are_refused():
    pool = torch.empty(1, 256, 1, 64).half()
    table = torch.zeros(1, 257, dtype=torch.int32)
    kv = PagedKV(pool, pool, table, torch.tensor([65_792], dtype=torch.int32))
    q = torch.empty(1, 1, 64).half()
    message = "keys_per_split = 1, allowed: at least 2 for 65792 keys, which is 65535 splits"
    with pytest.raises(ValueError, match=message):
        ops.prefill_step(q, kv, sums((1,)), kernel="prefill_fma", keys_per_split=1)


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


@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_pages_of_every_size_go_to_the_fastest_kernel(page_size):
    case = prefill_case(LENGTHS, LENGTHS, page_size=page_size, layout="nhd")
    result = ops.prefill(case.q, case.kv, case.cu_seqlens_q)
    assert result.plan.kernel == "prefill_wgmma"


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


def test_a_gpu_without_wgmma_gets_mma():
    x, ends = torch.randn(9, 4, 64).half(), sums((9,))
    result = ops.prefill(x, RaggedKV(x, x, ends), ends, target="a100")
    assert result.plan.kernel == "prefill_mma"
    assert "prefill_wgmma needs sm_90a" in result.plan.why
