"""How far a right decode kernel can be from float64, element by element: an upper bound.

Symbols: p_j softmax probabilities, o = sum p_j v_j, A = sum p_j |v_j|, u unit roundoffs. Kernels
covered: online softmax over steps of at least 16 keys, any order of keys and dims, any partition
into warps and splits, fp32 accumulators, fp16 or bf16 inputs.
"""

from dataclasses import dataclass

import numpy as np

from labkernels import formats
from labkernels.numerics import online_softmax, oracle, tensor_core
from labkernels.numerics.choice import check_choice

P_FORMATS = ("fp32", "fp16", "bf16", "bf16x2")
DENOMINATORS = ("unrounded", "rounded")
# relative error of one exp2, its last rounding included; mufu: 2 ulp from the correctly rounded
EXP2_ERROR = {"mufu": 2.0**-22 + 2.0**-24, "poly3": 1.03e-4, "poly5": 3.0e-7}

_U32 = 2.0**-24
_SMALLEST_STEP = 16  # keys between two moves of the running maximum
_WARPS = 8
# exp2's scale, its product, its argument and the telescoping rescales, in roundings of the largest
# |score|: 3 * 2 for a scale made of two rounded factors, 1, 2 and 2
_ARGUMENT_ROUNDINGS = 12
_LARGEST_EXPONENT_ERROR = 100.0  # expm1 of more would only overflow
_NO_BOUND = 1e100  # not inf: inf * 0 is NaN, which would say something else


@dataclass(frozen=True)
class _Sums:
    """What the bound of one request needs. Shapes: rows [Hkv, G], vectors [Hkv, G, Dv]."""

    o: np.ndarray
    lse2: np.ndarray
    weight_error: np.ndarray  # sum p_j eps_j
    a: np.ndarray  # sum p_j |v_j|
    a_error: np.ndarray  # sum p_j eps_j |v_j|
    v: np.ndarray  # sum |v_j|
    largest_score: np.ndarray


def decode_bound(
    q,
    k_pool,
    v_pool,
    page_table,
    kv_lens,
    *,
    scale: float,
    p_format: str,
    out_format: str,
    splits: int = 1,
    tensor_cores: bool,
    exp2: str = "mufu",
    denominator: str = "unrounded",
    arch: str = "sm_90",
) -> np.ndarray:
    """Largest |out - o| that rounding alone can cause; NaN where the inputs are not finite.

    Shapes: as oracle.decode_float64 -> [B, Hq, Dv] float64. A row without keys gives 0.
    Error: never exceeded by a right kernel; 8 to 50 times the largest error seen with P in 16 bits,
    1000 times with fp32 throughout, whose chains are taken at their worst.
    Source: first-order terms of block-FMA and softmax analyses, made rigorous here.
    """
    chain = _Chain(p_format, splits, tensor_cores, exp2, denominator, arch)
    target = formats.named(out_format)
    oracle.check_decode(q, k_pool, v_pool, page_table, kv_lens)
    bound = np.zeros((*q.shape[:2], v_pool.shape[-1]))
    for b, kv_len in enumerate(int(n) for n in kv_lens):
        if kv_len == 0:
            continue
        sums = _request_sums(q, k_pool, v_pool, page_table, kv_lens, b, scale, chain)
        internal = _output_bound(sums, kv_len, chain)
        stored = np.abs(sums.o) + internal
        rounding = target.unit_roundoff * stored + target.smallest_subnormal / 2
        bound[b] = (internal + rounding).reshape(bound.shape[1:])
    return bound


def decode_lse2_bound(
    q,
    k_pool,
    v_pool,
    page_table,
    kv_lens,
    *,
    scale: float,
    p_format: str,
    splits: int = 1,
    tensor_cores: bool,
    exp2: str = "mufu",
    denominator: str = "unrounded",
    arch: str = "sm_90",
) -> np.ndarray:
    """Largest |lse2 error| that rounding alone can cause, in log2 units.

    Shapes: as oracle.decode_float64 -> [B, Hq] float64. A row without keys gives 0.
    """
    chain = _Chain(p_format, splits, tensor_cores, exp2, denominator, arch)
    oracle.check_decode(q, k_pool, v_pool, page_table, kv_lens)
    bound = np.zeros(q.shape[:2])
    for b, kv_len in enumerate(int(n) for n in kv_lens):
        if kv_len == 0:
            continue
        sums = _request_sums(q, k_pool, v_pool, page_table, kv_lens, b, scale, chain)
        relative = (1 + _room(sums.weight_error)) * (1 + _room(chain.sum_error(kv_len))) - 1
        log2_error = 4 * 2.0**-23 * (1 + np.log2(kv_len))
        last = 2 * _U32 * (np.abs(sums.lse2) + oracle.LOG2_E * sums.largest_score)
        bound[b] = (oracle.LOG2_E * relative + log2_error + last).reshape(bound.shape[1:])
    return bound


@dataclass(frozen=True)
class _Chain:
    """The roundings that a key's contribution passes through, by the kernel's policy."""

    p_format: str
    splits: int
    tensor_cores: bool
    exp2: str
    denominator: str
    arch: str

    def __post_init__(self):
        check_choice("p_format", self.p_format, P_FORMATS)
        check_choice("exp2", self.exp2, EXP2_ERROR)
        check_choice("denominator", self.denominator, DENOMINATORS)
        with_bf16 = [arch for arch, units in tensor_core.UNITS.items() if "bf16" in units]
        check_choice("arch", self.arch, with_bf16)
        if self.splits < 1:
            raise ValueError(f"splits = {self.splits}, allowed: 1 or more")

    @property
    def p_error(self) -> float:
        """Unit roundoff of P; hi + lo in bf16 keeps the error of the low part alone."""
        if self.p_format == "bf16x2":
            return formats.named("bf16").unit_roundoff ** 2
        return formats.named(self.p_format).unit_roundoff

    @property
    def p_underflow(self) -> float:
        """Absolute error of a P that is subnormal, or that exp2 flushed to zero."""
        return 2.0**-25 if self.p_format == "fp16" else 2.0**-125

    def rescales(self, kv_len: int) -> int:
        """Factors exp2(m_old - m_new) on one key: moves of the maximum, warp and split merges."""
        return -(-kv_len // _SMALLEST_STEP) + 2

    def joins(self, kv_len: int) -> int:
        """Roundings of an accumulator outside its chain: rescales, merges, the division."""
        return self.rescales(kv_len) + _WARPS + self.splits + 4

    def product_error(self, n_terms: int) -> float:
        """Relative error of a sum of n products, to sum |a_k b_k|, on this kernel's units."""
        if not self.tensor_cores:
            return (n_terms + 1) * _U32
        unit = tensor_core.unit_of(self.arch, "bf16")  # fp16 has the same
        step = 2.0**-23 + (unit.chunk + 1) * 2.0**-unit.fraction_bits
        return -(-n_terms // unit.chunk) * step

    def value_error(self, kv_len: int) -> float:
        """Relative error of sum P v after P: its chain of products and the joins."""
        parts = 2 if self.p_format == "bf16x2" else 1
        return parts * self.product_error(kv_len) + self.joins(kv_len) * _U32

    def sum_error(self, kv_len: int) -> float:
        """Relative error of the denominator, given the computed P."""
        error = (kv_len + self.joins(kv_len)) * _U32
        if self.denominator == "rounded":
            error += self.p_error + kv_len * self.p_underflow
        return error


def _request_sums(q, k_pool, v_pool, page_table, kv_lens, b, scale, chain: _Chain) -> _Sums:
    """Three passes over the keys of request b: o and lse2, the largest score, the weighted sums."""
    kv_len = int(kv_lens[b])
    state = oracle.request_state(q, k_pool, v_pool, page_table, kv_lens, b, scale=scale)
    o, lse2 = online_softmax.finalize(state)
    grouped = oracle.grouped_queries(q[b], k_pool.shape[2]) * scale
    largest = np.zeros(lse2.shape)
    for k, _ in oracle.key_blocks(k_pool, v_pool, page_table[b], kv_len):
        largest = np.maximum(largest, np.abs(grouped @ np.swapaxes(k, 1, 2)).max(axis=-1))
    common = (chain.rescales(kv_len) + 1) * (EXP2_ERROR[chain.exp2] + _U32)
    common = common + _ARGUMENT_ROUNDINGS * _U32 * largest
    per_product = chain.product_error(q.shape[-1])
    weight_error, a, a_error, v_sum = 0.0, 0.0, 0.0, 0.0
    for k, v in oracle.key_blocks(k_pool, v_pool, page_table[b], kv_len):
        k_t, v_abs = np.swapaxes(k, 1, 2), np.abs(v)
        p = np.exp2((grouped * oracle.LOG2_E) @ k_t - lse2[..., None])
        exponent_error = common[..., None] + per_product * (np.abs(grouped) @ np.abs(k_t))
        p_eps = p * np.expm1(np.minimum(exponent_error, _LARGEST_EXPONENT_ERROR))
        weight_error = weight_error + p_eps.sum(axis=-1)
        a = a + p @ v_abs
        a_error = a_error + p_eps @ v_abs
        v_sum = v_sum + v_abs.sum(axis=1)
    v_sum = np.broadcast_to(v_sum[:, None, :], o.shape)
    return _Sums(o, lse2, weight_error, a, a_error, v_sum, largest)


def _output_bound(sums: _Sums, kv_len: int, chain: _Chain) -> np.ndarray:
    """|o^ - o| before the store.

    With p_j (1 + eps_j) for p_j: o^ - o = sum p_j eps_j (v_j - o) / (1 + sum p_j eps_j), exactly.
    On top, each term carries a factor 1 + theta from P's rounding, the chain, l and the division.
    """
    grown = 1 + _room(sums.weight_error)[..., None]
    weights = (sums.a_error + np.abs(sums.o) * sums.weight_error[..., None]) * grown
    factor = (1 + chain.p_error) * (1 + chain.value_error(kv_len))
    theta = factor * (1 + _room(chain.sum_error(kv_len))) - 1
    underflow = (chain.p_underflow * sums.v + 2.0**-125 * kv_len) * factor
    return weights + theta * (sums.a + sums.a_error) * grown + underflow * grown + 2.0**-45 * sums.a


def _room(error):
    """Growth of 1 / (1 - error) over 1; no bound, yet a finite number, once error reaches 1."""
    error = np.asarray(error, dtype=np.float64)
    return np.where(error >= 1, _NO_BOUND, error / np.where(error >= 1, 1.0, 1 - error))
