"""A cache of 8 bits gives the bits of 16 bits of the same numbers, tile and splits."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from labkernels import ops
from labkernels.kernels.caches.paged import PagedKV, QuantizedKV
from labkernels.kernels.decode.inputs import DecodeInputs, decode_inputs
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.random_inputs import Normal
from labkernels.measure.judge.judge import judge_of
from labkernels.policy import NumericPolicy
from labkernels.units import LOG2_E
from tests.kernels.contract import CUDA, SPECS
from tests.kernels.decode.cases import DTYPES, KV_DTYPES, assert_same, bits, decode_case

KERNELS = [name for name, spec in CUDA.items() if "e4m3" in spec.kv_dtypes]
LENGTHS = (0, 1, 17, 64, 129, 300)
SCALES = ((0.5, 4.0), (2.0, 0.25))  # of K and of V, by KV head
VARIANT = {"window_left": 70, "soft_cap": 3.0}
BLOCKS = ((1, 1), (1, 2), (3, 2), (6, 2))  # of a page of 6 keys, and their KV heads
EVERY = [(k, dtype, kind) for k in KERNELS for dtype in ("fp16", "bf16") for kind in KV_DTYPES]

OF_BLOCKS = [(k, dt, kind) for k, dt, kind in EVERY if dt in SPECS[k].block_dtypes]


def pair(kernel, dtype, kind, *, scales=((1.0, 1.0),) * 2, device="cpu", **shape):
    """Return a query, a cache of 8 bits and its numbers in 16 bits; all unused codes are NaN."""
    case = decode_case(LENGTHS, dtype=dtype, **shape)
    k, v = (x.to(KV_DTYPES[kind]).to(device) for x in (case.cache.k, case.cache.v))
    table, lengths = (x.to(device) for x in (case.cache.page_table, case.cache.kv_len))
    k_scale, v_scale = (torch.tensor(x, device=device) for x in scales)
    narrow = QuantizedKV(k, v, table, lengths, k_scale, v_scale)
    wide = PagedKV(k.to(DTYPES[dtype]), v.to(DTYPES[dtype]), table, lengths)
    return case.q.contiguous().to(device), narrow, wide


def of_head(q, cache, head):
    """Return the query heads and the cache of one KV head."""
    group = q.shape[1] // cache.kv_heads
    pools = {name: getattr(cache, name)[:, :, head : head + 1] for name in ("k", "v")}
    return q[:, head * group : (head + 1) * group].contiguous(), replace(cache, **pools)


def check_scaled(kernel, dtype, kind, device="cpu", **shape):
    """Compare a cache with scales, head by head, with the same codes in 16 bits."""
    scales = ((0.3, 1.7), (0.7, 0.011))
    q, narrow, wide = pair(kernel, dtype, kind, scales=scales, device=device, **shape)
    found = ops.decode(q, narrow, kernel=kernel, keys_per_split=128, scale=0.1)
    fp32 = NumericPolicy(**{**vars(SPECS[kernel].policies[0]), "out": "fp32"})
    for head in range(2):
        q_head, cache = of_head(q, wide, head)
        scale_log2 = float(np.float32(0.1 * LOG2_E) * np.float32(scales[0][head]))
        how = {"tile": found.plan.tile, "keys_per_split": 128, "scale": scale_log2 / LOG2_E}
        plain = ops.decode(q_head, cache, kernel=with_tile(kernel, found), policy=fp32, **how)
        heads = slice(head * q_head.shape[1], (head + 1) * q_head.shape[1])
        expected = (plain.out * torch.tensor(scales[1][head], device=device)).to(q.dtype)
        assert torch.equal(bits(found.out[:, heads]), bits(expected))
        assert torch.equal(bits(found.lse2[:, heads]), bits(plain.lse2))


def with_tile(kernel, step):
    """Return the kernel whose only tile is that of a step."""
    numbers = map(int, step.plan.tile.split("x"))
    tile = type(SPECS[kernel].tiles(SPECS[kernel].shape(head_dim=64), SPECS[kernel].policies[0])[0])
    return SPECS[kernel].with_tile(tile(*numbers))


def check_bits(kernel, dtype, kind, device="cpu", variant=None, **shape):
    """Compare a cache whose scales are powers of two with the same numbers in 16 bits."""
    q, narrow, wide = pair(kernel, dtype, kind, device=device, **shape)
    for keys in (None, 128):
        how = {"keys_per_split": keys, **(variant or {})}
        found = ops.decode(q, narrow, kernel=kernel, **how)
        kept = found.plan.keys_per_split
        how |= {"keys_per_split": kept, "tile": found.plan.tile}
        assert_same(found, ops.decode(q, wide, kernel=with_tile(kernel, found), **how))
        assert found.out.isfinite().all()
    return found


@pytest.mark.few_of_each("kernel", 2)
@pytest.mark.parametrize(("kernel", "dtype", "kind"), EVERY)
@pytest.mark.parametrize(("head_dim", "group"), [(128, 4), (64, 16), (256, 3)])
def test_the_bits_of_16_bits(kernel, dtype, kind, head_dim, group):
    shape = {"head_dim": head_dim, "group": group, "page_size": 3, "layout": "hnd"}
    check_bits(kernel, dtype, kind, **shape)


def check_named(device="cpu"):
    """Compare with the default of 16 bits, whose steps a caller names for 8 bits."""
    q, narrow, wide = pair("decode_mma_n8", "bf16", "e4m3", device=device, head_dim=128)
    how = {"kernel": "decode_mma_n8", "keys_per_split": 128}
    first, found = ops.decode(q, narrow, **how), ops.decode(q, narrow, tile="4x16x3x4", **how)
    assert first.plan.tile == "4x32x2x4"
    assert not torch.equal(bits(first.out), bits(found.out))
    assert_same(found, ops.decode(q, wide, **how))


def test_a_caller_names_the_steps_of_16_bits():
    check_named()


@pytest.mark.few_of_each("kernel", 1)
@pytest.mark.parametrize(("kernel", "dtype", "kind"), EVERY)
def test_scales_of_each_head(kernel, dtype, kind):
    check_scaled(kernel, dtype, kind)


@pytest.mark.parametrize("kernel", KERNELS)
def test_variants(kernel):
    sinks = torch.linspace(-1, 2, 8)
    check_bits(kernel, "fp16", "e4m3", variant={**VARIANT, "sinks": sinks, "alibi": sinks / 8})


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_soft_cap_caps_the_scaled_scores(kernel):
    q, narrow, wide = pair(kernel, "fp16", "e4m3", scales=((0.5, 0.5), (1.0, 1.0)))
    found = ops.decode(q, narrow, kernel=kernel, soft_cap=2.0, scale=0.5)
    how = {"soft_cap": 2.0, "scale": 0.25, "keys_per_split": found.plan.keys_per_split}
    assert_same(found, ops.decode(q, wide, kernel=with_tile(kernel, found), **how))


def check_blocks(kernel, dtype, kind, blocks, device="cpu", checks=False, **shape):
    """Compare scales of blocks of keys with their numbers: in bits, or the errors in float64."""
    q, narrow, _ = pair(kernel, dtype, kind, device=device, page_size=6, **shape)
    size = (2, len(narrow.k), *blocks)
    drawn = 2 * torch.randn(size, generator=torch.Generator().manual_seed(2))
    powers, others = torch.exp2(drawn.round()).to(device), torch.exp2(drawn).to(device)
    narrow = replace(narrow, k_scale=powers[0], v_scale=powers[1])
    wide = PagedKV(*(x.to(q.dtype) for x in narrow.values()), narrow.page_table, narrow.kv_len)
    for variant in ({}, VARIANT):
        found = ops.decode(q, narrow, kernel=kernel, keys_per_split=128, checks=checks, **variant)
        how = {"keys_per_split": 128, "tile": found.plan.tile, **variant}
        assert_same(found, ops.decode(q, wide, kernel=with_tile(kernel, found), **how))
    narrow = replace(narrow, k_scale=others[0], v_scale=others[1])
    found = ops.decode(q, narrow, kernel=kernel, scale=0.05)
    work = Decode(LENGTHS, q.shape[1], 2, q.shape[2], 6, dtype)
    judge = judge_of("decode", DecodeInputs(work, q, narrow, 0.05))
    judged = judge(found.outputs(), SPECS[kernel].policies[0])
    assert judged.passed, judged.reason
    return found


@pytest.mark.few_of_each("kernel", 2)
@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize(("kernel", "dtype", "kind"), OF_BLOCKS)
@pytest.mark.parametrize(("head_dim", "group"), [(64, 4), (128, 16)])
def test_scales_of_blocks_of_keys(kernel, dtype, kind, blocks, head_dim, group):
    checks = head_dim == 64
    check_blocks(kernel, dtype, kind, blocks, checks=checks, head_dim=head_dim, group=group)


@pytest.mark.parametrize("kernel", [*KERNELS, "triton_decode"])
@pytest.mark.parametrize("keys", [1, 4, 16])
def test_the_bounds_of_scales_of_blocks_of_keys(kernel, keys):
    for policy in SPECS[kernel].policies[:2]:
        work = Decode((0, 130, 5), 8, 2, 64, 16, "bf16", kv_dtype="e4m3", keys_per_scale=keys)
        inputs = decode_inputs(work, Normal(3, "cpu"))
        step = ops.decode(*inputs.arguments, scale=inputs.scale, kernel=kernel, policy=policy)
        judged = judge_of("decode", inputs)(step.outputs(), policy)
        assert judged.passed, judged.reason
    blocks = {1: 130 + 5, 4: 33 + 2, 16: 9 + 1}[keys]
    assert work.scale_bytes == 2 * 2 * 4 * blocks  # K and V, 2 heads, fp32


def check_codes(kernel, dtype, kind, device="cpu"):
    """Every code as a value and as a key of a request of one key, where nothing is rounded."""
    codes = torch.arange(256, dtype=torch.uint8, device=device).view(KV_DTYPES[kind])
    ones = torch.ones(2, device=device)
    table = torch.arange(256, dtype=torch.int32, device=device)[:, None]
    k, v = torch.zeros(2, 256, 1, 2, 128, device=device).to(KV_DTYPES[kind])
    v.view(torch.uint8)[:] = codes.view(torch.uint8).view(1, 1, 2, 128)
    k.view(torch.uint8)[:, 0, :, 77] = codes.view(torch.uint8)[:, None]
    cache = QuantizedKV(k, v, table, torch.ones_like(table[:, 0]), ones, ones)
    q = torch.zeros(256, 8, 128, dtype=DTYPES[dtype], device=device)
    q[:, :, 77] = 1
    values, finite = codes.float(), codes.float().isfinite()
    out = ops.decode(q, replace(cache, k=torch.zeros_like(k.float()).to(k)), kernel=kernel).out[0]
    assert torch.equal(
        out[::4].flatten().float().nan_to_num(7e7, 8e7, 9e7), values.nan_to_num(7e7, 8e7, 9e7)
    )
    found = ops.decode(q, cache, kernel=kernel, scale=1 / LOG2_E)
    assert torch.equal(found.lse2[finite, 0], values[finite])
    assert found.out[values.isnan()].isnan().all()


@pytest.mark.few_of_each("kernel", 1)
@pytest.mark.parametrize(("kernel", "dtype", "kind"), EVERY)
def test_every_code(kernel, dtype, kind):
    check_codes(kernel, dtype, kind)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_bounds_of_the_scaled_numbers(kernel):
    work = Decode((0, 300, 5, 129), 8, 2, 64, 16, "bf16", kv_dtype="e4m3")
    inputs = decode_inputs(work, Normal(3, "cpu"))
    step = ops.decode(*inputs.arguments, scale=inputs.scale, kernel=kernel)
    judged = judge_of("decode", inputs)(step.outputs(), SPECS[kernel].policies[0])
    assert judged.passed, judged.reason
    truth = ops.decode(*inputs.arguments, scale=inputs.scale, kernel="reference").out
    assert metrics_close(step.out, truth)


def metrics_close(out, truth) -> bool:
    """Return whether outputs of magnitude 1 agree as bf16 allows: 2^-8 of the largest."""
    return bool((out.double() - truth.double()).abs().max() <= 2**-8 * truth.abs().max())


def test_bytes_are_those_of_the_cache():
    wide = Decode.uniform(3, 100, q_heads=8, kv_heads=2)
    narrow = replace(wide, kv_dtype="e4m3")
    assert 2 * narrow.kv_bytes == wide.kv_bytes
    assert narrow.bytes == wide.bytes - narrow.kv_bytes + 2 * 2 * 4
    assert narrow.label == f"{wide.label}, e4m3 cache"


def test_what_is_refused():
    q, cache, wide = pair(KERNELS[0], "fp16", "e4m3")
    with pytest.raises(ValueError, match=re.escape("k_scale is torch.float32 (1,), allowed")):
        replace(cache, k_scale=torch.ones(1))
    for shape in ((len(cache.k), 5, 2), (len(cache.k), 0, 2), (7, 1, 2), (len(cache.k), 1, 4)):
        words = f"k_scale is torch.float32 {shape}, allowed: torch.float32 (), (2,), ("
        with pytest.raises(ValueError, match=re.escape(words)):
            replace(cache, k_scale=torch.ones(shape))
    of_pages = torch.ones(len(cache.k), 1, 2)
    with pytest.raises(ValueError, match=re.escape("v_scale is (2,), strides (1,), allowed: (")):
        replace(cache, k_scale=of_pages)
    with pytest.raises(
        ValueError, match="with scales of blocks of keys, allowed for decode_mma: b"
    ):
        ops.decode(q, replace(cache, k_scale=of_pages, v_scale=of_pages), kernel="decode_mma")
    with pytest.raises(ValueError, match="keys_per_scale = 5, allowed: None, or a divisor of 16"):
        Decode((5,), 8, 2, 64, kv_dtype="e4m3", keys_per_scale=5)
    with pytest.raises(ValueError, match=re.escape("v.dtype = torch.float8_e5m2, allowed")):
        replace(cache, v=wide.v.to(torch.float8_e5m2))
    with pytest.raises(ValueError, match=re.escape("q.dtype = torch.float32, allowed: torch.flo")):
        ops.decode(q.float(), cache)
    ends = torch.arange(len(LENGTHS) + 1, dtype=torch.int32)
    with pytest.raises(ValueError, match="QuantizedKV, allowed"):
        ops.prefill(q, cache, ends)
    with pytest.raises(ValueError, match="allowed: torch.float16, torch.bfloat16"):
        ops.append(cache, q.float(), q, ends)
    with pytest.raises(ValueError, match="QuantizedKV, allowed"):
        ops.with_kvcache(q, cache, q[:, :2], q[:, :2], ends)
    with pytest.raises(ValueError, match="kv_dtype = 'fp8', allowed: None, e4m3, e5m2"):
        Decode((5,), 8, 2, 64, kv_dtype="fp8")
    assert math.isfinite(ops.decode(q, cache).lse2[1:].sum())
