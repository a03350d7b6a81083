"""On the CPU build, append writes the new rows to their pages, and nothing else."""

import math
import re
from dataclasses import replace

import pytest
import torch

from labkernels import ops
from labkernels.kernels.append.workload import Append
from labkernels.kernels.caches.paged import PagedKV, QuantizedKV
from tests.kernels.append.cases import (
    GROWTHS,
    append_case,
    check_appended,
    check_codes,
    check_untouched,
    copies,
)
from tests.kernels.decode.cases import LAYOUTS, assert_same, bits

PAGES = (1, 3, 16, 64, 256)
SHAPES = [
    {"head_dim": head_dim, "dtype": dtype, "kv_heads": kv_heads}
    for head_dim, dtype in ((64, "bf16"), (80, "bf16"), (96, "fp16"), (128, "fp16"), (256, "bf16"))
    for kv_heads in (1, 3, 8)
] + [{"head_dim": 32, "dtype": "bf16", "kv_heads": 3}]


def check_append(*, more=(), **shape):
    case = append_case(*GROWTHS, *more, **shape)
    checks = {} if "device" in shape else {"checks": True}
    plan = ops.append(*case.arguments, **checks).plan
    check_appended(case)
    assert (plan.kernel, plan.launches) == ("append", 1)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("page_size", PAGES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_page_size_and_layout(page_size, layout):
    check_append(page_size=page_size, layout=layout)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_head_dim(shape):
    check_append(**shape)


def test_values_may_have_channels_of_their_own():
    case = append_case(*GROWTHS, head_dim=128)
    wide = torch.cat([case.cache.k, case.cache.k[..., :64]], dim=-1)
    cache = PagedKV(wide, case.cache.v, case.cache.page_table, case.cache.kv_len)
    k_new = torch.cat([case.k_new, case.k_new[..., :64]], dim=-1)
    ops.append(cache, k_new, case.v_new, case.cu_seqlens)
    check = case.whole.cache
    assert torch.equal(bits(wide[..., :128]), bits(check.k))
    assert torch.equal(bits(wide[..., 128:]), bits(check.k[..., :64]))
    assert torch.equal(bits(case.cache.v), bits(check.v))


def test_a_request_that_fills_its_pages_and_one_without_new_keys():
    case = append_case((0, 48), page_size=16)
    full = replace(case.cache, page_table=case.cache.page_table[:, :3].clone())
    ops.append(full, case.k_new, case.v_new, case.cu_seqlens)
    check_appended(case)
    none = append_case((3, 0), (0, 0))
    before = copies(none)
    assert ops.append(*none.arguments).plan.launches == 0
    check_untouched(none, before)


def test_many_warps_and_blocks_share_a_request():
    case = append_case((9, 3000), (0, 2), (1, 700), kv_heads=1, page_size=3)
    step = ops.append_step(*case.arguments, checks=True)
    assert step.plan.blocks > 16
    step.run()
    check_appended(case)


def test_a_step_appends_again():
    case = append_case((5, 12), (0, 2))
    rows = [[x[0:6], x[12:13]] for x in (case.k_new, case.v_new)]
    k_new, v_new = (torch.cat(parts) for parts in rows)
    sums = torch.tensor([0, 6, 7], dtype=torch.int32)
    step = ops.append_step(case.cache, k_new, v_new, sums)
    step.run()
    assert case.cache.kv_len.tolist() == [11, 1]
    k_new.copy_(torch.cat([case.k_new[6:12], case.k_new[13:14]]))
    v_new.copy_(torch.cat([case.v_new[6:12], case.v_new[13:14]]))
    step.run()
    check_appended(case)


def test_a_step_writes_no_key_beyond_the_table():
    case = append_case((30, 4), page_size=16)
    cache = case.cache
    short = replace(cache, page_table=cache.page_table[:, :2])
    ops.append_step(short, *case.arguments[1:]).run()
    assert cache.kv_len.tolist() == [34]
    key = torch.arange(30, 34)
    page, token = cache.page_table[0, key // 16].long(), key % 16
    assert torch.equal(bits(cache.k[page[:2], token[:2]]), bits(case.k_new[:2]))
    assert cache.k[page[2:], token[2:]].isnan().all()


def test_offsets_are_of_64_bits():
    far = 2**31 + 1024  # elements from page to page; untouched memory is never allocated
    pools = [torch.empty(far + 2 * 64, dtype=torch.float16) for _ in "kv"]
    k, v = (pool.as_strided((2, 2, 1, 64), (far, 64, 64, 1)) for pool in pools)
    cache = PagedKV(k, v, torch.tensor([[1]]).int(), torch.tensor([1]).int())
    k_new, v_new = (torch.randn(1, 1, 64).half() for _ in "kv")
    ops.append(cache, k_new, v_new, torch.tensor([0, 1]).int())
    assert torch.equal(k[1, 1], k_new[0])
    assert torch.equal(v[1, 1], v_new[0])


def changed(case, **changes):
    """Return the arguments of an append, of which `changes` replace some."""
    names = ("cache", "k_new", "v_new", "cu_seqlens_new")
    given = dict(zip(names, case.arguments, strict=True))
    return [changes[name](value) if name in changes else value for name, value in given.items()]


# the case has requests of 20 + 10 and 3 + 4 keys in pages of 16
BAD = [
    ({"k_new": lambda x: x.float()}, "k_new.dtype = torch.float32, allowed: torch.float16"),
    ({"v_new": lambda x: x.bfloat16()}, "v_new.dtype = torch.bfloat16, allowed: torch.float16"),
    ({"k_new": lambda x: x[:, :1]}, "k_new.shape = (14, 1, 64), allowed: [total_new, 2, 64]"),
    ({"v_new": lambda x: x[..., :32]}, "v_new.shape = (14, 2, 32), allowed: [total_new, 2, 64]"),
    ({"k_new": lambda x: x[0]}, "k_new.shape = (2, 64), allowed: [total_new, 2, 64]"),
    ({"k_new": lambda x: x.to("meta")}, "k_new.device = meta, allowed: cpu, where k is"),
    ({"v_new": lambda x: x[:13]}, "len(v_new) = 13, allowed: 14, len(k_new)"),
    ({"k_new": lambda x: torch.cat([x, x], -1)[..., ::2]}, "allowed: last stride 1"),
    ({"k_new": lambda x: torch.cat([x, x[..., :1]], -1)[..., :64]}, "multiples of 16 bytes"),
    ({"cu_seqlens_new": lambda x: x.long()}, "cu_seqlens_new.dtype = torch.int64"),
    ({"cu_seqlens_new": lambda x: x[:2]}, "len(cu_seqlens_new) = 2, allowed: 3"),
    ({"cu_seqlens_new": lambda x: x - x}, "cu_seqlens_new[-1] = 0, allowed: 14"),
    ({"cu_seqlens_new": lambda x: x.to("meta")}, "cu_seqlens_new.device = meta, allowed: cpu"),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_argument_is_named_and_nothing_is_written(changes, message):
    case = append_case((20, 10), (3, 4))
    before = copies(case)
    with pytest.raises(ValueError, match=re.escape(message)):
        ops.append(*changed(case, **changes))
    check_untouched(case, before)


def refused(case, message, **fields):
    """Assert that an append to a cache with other fields raises, and writes nothing."""
    before = copies(case)
    with pytest.raises(ValueError, match=re.escape(message)):
        ops.append(replace(case.cache, **fields), *case.arguments[1:])
    check_untouched(case, before)


def test_a_table_too_small_or_with_a_page_outside_the_pool_is_refused():
    case = append_case((20, 13), (3, 4))
    table = case.cache.page_table[:, :2].contiguous()
    message = "kv_len[0] = 20 and 13 new keys, allowed: 32 in all, page_table.shape[1] * page_size"
    refused(case, message, page_table=table)
    table, pages = case.cache.page_table.clone(), len(case.cache.k)
    table[0, 2] = pages
    refused(case, f"page_table[0, 2] = {pages}, allowed: 0 to {pages - 1}", page_table=table)


@pytest.mark.parametrize(
    ("entry", "other"),
    [
        ((1, 1), (0, 1)),  # both write to it
        ((1, 0), (0, 1)),  # one holds the slots that the other would write
        ((0, 2), (0, 1)),  # one request's own pages
    ],
)
def test_overlapping_pages_are_refused(entry, other):
    case = append_case((20, 20), (16, 8), page_size=16)
    table = case.cache.page_table.clone()
    table[entry] = table[other]
    later = max(entry, other)
    message = f"page_table[{later[0]}, {later[1]}] = {table[entry]}, allowed: a page of its own"
    refused(case, message, page_table=table)


def test_pages_that_are_only_read_may_be_shared():
    case = append_case((20, 10), (20, 3), page_size=16)
    table = case.cache.page_table.clone()
    table[1, 0] = table[0, 0]
    ops.append(replace(case.cache, page_table=table), *case.arguments[1:])
    check_appended(case)


def test_rows_within_the_cache_are_refused():
    case = append_case((20, 10), (3, 4), page_size=16)
    inside = case.cache.k.flatten(0, 1)[:14]
    before = copies(case)
    with pytest.raises(ValueError, match="k_new lies in the memory of the cache"):
        ops.append(case.cache, inside, case.v_new, case.cu_seqlens)
    check_untouched(case, before)


def check_append_and_attention(device):
    generator = torch.Generator().manual_seed(1)
    case = append_case((20, 10), (0, 4), (7, 1), device=device)
    q = torch.randn(15, 8, 64, generator=generator).half().to(device)
    found = ops.with_kvcache(q, *case.arguments, splits=1)
    check_appended(case)
    expected = ops.prefill(q, case.whole.cache, case.cu_seqlens, causal=True, splits=1)
    assert_same(found, expected)
    assert found.plan == expected.plan


def test_kv_cache_is_the_append_and_then_the_attention():
    check_append_and_attention("cpu")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tile": "1x1"}, "tile = '1x1'"),
        ({"splits": 0}, "splits = 0, allowed: 1"),
        ({"scale": math.nan}, "scale = nan, allowed: a positive number"),
    ],
)
def test_kv_cache_that_cannot_attend_appends_nothing(options, message):
    case = append_case((20, 10), (0, 4))
    before = copies(case)
    q = torch.zeros(14, 8, 64).half()
    with pytest.raises(ValueError, match=re.escape(message)):
        ops.with_kvcache(q, *case.arguments, **options)
    check_untouched(case, before)


SCALES = {"tensor": (), "head": (2,), "page": (20, 1, 1), "block": (20, 4, 2), "token": (20, 16, 2)}


def check_quantized(dtype, kind, of, device="cpu"):
    """All 65,536 inputs, each as a key and as a value, against torch's own rounding."""
    every = torch.arange(2**16, device=device).to(torch.int16).view(dtype)
    rows, held, shape = every.view(-1, 2, 128), 5, (2, *SCALES[of])
    scales = torch.exp2(3 * torch.randn(shape, generator=torch.Generator().manual_seed(1)))
    pages = torch.zeros(2, 20, 16, 2, 128, device=device).fill_(math.nan).to(kind)
    table = torch.randperm(20, dtype=torch.int32).to(device)[None]
    lengths = torch.tensor([held], dtype=torch.int32, device=device)
    cache = QuantizedKV(*pages, table, lengths, *scales.to(device))
    ends = torch.tensor([0, len(rows)], dtype=torch.int32, device=device)
    before = [x.clone() for x in cache.pools]
    ops.append(cache, rows, rows, ends)
    assert cache.kv_len.item() == held + len(rows)
    check_codes(cache, before, rows, rows, ends)


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("of", SCALES)
def test_every_number_of_16_bits_in_8_bits(dtype, kind, of):
    check_quantized(dtype, kind, of)


def test_bytes_of_a_workload_are_those_of_rows_codes_and_scales():
    wide = Append((5, 0, 17), (20, 0, 1), 2, 64, page_size=4)
    narrow = replace(wide, kv_dtype="e5m2")
    rows, elements = 2 * 2, 21 * 64  # K and V of 2 heads
    assert wide.bytes == rows * elements * (2 + 2)
    assert narrow.bytes == rows * (elements * (2 + 1) + 4)
    assert narrow.label == f"{wide.label}, e5m2 cache"
    with pytest.raises(ValueError, match="kv_dtype = 'fp8', allowed: None, e4m3, e5m2"):
        replace(wide, kv_dtype="fp8")
