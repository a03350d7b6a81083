"""On the CPU build, append rotates new keys, and queries, as fp32 does, and then rounds once."""

import re
from dataclasses import replace

import pytest
import torch

from labkernels import ops
from labkernels.cuda.compiler import nvrtc
from labkernels.kernels.caches.paged import QuantizedKV
from labkernels.measure import resources
from tests.kernels.append.cases import (
    GROWTHS,
    append_case,
    check_untouched,
    copies,
    rotated,
    rotation_of,
)
from tests.kernels.contract import SPECS
from tests.kernels.decode.cases import LAYOUTS, assert_same, bits
from tests.kernels.test_compile import check_report

SHAPES = [  # channels, half of those that are rotated, and where the keys go
    ({"head_dim": 64, "kv_heads": 3, "page_size": 1, "layout": LAYOUTS[0]}, 32),
    ({"head_dim": 128, "kv_heads": 1, "page_size": 16, "layout": LAYOUTS[1]}, 8),
    ({"head_dim": 192, "kv_heads": 2, "page_size": 17, "layout": LAYOUTS[2]}, 56),
    ({"head_dim": 256, "kv_heads": 8, "page_size": 256, "layout": LAYOUTS[3]}, 128),
]
FORMATS = [("fp16", torch.float32), ("bf16", torch.float32), ("bf16", torch.bfloat16)]


def check_rounded(found, rows, cos, sin, places, interleaved):
    """Assert that rotated rows have the bits of fp32, and are within the bound of float64."""
    single = rotated(rows, cos, sin, places, interleaved)
    assert torch.equal(bits(found), bits(single.to(found.dtype)))
    exact = rotated(rows, cos, sin, places, interleaved, torch.float64)
    sizes, near = [x.abs().double() for x in (rows, cos)], (sin.abs(), -sin.abs())
    sums = (rotated(*sizes, x, places, interleaved, torch.float64) for x in near)
    u, facts = 2.0**-24, torch.finfo(found.dtype)
    half_a_step = facts.eps / 2 * single.double().abs().clamp(min=facts.smallest_normal)
    bound = half_a_step + (2 * u + u**2) * torch.maximum(*sums)
    assert not ((found.double() - exact).abs() > bound).any()


def check_rotary(shape, width, dtype, table, interleaved, device="cpu", more=()):
    """Append keys and rotate queries in one launch, beside an append of keys rotated before."""
    case, plain = (append_case(*GROWTHS, *more, dtype=dtype, device=device, **shape) for _ in "ab")
    cos, sin, places = rotation_of(case, width, table)
    q = torch.cat([case.k_new.flip(0), case.k_new], 1)
    how = {"rotary": (cos, sin), "interleaved": interleaved, "checks": device == "cpu"}
    step = ops.append_step(*case.arguments, **how, q=q)
    step.run()
    assert step.plan.launches == 1
    k_new = rotated(case.k_new, cos, sin, places, interleaved).to(q.dtype)
    ops.append(plain.cache, k_new, plain.v_new, plain.cu_seqlens)
    check_untouched(case, copies(plain))
    check_rounded(step.outputs(), q, cos, sin, places, interleaved)


@pytest.mark.few_of_each("shape", 3)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("dtype", "table"), FORMATS)
@pytest.mark.parametrize(("shape", "width"), SHAPES)
def test_keys_and_queries_have_the_bits_of_fp32(shape, width, dtype, table, interleaved):
    check_rotary(shape, width, dtype, table, interleaved)


def check_codes(kind, interleaved, device="cpu"):
    """A cache of 8 bits gets the codes of keys that were rotated to 16 bits."""
    case = append_case(*GROWTHS, head_dim=128, dtype="bf16", device=device)
    cos, sin, places = rotation_of(case, 32, torch.float32)
    rows, found = rotated(case.k_new, cos, sin, places, interleaved).bfloat16(), []
    for k_new, how in ((case.k_new, {"rotary": (cos, sin)}), (rows, {})):
        pools = (torch.zeros(x.shape, dtype=kind, device=device) for x in case.cache.pools)
        scales = torch.tensor([[0.3, 0.01], [1.0, 0.2]], device=device)
        lengths = case.cache.kv_len.clone()
        cache = QuantizedKV(*pools, case.cache.page_table, lengths, *scales)
        how |= {"interleaved": interleaved, "checks": device == "cpu"}
        ops.append(cache, k_new, case.v_new, case.cu_seqlens, **how)
        found.append([x.view(torch.uint8) for x in cache.pools])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_a_cache_of_8_bits(kind):
    check_codes(kind, interleaved=kind is torch.float8_e5m2)


@pytest.mark.parametrize("how", [{}, {"causal": False}, {"causal": False, "window_left": 4}])
def test_kv_cache_rotates_queries_too(how):
    case, plain = (append_case((20, 10), (0, 4), (7, 1)) for _ in "ab")
    cos, sin, places = rotation_of(case, 32, torch.float32)
    q = torch.randn(15, 4, 64).half()
    at = places if how != {"causal": False} else torch.tensor([20] * 10 + [0] * 4 + [7])
    rows = (rotated(x, cos, sin, p, False).half() for x, p in ((q, at), (plain.k_new, places)))
    turned, k_new = rows
    expected = ops.with_kvcache(turned, plain.cache, k_new, plain.v_new, plain.cu_seqlens, **how)
    assert_same(ops.with_kvcache(q, *case.arguments, rotary=(cos, sin), **how), expected)


def test_a_step_writes_no_key_beyond_the_table_of_cosines():
    case, plain = (append_case((30, 6), (3, 2)) for _ in "ab")
    cos, sin, places = rotation_of(case, 16, torch.float32)
    ops.append_step(*case.arguments, rotary=(cos[:33], sin[:33])).run()
    new = [rotated(x, cos, sin, places, False).half() for x in (plain.k_new,)] + [plain.v_new]
    kept = torch.tensor([0, 1, 2, 6, 7])
    ends = torch.tensor([0, 3, 5], dtype=torch.int32)
    ops.append(plain.cache, *(x[kept] for x in new), ends)
    assert case.cache.kv_len.tolist() == [36, 5]
    for mine, other in zip(case.cache.pools, plain.cache.pools, strict=True):
        assert torch.equal(bits(mine), bits(other))


@pytest.mark.skipif(nvrtc.available() is not None, reason="no NVRTC")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
def test_nothing_spills(arch, pairs):
    spec = SPECS["append"]
    shape = replace(spec.shape(head_dim=128, kv_dtype="e4m3"), rotary=(pairs, "fp32"))
    (instance,) = spec.instances(shape)
    check_report(instance, resources.compile_instance(instance, arch=arch).report)


TABLE = torch.zeros(36, 32)
BAD = [
    (TABLE, "rotary is a Tensor, allowed: (cos, sin), None"),
    ((TABLE, None), "sin is of type NoneType, allowed: torch.Tensor"),
    ((TABLE.double(), TABLE), "cos.dtype = torch.float64, allowed: torch.float32, torch.float16"),
    ((TABLE, TABLE.half()), "sin is torch.float16 (36, 32), allowed: torch.float32 (36, 32)"),
    ((TABLE[0], TABLE), "cos.shape = (32,), allowed: [positions, dim / 2]"),
    ((TABLE, TABLE.to("meta")), "sin.device = meta, allowed: cpu"),
    ((TABLE[:, :12],) * 2, "cos.shape[1] = 12, allowed: multiples of 8 to 32"),
    ((torch.zeros(36, 40),) * 2, "cos.shape[1] = 40, allowed: multiples of 8 to 32"),
    ((TABLE[:35],) * 2, "len(cos) = 35, allowed: 36 or more, the keys of request 0"),
]


@pytest.mark.parametrize(("rotary", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_tables_are_named_and_nothing_is_written(rotary, message):
    case = append_case((30, 6), (3, 2), (50, 0))
    before = copies(case)
    for verb in (ops.append, lambda *given, **how: ops.with_kvcache(case.k_new, *given, **how)):
        with pytest.raises(ValueError, match=re.escape(message)):
            verb(*case.arguments, rotary=rotary)
    check_untouched(case, before)
