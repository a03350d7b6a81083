"""What a variant of attention changes in Triton kernels, as in lab/attention/variant.cuh.

An argument that is None is compiled away: a kernel without variants has the code of a plain one.
"""

import triton
import triton.language as tl

from labkernels import units
from labkernels.cuda.triton_online_softmax import LOWEST_SCORE

LOG2_E = tl.constexpr(units.LOG2_E)


@triton.jit
def tanh_of(x):
    """Return tanh x within 3e-7, by the formula of tanh_of in variant.cuh."""
    e = tl.exp2(tl.abs(x) * (-2.0 * LOG2_E))
    r = tl.fma(e, 0.152245019, -0.532857568)
    r = tl.fma(r, e, 0.865893547)
    r = tl.fma(r, e, -0.984834969)
    r = tl.fma(r, e, 0.999702646)
    r = tl.fma(r, tl.fma(-(1.0 + e), r, 1.0), r)
    y = (1.0 - e) * r
    return tl.where(x < 0.0, -y, y)


@triton.jit
def shaped(b_s, key, b_place, b_slope, soft_cap_log2, scale_of_cap, scale_log2):
    """Return products q k as scores in log2 units, after the cap and the slopes."""
    if soft_cap_log2 is not None:
        b_s = soft_cap_log2 * tanh_of(b_s * scale_of_cap)
    else:
        b_s = b_s * scale_log2
    if b_slope is not None:
        distance = (key[None, :] - b_place[:, None]).to(tl.float32)
        b_s = tl.fma(b_slope[:, None], distance, b_s)
    return b_s


@triton.jit
def slopes(alibi, head, m_row):
    """Return the slope of each row in log2 units, or None."""
    b_slope = alibi
    if alibi is not None:
        b_slope = tl.load(alibi + head, mask=m_row, other=0.0) * LOG2_E
    return b_slope


@triton.jit
def begin_with_sinks(b_m, b_l, sinks, head, m_row, i_split):
    """Return m and l of rows whose first split begins with their sinks."""
    if sinks is not None:
        b_sink = tl.load(sinks + head, mask=m_row & (i_split == 0), other=float("-inf")) * LOG2_E
        b_m = tl.maximum(b_sink, LOWEST_SCORE)
        b_l = tl.exp2(b_sink - b_m)
    return b_m, b_l
