"""Errors of a decode output against float64, at sizes where NumPy would take minutes.

The truth of every element comes from torch in float64 on the tensors' own device; the bound and
the expected RMSE that judge it come from numerics, for all of a small workload and for one KV head
of a large one.
"""

from dataclasses import dataclass

import numpy as np

from labkernels.numerics import bounds, error_model, metrics, oracle
from labkernels.numerics.arrays import to_numpy
from labkernels.numerics.problem import Problem
from labkernels.numerics.rounds import Rounds

# The worst head of a right kernel stays below 2.4 times what the error model expects; over long
# contexts a bound allows more than any output is large, and this is what notices a lost page.
RMSE_RATIO_MAX = 4.0
# Up to this many keys times KV heads, every element gets a bound of its own.
CHECK_ALL_KEYS = 2**15
# What an unchecked element may exceed the largest checked bound by: random inputs are alike.
HEADROOM = 2.0


@dataclass(frozen=True)
class Reference:
    """Float64 truth. Shapes: o [B, Hq, D], lse2 [B, Hq], base 2."""

    o: np.ndarray
    lse2: np.ndarray


@dataclass(frozen=True)
class Chain:
    """How a contender rounds, as far as its bound depends on it."""

    tensor_cores: bool
    denominator: str
    exp2: str = "mufu"


# Where a peer rounds is its own affair. The widest chain holds all that were measured: FlashInfer's
# CUDA cores, too, which keep P in fp32 but leave the fp32 bound in bf16 where they split the keys.
PEER_CHAIN = Chain(tensor_cores=True, denominator="rounded")


@dataclass(frozen=True)
class Bound:
    """Bounds on |out - o| and on lse2 for the last requests and first query heads, and the RMSE.

    Shapes: o [requests, heads, D], lse2 [requests, heads]; rmse is that to expect of each sample
    and head where all are checked, else one number for all.
    """

    o: np.ndarray
    lse2: np.ndarray
    rmse: np.ndarray


@dataclass(frozen=True)
class Errors:
    """Error of one output over all requests.

    bound_ratio is the worst error over its bound, rmse_ratio the worst head's RMSE over the
    expected one. lse2_max_abs is None where a contender gives no log-sum-exp.
    """

    rmse: float
    bias: float
    max_abs: float
    lse2_max_abs: float | None
    bound_ratio: float
    rmse_ratio: float

    @property
    def passed(self) -> bool:
        """Whether every element kept its bound and every head's RMSE is credible; NaN is not."""
        return self.bound_ratio <= 1.0 and self.rmse_ratio <= RMSE_RATIO_MAX


def decode_reference(q, cache, *, scale: float) -> Reference:
    """Return the float64 output of every request, computed on the tensors' device.

    Shapes: q [B, Hq, D]; cache as kernels.paged_kv.PagedKV
    """
    table, lengths = (x.cpu().numpy() for x in (cache.page_table, cache.kv_len))
    o, lse2 = oracle.attention(Problem(q, cache.k, cache.v, table, lengths, scale))
    return Reference(to_numpy(o), to_numpy(lse2))


def decode_bound(q, cache, chain: Chain, *, scale: float, dtype: str) -> Bound:
    """Return the bounds that a contender which rounds like `chain` must keep.

    Shapes: as `decode_reference`. Units: dtype names the format of the inputs and of the output.
    """
    rounds = Rounds(
        p_format=dtype if chain.tensor_cores else "fp32",
        out_format=dtype,
        denominator=chain.denominator,
        exp2=chain.exp2,
        tensor_cores=chain.tensor_cores,
    )
    return rounds_bound(q, cache, rounds, scale=scale)


def rounds_bound(q, cache, rounds: Rounds, *, scale: float) -> Bound:
    """Return the bounds that hold for these roundings. Shapes: as `decode_reference`."""
    problem, whole = _checked(q, cache, scale)
    o, lse2 = bounds.both_bounds(problem, rounds)
    sigma = error_model.sigma(problem, rounds)
    return Bound(o, lse2, metrics.rms(sigma, by="sample_and_head" if whole else "all"))


def judge(out, lse2, reference: Reference, bound: Bound) -> Errors:
    """Return the errors of an output, and its worst error over what the bound allows.

    A checked element answers to its own bound, any other to the largest, with some headroom.
    """
    found = as_float64(out)
    ratios = [_worst_ratio(metrics.difference(found, reference.o), bound.o)]
    table = metrics.error_table(found, reference.o, by="all")
    rmse_of_heads = metrics.error_table(found, reference.o, by="sample_and_head")["rmse"]
    lse2_max_abs = None
    if lse2 is not None:
        lse2_error = metrics.difference(as_float64(lse2), reference.lse2)
        lse2_max_abs = float(np.max(np.abs(lse2_error)))
        ratios.append(_worst_ratio(lse2_error, bound.lse2))
    return Errors(
        rmse=float(table["rmse"]),
        bias=float(table["mean_signed"]),
        max_abs=float(table["max_abs"]),
        lse2_max_abs=lse2_max_abs,
        bound_ratio=float(np.max(ratios)),
        rmse_ratio=float(np.max(_over(rmse_of_heads, bound.rmse))),
    )


def _worst_ratio(error: np.ndarray, bound: np.ndarray) -> float:
    """Return the largest error over its bound; NaN if there is one."""
    error = np.abs(error)
    requests, heads = bound.shape[:2]
    own = _over(error[-requests:, :heads], bound)
    others = _over(error, HEADROOM * np.max(bound))
    return float(np.max([np.max(own), np.max(others)]))


def _over(error: np.ndarray, allowed) -> np.ndarray:
    """Return error / allowed, where no error is 0 whatever is allowed."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(error == 0, 0.0, error / allowed)


def _checked(q, cache, scale: float) -> tuple[Problem, bool]:
    """Return the problem of the checked part, and whether that part is the whole."""
    whole = int(cache.kv_len.sum()) * cache.k.shape[2] <= CHECK_ALL_KEYS
    first, kv_heads = (0, cache.k.shape[2]) if whole else (len(q) - 1, 1)
    q_heads = kv_heads * q.shape[1] // cache.k.shape[2]
    lengths, page_size = cache.kv_len[first:].cpu().numpy(), cache.k.shape[1]
    counts = -(-lengths // page_size)
    table = np.zeros((len(lengths), max(1, *counts)), dtype=np.int32)
    used = np.arange(table.shape[1]) < counts[:, None]
    table[used] = np.arange(used.sum())
    # Row by row, the pages in use make small pools of their own.
    pages = cache.page_table[first:].cpu()[:, : table.shape[1]][used].long().to(cache.k.device)
    k, v = (as_float64(pool[pages][:, :, :kv_heads]) for pool in (cache.k, cache.v))
    return Problem(as_float64(q[first:, :q_heads]), k, v, table, lengths, scale), whole


def as_float64(tensor) -> np.ndarray:
    """Return a tensor of any device and float format as a float64 array."""
    return tensor.double().cpu().numpy()


def problem_of(q, cache, *, scale: float) -> Problem:
    """Return a decode's tensors, of any device, as NumPy's."""
    return Problem(
        *(as_float64(tensor) for tensor in (q, cache.k, cache.v)),
        cache.page_table.cpu().numpy(),
        cache.kv_len.cpu().numpy(),
        scale=scale,
    )
