"""A Triton kernel that computes Q K^T alone."""

import triton
import triton.language as tl


@triton.jit
def scores(q, k, s, QUERIES: tl.constexpr, KEYS: tl.constexpr, D: tl.constexpr):
    """Compute the scores of one tile per program. Shapes: q [., QUERIES, D], k [., KEYS, D]."""
    i_tile = tl.program_id(0)
    o_query, o_key, o_dim = tl.arange(0, QUERIES), tl.arange(0, KEYS), tl.arange(0, D)
    b_q = tl.load(q + i_tile * QUERIES * D + o_query[:, None] * D + o_dim[None, :])
    b_k = tl.load(k + i_tile * KEYS * D + o_key[:, None] * D + o_dim[None, :])
    b_s = tl.dot(b_q, tl.trans(b_k))
    tl.store(s + i_tile * QUERIES * KEYS + o_query[:, None] * KEYS + o_key[None, :], b_s)
