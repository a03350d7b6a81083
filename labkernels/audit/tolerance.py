"""Derives from rounding the absolute and relative tolerance that a test of attention may use.

A right output differs from float64 by the rounding of the store, which is at most half a spacing of
the output, and by the rounding before the store. The error model gives the standard deviation of
the latter for each element.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from labkernels import formats
from labkernels.numerics import rounding
from labkernels.numerics.arrays import namespace, to_numpy
from labkernels.numerics.emulation.tensor_core import EIGHT_BITS
from labkernels.numerics.error import bounds
from labkernels.numerics.error import sigma as error_sigma
from labkernels.numerics.error.execution import ANY_EXECUTION
from labkernels.numerics.error.quantization import Stored, mean_squares
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.truth.rows import weighted_sum
from labkernels.numerics.verdict import significance
from labkernels.policy import NumericPolicy
from labkernels.units import require_choice, require_int

DELTA = 1e-6
_SAMPLED_KEYS = 2**18  # keys of all drawn requests together: NumPy works on them for seconds
_FIRST_KEYS = (2, 3, 5, 9, 17, 33, 65)  # a causal row that sees few keys has the largest errors


@dataclass(frozen=True)
class Tolerance:
    """An atol and rtol that a right output keeps, and the numbers from which they follow.

    For a reference in float32 or float64, |out - reference| <= atol + rtol |reference| holds for
    all elements at once, except with probability delta. sigma: the largest standard deviation of
    the rounding before the store; deviations: how many sigma atol allows; bound: no right output at
    all differs by more than u |reference| + bound A, with u half a spacing of the output's format
    and A = sum p_j |v_j|. kv_dtype: the format of a cache that rounded the reference's K and V.
    """

    atol: float
    rtol: float
    delta: float
    elements: int
    sigma: float
    deviations: float
    bound: float
    policy: NumericPolicy
    kv_dtype: str | None = None

    @property
    def rtol_to_rounded(self) -> float:
        """The rtol against a reference that was itself rounded to the output's format."""
        return self.rtol + formats.named(self.policy.out).unit_roundoff

    def accepts(self, out, reference) -> bool:
        """Return whether an output keeps the tolerance; an output with a NaN does not."""
        off = np.abs(np.asarray(out, np.float64) - reference)
        return bool((off <= self.atol + self.rtol * np.abs(reference)).all())

    def summary(self) -> str:
        """Return text: the formulas with their numbers, and the pair for a test."""
        out, p = self.policy.out, self.policy.p
        u = formats.named(out).unit_roundoff
        cache = f" + what {self.kv_dtype} rounds of K and V" if self.kv_dtype else ""
        most = f"|out - o| <= u |o| + {self.bound:.3g} A,   A = sum_j p_j |v_j|"
        if self.bound >= 1:
            most = f"no bound, since P in {p} may move an output by more than A = sum_j p_j |v_j|"
        return "\n".join(
            (
                f"atol = {self.atol:.3g}, rtol = {self.rtol:.3g}   against float32 or float64",
                f"atol = {self.atol:.3g}, rtol = {self.rtol_to_rounded:.3g}   against a reference "
                f"rounded to {out}",
                f"  A right output of {self.elements:,} elements passes either, except with a "
                f"probability of {self.delta:g}.",
                "  Each element: |out - o| <= u |o| + z sigma",
                "    sigma^2 = sum_j ulp(P_j)^2 v_j^2 / (12 l^2) + the variance of the sums' own "
                f"rounding{cache}",
                f"    u = {u:.3g}, half a spacing of {out}; P in {p}; sigma <= {self.sigma:.3g} "
                f"here; z = {self.deviations:.3g}",
                f"  Every right output{' of what the cache holds' * bool(cache)}: {most}",
            )
        )


def of_problem(
    problem: Problem,
    policy: NumericPolicy,
    *,
    delta: float = DELTA,
    elements: int | None = None,
    rows: int | None = None,
    kv_dtype: str | None = None,
) -> Tolerance:
    """Derive the tolerance of given inputs.

    elements, rows: if the problem is a sample of a test, the elements of the whole test, and its
    rows for each number of keys. With rows, sigma is raised to the largest value to be expected of
    that many rows, under the assumption that the logarithms of sigma are normal. kv_dtype: e4m3 or
    e5m2, if the output is that of a cache in which each head's largest number is the format's.
    Raises: ValueError naming the argument, its value and what is allowed.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta = {delta}, allowed: a probability between 0 and 1")
    n = elements or math.prod(problem.out_shape)
    require_int("elements", n, minimum=1)
    inside, factor = _inside(problem, policy)
    if kv_dtype is not None:
        inside = np.sqrt(inside**2 + _of_cache(problem, kv_dtype).max(-1))
    sigma = float(inside.max(initial=0.0))
    if rows:
        sigma = max(
            [
                sigma,
                *(_farthest(inside[problem.n_keys == m], rows) for m in np.unique(problem.n_keys)),
            ]
        )
    deviations = -NormalDist().inv_cdf(delta / (2 * n))
    u = formats.named(policy.out).unit_roundoff
    longest = int(problem.n_keys.max(initial=1))
    shared = float(significance.chain_bias(np.array([longest]), policy)[0])
    shared += bounds.EXP2_ERROR[policy.exp2]
    smallest = formats.named(policy.out).smallest_subnormal / 2
    atol = (1 + u) * deviations * sigma + smallest
    return Tolerance(atol, u + shared, delta, n, sigma, deviations, factor, policy, kv_dtype)


def _of_cache(problem: Problem, kv_dtype: str) -> np.ndarray:
    """Return the variance of an output whose K and V a cache holds. Shapes: [total_q, Hq, Dv]."""
    require_choice("kv_dtype", kv_dtype, EIGHT_BITS)
    pools, most = {"k": problem.k_pool, "v": problem.v_pool}, formats.named(kv_dtype).max
    stored = {n: Stored(kv_dtype, abs(to_numpy(x)).max((0, 1, 3)) / most) for n, x in pools.items()}
    return np.asarray(sum(mean_squares(problem, stored).values()))


def _farthest(sigmas, rows: int) -> float:
    """Return the largest value to be expected of `rows` rows, from the values of a sample."""
    logs = np.log(sigmas[sigmas > 0])
    if rows <= logs.size or logs.size < 2:
        return 0.0
    return float(np.exp(logs.mean() + NormalDist().inv_cdf(1 - 1 / (2 * rows)) * logs.std()))


def _inside(problem: Problem, policy: NumericPolicy):
    """Return each row's largest sigma before the store, and the largest bound as a factor of A.

    The sigma is raised by its own uncertainty; it is 0 for a row of one key, whose P is exact.
    Shapes: [total_q, Hq], and a number.
    """
    found, factor = np.zeros(problem.out_shape[:2]), 0.0
    bound = to_numpy(bounds.out_bound(problem, policy))
    u = formats.named(policy.out).unit_roundoff
    for rows in problem.row_blocks():
        xp = namespace(rows.o)
        variance = error_sigma.internal_variance(rows, policy, ANY_EXECUTION)
        w1, w2, a = 0.0, 0.0, 0.0
        for block, _, p in rows.weighted_blocks():
            w = error_sigma.p_spacing(p, policy.p) ** 2
            w1, w2 = w1 + w.sum(-1), w2 + (w**2).sum(-1)
            a = a + weighted_sum(p, xp.abs(block.v))
        sharing = xp.where(w2 > 0, w1**2 / xp.where(w2 > 0, w2, 1.0), 1.0)
        several = rows.n_keys > 1
        most = xp.amax(xp.sqrt(variance), -1) * np.sqrt(significance.slack(to_numpy(sharing)))
        rows.put(found, to_numpy(most * several))
        given = rows.of(bound)
        a = to_numpy(a / rows.softmax.divisor)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(a > 0, (given - u * abs(to_numpy(rows.o))) / a, 0.0)
        factor = max(factor, float(ratio.max(initial=0.0)))
    return found, factor


def tolerance(
    batch: int,
    keys: int,
    *,
    queries: int = 1,
    q_heads: int = 32,
    kv_heads: int = 8,
    head_dim: int = 128,
    dtype: str = "bf16",
    causal: bool = False,
    policy: NumericPolicy | None = None,
    delta: float = DELTA,
    mean: float = 0.0,
    seed: int = 0,
    kv_dtype: str | None = None,
) -> Tolerance:
    """Derive the tolerance of a test whose q, k and v are standard normal, v plus a mean.

    Only some requests and KV heads are drawn, since the others have the same distribution.
    Raises: ValueError naming the argument, its value and what is allowed.
    """
    for name in ("batch", "keys", "queries", "kv_heads", "head_dim"):
        require_int(name, locals()[name], minimum=1)
    if q_heads < 1 or q_heads % kv_heads:
        raise ValueError(f"q_heads = {q_heads}, allowed: multiples of {kv_heads} KV heads")
    if causal and queries > keys:
        raise ValueError(f"queries = {queries}, allowed: up to keys = {keys} where causal")
    policy = policy or NumericPolicy(denominator=None)
    problem = sample(
        batch, keys, queries, q_heads // kv_heads, kv_heads, head_dim, dtype, causal, mean, seed
    )
    rows, elements = batch * q_heads, batch * q_heads * queries * head_dim
    rows = rows if causal else rows * queries
    how = {"delta": delta, "elements": elements, "rows": rows, "kv_dtype": kv_dtype}
    return of_problem(problem, policy.of(dtype), **how)


def sample(
    batch, keys, queries, group, kv_heads, head_dim, dtype, causal=False, mean=0.0, seed=0
) -> Problem:
    """Draw a part of a test's inputs: some requests, one KV head and some queries of each.

    In a causal prefill these are the queries that see few keys, and the last query.
    """
    requests = max(1, min(batch * kv_heads, _SAMPLED_KEYS // keys, 8))
    rng = np.random.default_rng(seed)
    seen = [keys] * min(queries, 4)
    if causal:
        seen = sorted({n for n in (*_FIRST_KEYS, keys) if keys - queries < n <= keys})
    total = requests * len(seen)
    q = rounding.round_to(rng.standard_normal((total, group, head_dim)), dtype)
    k, v = (
        rounding.round_to(rng.standard_normal((requests, keys, 1, head_dim)) + m, dtype)
        for m in (0.0, mean)
    )
    pages = np.repeat(np.arange(requests), len(seen))[:, None]
    return Problem(q, k, v, pages, np.array(seen * requests), head_dim**-0.5)
