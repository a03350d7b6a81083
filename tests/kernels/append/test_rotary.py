"""On the CPU build, append rotates new keys, and queries, as fp32 does, and then rounds once."""

import math
import re
from dataclasses import replace

import pytest
import torch

from labkernels import ops
from labkernels.cuda.compiler import nvrtc
from labkernels.kernels.append.copy.spec import ROTARY
from labkernels.kernels.caches.paged import QuantizedKV
from labkernels.measure import resources
from tests.kernels.append.cases import GROWTHS, append_case, check_untouched, copies
from tests.kernels.contract import SPECS
from tests.kernels.decode.cases import KV_DTYPES, LAYOUTS, PAD, bits
from tests.kernels.test_compile import check_report

NAMES = ("head_dim", "width", "kv_heads", "page_size", "layout")  # width: of cosines and of sines
SIZES = ((64, 32, 3, 1), (128, 8, 1, 16), (192, 56, 2, 17), (256, 128, 8, 256))
SHAPES = [dict(zip(NAMES, (*SIZES[i], LAYOUTS[i]), strict=True)) for i in range(4)]
# formats of the rows, of the tables, and of a cache of 8 bits
FORMATS = [
    ("fp16", torch.float32, None),
    ("bf16", torch.float32, "e4m3"),
    ("bf16", torch.bfloat16, None),
    ("fp16", torch.float16, "e5m2"),
]


def rotated(rows, cos, sin, places, interleaved, kind=torch.float32):
    """Return rows [total, heads, D] rotated in a format: float64 is the reference."""
    turned = rows.to(kind, copy=True)
    pairs = turned[..., : 2 * cos.shape[1]]
    a, b = (pairs[..., 0::2], pairs[..., 1::2]) if interleaved else pairs.chunk(2, -1)
    cos, sin = (table[places].to(kind)[:, None] for table in (cos, sin))
    a[:], b[:] = a * cos - b * sin, b * cos + a * sin
    return turned


def rotation_of(case, width, dtype=torch.float32):
    """Return cosines, sines and the new rows' places; beside and between them, tables are NaN."""
    ends = zip(case.cache.kv_len.tolist(), case.cu_seqlens.diff().tolist(), strict=True)
    places = torch.cat([torch.arange(old, old + n) for old, n in ends])
    angles = places[:, None] * 10_000.0 ** (-torch.arange(width) / width)
    wide = torch.full((places.max().item() + 1, 2 * width + PAD), math.nan, dtype=dtype)
    wide[places, : 2 * width] = torch.cat([angles.cos(), angles.sin()], dim=1).to(dtype)
    cos, sin = wide.to(case.k_new.device)[:, : 2 * width].split(width, 1)
    return cos, sin, places.to(cos.device)


def check_rounded(found, rows, cos, sin, *given):
    """Assert that rotated rows have the bits of fp32, and are within the bound of float64."""
    single, exact = (rotated(rows, cos, sin, *given, x) for x in (torch.float32, torch.float64))
    assert torch.equal(bits(found), bits(single.to(found.dtype)))
    sizes, near = [x.abs().double() for x in (rows, cos)], (sin.abs(), -sin.abs())
    products = torch.maximum(*(rotated(*sizes, x, *given, torch.float64) for x in near))
    u, facts = 2.0**-24, torch.finfo(found.dtype)
    half_a_step = facts.eps / 2 * single.double().abs().clamp(min=facts.smallest_normal)
    bound = half_a_step + (2 * u + u**2) * products
    assert not ((found.double() - exact).abs() > bound).any()


def case_of(growths, kind, **shape):
    """Return a case whose cache has 8 bits, unless kind is None."""
    case = append_case(*growths, **shape)
    if kind is None:
        return case
    pools = [x.to(KV_DTYPES[kind]) for x in case.cache.pools]
    scale = torch.linspace(0.3, 2.0, pools[0].shape[2], device=pools[0].device)
    cache = QuantizedKV(*pools, case.cache.page_table, case.cache.kv_len, scale, scale)
    return replace(case, cache=cache, storage=(*case.storage, *pools))


def check_rotary(growths, table, kind, interleaved, *, width, checks=False, **shape):
    """Append keys and rotate queries in one launch, beside an append of keys rotated before."""
    case, plain = (case_of(growths, kind, **shape) for _ in "ab")
    given = (*rotation_of(case, width, table), interleaved)
    q = torch.cat([case.k_new.flip(0), case.k_new], 1)
    how = {"rotary": given[:2], "interleaved": interleaved, "q": q, "checks": checks}
    step = ops.append_step(*case.arguments, **how)
    step.run()
    k_new = rotated(case.k_new, *given).to(q.dtype)
    ops.append(plain.cache, k_new, plain.v_new, plain.cu_seqlens)
    check_untouched(case, copies(plain))
    check_rounded(step.outputs(), q, *given)


@pytest.mark.few_of_each("shape", 4)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("dtype", "table", "kind"), FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_keys_and_queries_have_the_bits_of_fp32(shape, dtype, table, kind, interleaved):
    check_rotary(GROWTHS, table, kind, interleaved, checks=True, dtype=dtype, **shape)


def test_a_step_writes_no_key_beyond_the_table_of_cosines():
    case = append_case((30, 6), (3, 2))
    cos, sin, places = rotation_of(case, 32)
    ops.append_step(*case.arguments, rotary=(cos[:33], sin[:33])).run()
    assert case.cache.kv_len.tolist() == [36, 5]
    k, v = case.cache.of_request(0)
    expected = rotated(case.k_new[:3], cos, sin, places[:3], False).half()
    assert torch.equal(bits(k[30:33]), bits(expected))
    assert k[33:].isnan().all()
    assert v[33:].isnan().all()


@pytest.mark.skipif(nvrtc.available() is not None, reason="no NVRTC")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_nothing_spills(arch):
    (instance,) = SPECS["append"].instances(SPECS["append"].shape(head_dim=128, kv_dtype="e4m3"))
    instance = replace(instance, tile=ROTARY, rotary=("halves", "fp32"))
    check_report(instance, resources.compile_instance(instance, arch=arch).report)


TABLE = torch.zeros(36, 32)
BAD = [
    (TABLE, "rotary is of type Tensor, allowed: (cos, sin), or None"),
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
        with pytest.raises(ValueError, match="interleaved = 1, allowed: True, False"):
            verb(*case.arguments, rotary=(TABLE, TABLE), interleaved=1)
    check_untouched(case, before)
