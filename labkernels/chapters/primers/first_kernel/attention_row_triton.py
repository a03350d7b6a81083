"""The same row of attention in Triton: a program handles whole KV tiles."""

import triton
import triton.language as tl


# [lab: row]
@triton.jit
def attend(q, k, v, out, keys, KEYS: tl.constexpr, D: tl.constexpr):
    """Write the output [D] of one query [D] over `keys` keys, which KEYS divides."""
    o_key, o_dim = tl.arange(0, KEYS), tl.arange(0, D)
    b_q = tl.load(q + o_dim)
    m, l = tl.full([1], -1e30, tl.float32), tl.zeros([1], tl.float32)
    b_o = tl.zeros([D], tl.float32)
    for first in range(0, keys, KEYS):
        at = (first + o_key)[:, None] * D + o_dim[None, :]
        b_k, b_v = tl.load(k + at), tl.load(v + at)
        b_s = tl.sum(b_k * b_q[None, :], axis=1)
        m_new = tl.maximum(m, tl.max(b_s, axis=0))
        rescale, b_p = tl.exp2(m - m_new), tl.exp2(b_s - m_new)
        l = rescale * l + tl.sum(b_p, axis=0)
        b_o = rescale * b_o + tl.sum(b_p[:, None] * b_v, axis=0)
        m = m_new
    tl.store(out + o_dim, b_o / l)


# [/lab: row]
