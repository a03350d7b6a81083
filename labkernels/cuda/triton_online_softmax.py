"""The online softmax of Triton kernels: names and meaning as in lab/attention/online_softmax.cuh.

b_m, b_l: [rows], the maximum in log2 units and the sum of exp2(s - m); b_o: [rows, channels], not
yet divided by l. No key yet: m = LOWEST_SCORE, l = 0, o = 0.
"""

import triton
import triton.language as tl

# The maximum before the first key. No finite score lies below it, and a masked score of -inf gives
# exp2(-inf - lowest) = 0, where exp2(-inf + inf) would be NaN.
LOWEST_SCORE = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def no_keys(ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """Return m, l and O of rows before their first key; all fp32."""
    b_m = tl.full([ROWS], LOWEST_SCORE, tl.float32)
    b_l = tl.zeros([ROWS], tl.float32)
    return b_m, b_l, tl.zeros([ROWS, CHANNELS], tl.float32)


@triton.jit
def in_head(m_rows, CHANNELS: tl.constexpr, WIDTH: tl.constexpr):
    """Return which values of rows [rows, WIDTH] are there: heads may have fewer channels."""
    m_values = m_rows[:, None]
    if CHANNELS < WIDTH:
        m_values = m_values & (tl.arange(0, WIDTH) < CHANNELS)[None, :]
    return m_values


@triton.jit
def update(b_s, b_m, b_l, scale_log2):
    """Return P of scores [rows, keys], the rows' new m and l, and the factor for O."""
    b_m_new = tl.maximum(b_m, tl.max(b_s, axis=1) * scale_log2)
    rescale = tl.exp2(b_m - b_m_new)
    b_p = tl.exp2(b_s * scale_log2 - b_m_new[:, None])
    return b_p, b_m_new, b_l * rescale + tl.sum(b_p, axis=1), rescale


@triton.jit
def rescale_rows(b_o, rescale):
    """Return O, rescaled after the maxima have moved."""
    return b_o * rescale[:, None]


@triton.jit
def merge(m, l, part_m, part_l):
    """Return m and l merged with a part of the keys; the factors for O and for the part's O."""
    m_new = tl.maximum(m, part_m)
    rescale, weight = tl.exp2(m - m_new), tl.exp2(part_m - m_new)
    return m_new, l * rescale + part_l * weight, rescale, weight


@triton.jit
def finalize(m, l):
    """Return 1 / l and the log-sum-exp in base 2; 0 and -inf for a row without keys."""
    empty = l == 0.0
    sums = tl.where(empty, 1.0, l)
    return tl.where(empty, 0.0, 1.0 / sums), tl.where(empty, float("-inf"), m + tl.log2(sums))
