"""Right outputs of every CUDA kernel's CPU build, over input families, for the verdict's tests."""

from dataclasses import replace

import torch

from labkernels.numerics.verdict.verdict import decide
from tests.kernels.contract import NAMES
from tests.kernels.decode.cases import Case, decode_case
from tests.kernels.prefill.cases import PrefillCase, prefill_case

FAMILIES = ("normal", "peaky", "sink", "outlier", "mean-shifted")
SHAPES = (((0, 1, 17, 200), 4, None), ((1000,), 4, 256), ((129, 700), 1, 128), ((16, 33, 5), 7, 64))


def family_case(family: str, kv_lens, *, group: int, dtype: str, seed: int) -> Case:
    """Return a fresh case of one family, whose tensors may be changed."""
    case = decode_case.__wrapped__(kv_lens, group=group, dtype=dtype, seed=seed)
    q, k, v = case.q, case.cache.k, case.cache.v
    _change(family, q, v, seed)
    if family == "sink":
        for b, length in enumerate(kv_lens):
            if length:
                page = int(case.cache.page_table[b, 0])
                _sink(q[b], k[page, 0], v[page, 0])
    return case


def prefill_family_case(family: str, q_lens, kv_lens, *, seed: int, **how) -> PrefillCase:
    """Return a fresh case of one family with ragged keys."""
    case = prefill_case.__wrapped__(q_lens, kv_lens, seed=seed, **how)
    _change(family, case.q, case.kv.v, seed)
    if family == "sink":
        ends_q, ends_k = (x.tolist() for x in (case.cu_seqlens_q, case.kv.cu_seqlens))
        for b, length in enumerate(kv_lens):
            if length and q_lens[b]:
                _sink(case.q[ends_q[b + 1] - 1], case.kv.k[ends_k[b]], case.kv.v[ends_k[b]])
    return case


def _change(family: str, q, v, seed: int) -> None:
    if family == "peaky":
        q.mul_(6)
    elif family == "outlier":
        generator = torch.Generator().manual_seed(seed)
        v.mul_(torch.where(torch.rand(v.shape, generator=generator) < 0.002, 30, 1).to(v.dtype))
    elif family == "mean-shifted":
        v.add_(1)


def _sink(q, k, v) -> None:
    """Set a token's keys to twice the mean query of each group, and scale its values by 0.1."""
    k.copy_(2 * q.float().view(len(k), -1, q.shape[-1]).mean(1))
    v.mul_(0.1)


def judged(case: Case | PrefillCase, out, spec, policy, *, lse2=None):
    """Return the verdict on a kernel's output, given its policy without the denominator."""
    told = replace(policy.of(NAMES[case.q.dtype]), denominator=None, accumulate="tensor_core")
    return decide(
        case.problem(),
        out.double().numpy(),
        policy=told,
        lse2=None if lse2 is None else lse2.double().numpy(),
    )
