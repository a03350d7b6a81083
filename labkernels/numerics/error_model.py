"""What error to expect of a decode kernel: a standard deviation per element, by its policy."""

import numpy as np

from labkernels import formats
from labkernels.numerics import bounds, online_softmax, oracle, rounding
from labkernels.numerics.choice import check_choice

# spread of the relative error of one exp2 over a binade, about its mean, which cancels in o
EXP2_SPREAD = {"mufu": 2.7e-8, "poly3": 4.6e-5, "poly5": 6.3e-8}

# rounding a bf16 residue, uniform in half an ulp of the high part, to 8 bits again
_LOW_PART = 0.5 * 2.0**-8 * (4 / 7) ** 0.5


def decode_sigma(
    q,
    k_pool,
    v_pool,
    page_table,
    kv_lens,
    *,
    scale: float,
    p_format: str,
    out_format: str,
    exp2: str = "mufu",
    denominator: str = "unrounded",
) -> np.ndarray:
    """Expected standard deviation of out - o: variances of rounding P, exp2 and the store, summed.

    Shapes: as oracle.decode_float64 -> [B, Hq, Dv] float64; metrics.rms(sigma, by="head") is the
    RMSE to expect per head. Error: 15 %. With exp2="poly3" and P in fp32 the error seen is up to
    2 times this, as the rescales share their error among keys; that is not counted here.
    Source: uniform rounding errors, ulp^2 / 12 each; the rest as a floor of 2^-22 sum p |v|.
    """
    check_choice("p_format", p_format, bounds.P_FORMATS)
    check_choice("exp2", exp2, EXP2_SPREAD)
    check_choice("denominator", denominator, bounds.DENOMINATORS)
    formats.named(out_format)
    oracle.check_decode(q, k_pool, v_pool, page_table, kv_lens)
    sigma = np.zeros((*q.shape[:2], v_pool.shape[-1]))
    for b, kv_len in enumerate(int(n) for n in kv_lens):
        if kv_len == 0:
            continue
        state = oracle.request_state(q, k_pool, v_pool, page_table, kv_lens, b, scale=scale)
        o, _ = online_softmax.finalize(state)
        blocks = oracle.key_blocks(k_pool, v_pool, page_table[b], kv_len)
        q_log2 = oracle.grouped_queries(q[b], k_pool.shape[2]) * (scale * oracle.LOG2_E)
        variance = _internal_variance(state, o, q_log2, blocks, p_format, exp2, denominator)
        variance += rounding.quantum(o, out_format) ** 2 / 12
        sigma[b] = np.sqrt(variance).reshape(sigma.shape[1:])
    return sigma


def _internal_variance(state, o, q_log2, blocks, p_format, exp2, denominator) -> np.ndarray:
    """Variance before the store. Shapes: [Hkv, group, Dv]."""
    from_p, from_exp2, magnitude = (np.zeros(o.shape) for _ in range(3))
    about = o if denominator == "rounded" else np.zeros(o.shape)
    for k, v in blocks:
        p = np.exp2(q_log2 @ np.swapaxes(k, 1, 2) - state.m[..., None])
        from_p += _weighted_squares(p_spacing(p, p_format) ** 2 / 12, v, about)
        from_exp2 += _weighted_squares((EXP2_SPREAD[exp2] * p) ** 2, v, o)
        magnitude += p @ np.abs(v)
    divisor = state.l[..., None]
    return (from_p + from_exp2) / divisor**2 + (2.0**-22 * magnitude / divisor) ** 2


def _weighted_squares(weights: np.ndarray, v: np.ndarray, about: np.ndarray) -> np.ndarray:
    """Sum of weights_j (v_j - about)^2, without forming the differences."""
    total = weights.sum(axis=-1)[..., None]
    squares = weights @ v**2 - 2 * about * (weights @ v) + about**2 * total
    return np.maximum(squares, 0.0)


def p_spacing(p: np.ndarray, p_format: str) -> np.ndarray:
    """Spacing of P's format at p; 0 where p is exact, at the row's maximum (1) and at 0."""
    if p_format == "bf16x2":
        spacing = rounding.quantum(p, "bf16") * _LOW_PART
    else:
        spacing = rounding.quantum(p, p_format)
    return np.where((p == 1) | (p == 0), 0.0, spacing)
