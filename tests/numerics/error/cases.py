"""Small problems for the error budget, and the schedules of the lab's kernels."""

import numpy as np

from labkernels.numerics import rounding
from labkernels.numerics.emulation.summation_order import SummationOrder
from labkernels.numerics.truth.problem import Problem
from labkernels.policy import NumericPolicy

N8 = SummationOrder(4096)
FMA = SummationOrder(4096, groups=2, sum_bits=(0, 2, 1))


def decode_problem(kv_lens, *, fmt="bf16", heads=4, kv_heads=1, head_dim=64, mean=0.0, seed=0):
    """Return a decode of standard normal q, K and V, rounded to a format; V has a mean."""
    rng = np.random.default_rng(seed)
    pages = [-(-n // 16) for n in kv_lens]
    q = rng.standard_normal((len(kv_lens), heads, head_dim))
    k, v = rng.standard_normal((2, max(1, sum(pages)), 16, kv_heads, head_dim))
    q, k, v = (rounding.round_to(x, fmt) for x in (q, k, v + mean))
    table = np.zeros((len(kv_lens), max(1, *pages)), np.int64)
    first = 0
    for b, count in enumerate(pages):
        table[b, :count] = np.arange(first, first + count)
        first += count
    return Problem(q, k, v, table, np.array(kv_lens), head_dim**-0.5)


def tensor_cores(fmt="bf16", *, out="fp32", denominator="unrounded", exp2="mufu"):
    """Return how a tensor-core kernel rounds."""
    return NumericPolicy(p=fmt, denominator=denominator, exp2=exp2, out=out)


def cuda_cores(*, out="fp32", exp2="mufu"):
    """Return how a kernel on CUDA cores rounds."""
    return NumericPolicy(p="fp32", exp2=exp2, accumulate="fma", out=out)
