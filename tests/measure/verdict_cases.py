"""Right outputs of every CUDA kernel's CPU build, over input families, for the verdict's tests."""

import torch

from labkernels.numerics.rounds import Rounds
from labkernels.numerics.verdict import judge
from tests.kernels.cases import Case, decode_case
from tests.kernels.contract import NAMES, way_of

FAMILIES = ("normal", "peaky", "sink", "outlier", "mean-shifted")
SHAPES = (((0, 1, 17, 200), 4, None), ((1000,), 4, 256), ((129, 700), 1, 128), ((16, 33, 5), 7, 64))


def family_case(family: str, kv_lens, *, group: int, dtype: str, seed: int) -> Case:
    """A fresh case, whose tensors may be changed, of one family."""
    case = decode_case.__wrapped__(kv_lens, group=group, dtype=dtype, seed=seed)
    q, k, v = case.q, case.cache.k, case.cache.v
    if family == "peaky":
        q.mul_(6)
    elif family == "outlier":
        generator = torch.Generator().manual_seed(seed)
        v.mul_(torch.where(torch.rand(v.shape, generator=generator) < 0.002, 30, 1).to(v.dtype))
    elif family == "mean-shifted":
        v.add_(1)
    elif family == "sink":
        for b, length in enumerate(kv_lens):
            if length:
                page = int(case.cache.page_table[b, 0])
                mean = q[b].float().view(k.shape[2], -1, q.shape[-1]).mean(1)
                k[page, 0] = (2 * mean).to(k.dtype)
                v[page, 0] *= 0.1
    return case


def judged(case: Case, out, spec, policy, *, lse2=None):
    """The verdict on a kernel's output, told how the kernel rounds but not its denominator."""
    known = way_of(spec, policy, NAMES[case.q.dtype])
    return judge(
        case.problem(),
        out.double().numpy(),
        rounds=Rounds(known.p_format, known.out_format, None, known.exp2),
        lse2=None if lse2 is None else lse2.double().numpy(),
    )
