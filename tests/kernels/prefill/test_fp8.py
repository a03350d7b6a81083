"""A prefill of codes in e4m3: places are exact, and errors stay within a bound for each element."""

import math
import re
from dataclasses import replace

import pytest
import torch

from labkernels.kernels.prefill.fp8 import CODES, RaggedCodes, prefill_fp8
from labkernels.numerics.emulation.tensor_core import unit_of
from tests.kernels.contract import SPECS
from tests.kernels.decode.cases import bits, sums

KERNEL = SPECS["prefill_wgmma_fp8"]
PROMOTED, CHAIN, WIDE = KERNEL.policies[:3]
Q_LENS, KV_LENS = (1, 37, 0, 70), (130, 37, 20, 0)
UNIT = unit_of("sm_90", "e4m3")
# of a product of 32 terms, relative to the sum of their magnitudes: each is cut, and the sum
STEP = (UNIT.chunk + 1) * 2.0**-UNIT.fraction_bits + 2.0**-UNIT.out_fraction_bits
P_ROUNDOFF = {"input": 2.0**-4, "fp16": 2.0**-11}
P_UNDERFLOW = 2.0**-18  # of the greatest P: half of e4m3's least number, where that P is 2^8


def drawn(q_lens=Q_LENS, kv_lens=KV_LENS, *, group=3, kv_heads=2, seed=0, device="cpu"):
    """Return random codes, and a scale of each request and KV head."""
    generator = torch.Generator().manual_seed(seed)
    heads = ((sum(q_lens), group * kv_heads), *[(sum(kv_lens), kv_heads)] * 2)
    q, k, v = (torch.randn(*n, 128, generator=generator).to(CODES).to(device) for n in heads)
    shape = (3, len(q_lens), kv_heads)
    scales = (torch.rand(shape, generator=generator) + 0.5).to(device)
    names = ("q_descale", "k_descale", "v_descale")
    arguments = (q, RaggedCodes(k, v, sums(kv_lens, device)), sums(q_lens, device))
    return arguments, dict(zip(names, scales, strict=True))


def check_request(found, q, k, v, causal, policy, splits):
    """Compare [n, group, 128] rows of one request and KV head with float64, within the bound."""
    n, keys = len(q), len(k)
    if keys == 0:
        assert not found[0].any()
        assert bool((found[1] == -math.inf).all())
        return found[0].double(), found[0].double()
    s = torch.einsum("qgd,kd->qgk", q, k) / math.sqrt(128)
    sizes = torch.einsum("qgd,kd->qgk", q.abs(), k.abs()) / math.sqrt(128)
    if causal:
        seen = torch.arange(keys) <= keys - n + torch.arange(n)[:, None]
        s = s.masked_fill(~seen[:, None], -math.inf)
    p, lse2 = torch.softmax(s, -1).nan_to_num(0), torch.logsumexp(s, -1) / math.log(2)
    o = p @ v
    # exponents err by the chain of 4 products, and by some fp32 roundings of the largest score
    grown = torch.expm1(4 * STEP * sizes + 2.0**-20 * (1 + sizes.amax(-1, keepdim=True)))
    eps = (p * grown).sum(-1, keepdim=True)
    # products over keys: of a block and then fp32 sums, or all in one chain
    chain = keys if policy.accumulate == "tensor_core" else 128
    of_chain = STEP * math.ceil(chain / 32) if policy.p == "input" else keys * 2.0**-20
    relative = (1 + P_ROUNDOFF[policy.p]) * (1 + of_chain + (keys + splits) * 2.0**-22) - 1
    most = p.amax(-1, keepdim=True)
    wide = (
        (p * grown) @ v.abs()
        + o.abs() * eps
        + relative * ((p * (1 + grown)) @ v.abs())
        + P_UNDERFLOW * most * v.abs().sum(0)
    ) / (1 - eps)
    bound = wide + 2.0**-8 * (o.abs() + wide) + 1e-30
    out, found_lse2 = (x.double() for x in found)
    assert bool(((out - o).abs() <= bound).all())
    any_key = lse2.isfinite()
    off = (found_lse2 - lse2)[any_key].abs()
    assert bool((off <= (eps / (1 - eps) / math.log(2))[..., 0][any_key] + 1e-4).all())
    assert bool((found_lse2[~any_key] == -math.inf).all())
    assert not out[~any_key].any()
    return out - o, o


def check_bounds(arguments, scales, policy, *, causal=False, mean=True, **how):
    """Run and compare every request and KV head, and their mean too; return the step."""
    step = prefill_fp8(*arguments, causal=causal, policy=policy, **scales, **how)
    (q, kv, ends), errors, truths = arguments, [], []
    q_at, k_at = ends.tolist(), kv.cu_seqlens.tolist()
    group = q.shape[1] // kv.kv_heads
    for r in range(len(q_at) - 1):
        for h in range(kv.kv_heads):
            a, b, c, d = *q_at[r : r + 2], *k_at[r : r + 2]
            heads = slice(h * group, (h + 1) * group)
            numbers = (q[a:b, heads], kv.k[c:d, h], kv.v[c:d, h])
            scaled = [
                x.cpu().double() * s[r, h].cpu().double()
                for x, s in zip(numbers, scales.values(), strict=True)
            ]
            found = (step.out[a:b, heads].cpu(), step.lse2[a:b, heads].cpu())
            error, o = check_request(found, *scaled, causal, policy, step.plan.splits)
            errors.append(error.flatten())
            truths.append(o.flatten())
    if mean:  # a rounding to e4m3 errs by 2^-5 in the mean, of each key; a sum over keys by less
        relative = torch.cat(errors).norm() / torch.cat(truths).norm()
        assert relative <= (2.0**-5 if policy.p == "input" else 2.0**-8)
    return step


@pytest.mark.parametrize("policy", KERNEL.policies[:3], ids=lambda p: f"{p.p}-{p.accumulate}")
def test_bounds_with_checks_for_races(policy):
    check_bounds(*drawn(), policy, causal=policy != CHAIN, checks=True)


def test_splits_and_a_second_block():
    drawn_of = drawn((40, 150), (700, 333), group=1, kv_heads=1)
    check_bounds(*drawn_of, PROMOTED, causal=True, splits=3, dtype=torch.float16)


def test_every_key_and_channel_has_its_place():
    """Each query sees one key alone, whose value must come out bit for bit."""
    order = torch.randperm(128, generator=torch.Generator().manual_seed(5))
    one_hot = 240 * torch.eye(128)[:, None]
    v = torch.randn(128, 1, 128).to(CODES)
    ends = torch.tensor([0, 128], dtype=torch.int32)
    kv = RaggedCodes(one_hot.to(CODES), v, ends)
    for policy in (PROMOTED, WIDE):
        out = prefill_fp8(one_hot[order].to(CODES), kv, ends, policy=policy).out
        assert torch.equal(out, v[order].bfloat16())


def test_a_neighbours_nan_stays_there_and_scales_are_factors():
    (q, kv, ends), _ = drawn((5, 5), (37, 30), group=2)
    plain = prefill_fp8(q, kv, ends)
    for x in (kv.k, kv.v):
        x.view(torch.uint8)[37:] = 0x7F
    halves = {f"{x}_descale": torch.tensor(0.5).expand(2, 2) for x in "kv"}
    scaled = prefill_fp8(q, kv, ends, **halves, scale=2 / math.sqrt(128))
    assert torch.equal(bits(scaled.out[:5] * 2), bits(plain.out[:5]))
    assert torch.equal(bits(scaled.lse2[:5]), bits(plain.lse2[:5]))
    assert scaled.out[5:].isnan().all()


def test_what_is_refused():
    (q, kv, ends), _ = drawn((5,), (37,))
    with pytest.raises(ValueError, match=re.escape("q.dtype = torch.float16, allowed: torch.flo")):
        prefill_fp8(q.half(), kv, ends)
    with pytest.raises(ValueError, match=re.escape("k_descale is torch.float32 (2,), allowed")):
        prefill_fp8(q, kv, ends, k_descale=torch.ones(2))
    with pytest.raises(ValueError, match=re.escape("k.dtype = torch.float16, allowed: torch.flo")):
        replace(kv, k=kv.k.half())
