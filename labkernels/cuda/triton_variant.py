"""What a variant of attention changes in Triton kernels, as in lab/attention/variant.cuh.

An argument that is None is compiled away: a kernel without variants has the code of a plain one.
"""

import triton
import triton.language as tl

from labkernels import units
from labkernels.cuda.triton_online_softmax import LOWEST_SCORE

LOG2_E = tl.constexpr(units.LOG2_E)


@triton.jit
def capped(b_s, soft_cap_log2, exponent_of_cap):
    """Return cap tanh(scale / cap * score), in log2 units, by the formula of variant.cuh."""
    e = tl.exp2(tl.abs(b_s) * exponent_of_cap)
    u = tl.fma(e, 0.30449003, -1.06571519)
    u = tl.fma(u, e, 1.73178709)
    u = tl.fma(u, e, -1.96966994)
    u = tl.fma(u, e, 1.99940526)
    u = tl.fma(u, tl.fma(tl.fma(e, -0.5, -0.5), u, 1.0), u)
    size = tl.fma(u, soft_cap_log2, -soft_cap_log2)
    return tl.where(b_s < 0.0, -size, size)


@triton.jit
def shaped(b_s, key, b_place, b_slope, p_bias, reach, soft_cap_log2, exponent_of_cap, scale_log2):
    """Return products q k as scores in log2 units, after the cap, the slopes and the biases."""
    if soft_cap_log2 is not None:
        b_s = capped(b_s, soft_cap_log2, exponent_of_cap)
    else:
        b_s = b_s * scale_log2
    if b_slope is not None:
        distance = (key[None, :] - b_place[:, None]).to(tl.float32)
        b_s = tl.fma(b_slope[:, None], distance, b_s)
    if p_bias is not None:
        nearest = tl.maximum(tl.minimum(key[None, :] - b_place[:, None], reach), -reach)
        b_s += tl.load(p_bias[:, None] + nearest) * LOG2_E
    return b_s


@triton.jit
def slopes(alibi, head, m_row):
    """Return the slope of each row in log2 units, or None."""
    b_slope = alibi
    if alibi is not None:
        b_slope = tl.load(alibi + head, mask=m_row, other=0.0) * LOG2_E
    return b_slope


@triton.jit
def nearest_biases(bias, reach, head, m_row):
    """Return where each row's bias of distance 0 lies, or None."""
    p_bias = bias
    if bias is not None:
        p_bias = bias + tl.where(m_row, head, 0) * (2 * reach + 1) + reach
    return p_bias


@triton.jit
def first_bits(mask_begins, i_request, cu_seqlens_q, token, o_token, m_row, n_keys):
    """Return where each row's bits of a mask begin, or None; rows past the end have those of 0."""
    b_bit = mask_begins
    if mask_begins is not None:
        query = (token + o_token - tl.load(cu_seqlens_q + i_request)).to(tl.int64)
        b_bit = tl.load(mask_begins + i_request) + tl.where(m_row, query, 0) * n_keys
    return b_bit


@triton.jit
def seen(key, limit, b_place, window_left, mask, b_bit):
    """Return which keys each row sees: those below its limit, in its window, with a set bit."""
    m_seen = key[None, :] < limit[:, None]
    if window_left is not None:
        m_seen = m_seen & (key[None, :] >= b_place[:, None] - window_left)
    if mask is not None:
        bit = b_bit[:, None] + key[None, :]
        byte = tl.load(mask + (bit >> 3), mask=m_seen, other=0).to(tl.int32)
        m_seen = m_seen & (((byte >> (bit & 7).to(tl.int32)) & 1) != 0)
    return m_seen


@triton.jit
def begin_with_sinks(b_m, b_l, sinks, head, m_row, i_split):
    """Return m and l of rows whose first split begins with their sinks."""
    if sinks is not None:
        b_sink = tl.load(sinks + head, mask=m_row & (i_split == 0), other=float("-inf")) * LOG2_E
        b_m = tl.maximum(b_sink, LOWEST_SCORE)
        b_l = tl.exp2(b_sink - b_m)
    return b_m, b_l
