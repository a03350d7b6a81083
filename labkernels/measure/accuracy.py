"""Errors of a decode output against float64, at sizes where NumPy would take minutes.

The truth of every element comes from torch in float64 on the tensors' own device; the bound that
judges it comes from numerics.bounds, for one KV head of a few requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labkernels.numerics import bounds, metrics
from labkernels.numerics.oracle import LOG2_E

# More splits than any plan uses: a bound that holds for all contenders alike.
SPLITS_ALLOWED = 256
BOUND_REQUESTS = 2


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


@dataclass(frozen=True)
class Bound:
    """Bounds on |out - o| of the checked requests and query heads, and the largest of them.

    Shapes: values [requests, heads, D].
    """

    requests: tuple[int, ...]
    heads: int
    values: np.ndarray


@dataclass(frozen=True)
class Errors:
    """Error of one output over all requests; bound_ratio is the worst error over what is allowed.

    lse2_max_abs is None where a contender gives no log-sum-exp.
    """

    rmse: float
    bias: float
    max_abs: float
    lse2_max_abs: float | None
    bound_ratio: float

    @property
    def passed(self) -> bool:
        """Whether every element kept its bound; NaN does not pass."""
        return self.bound_ratio <= 1.0


def decode_reference(q, cache, *, scale: float) -> Reference:
    """Return the float64 output of every request, computed on the tensors' device.

    Shapes: q [B, Hq, D]; cache as kernels.paged_kv.PagedKV
    """
    import torch

    batch, q_heads, head_dim = q.shape
    kv_heads = cache.k.shape[2]
    o = torch.zeros(batch, q_heads, head_dim, dtype=torch.float64)
    lse2 = torch.full((batch, q_heads), -torch.inf, dtype=torch.float64)
    for b, length in enumerate(cache.kv_len.tolist()):
        if length == 0:
            continue
        k, v = (_request_keys(pool, cache.page_table[b], length) for pool in (cache.k, cache.v))
        rows = q[b].double().view(kv_heads, q_heads // kv_heads, head_dim)
        scores_log2 = rows @ k.transpose(1, 2) * (scale * LOG2_E)
        top = scores_log2.amax(-1, keepdim=True)
        weights = torch.exp2(scores_log2 - top)
        total = weights.sum(-1, keepdim=True)
        o[b] = (weights @ v / total).view(q_heads, head_dim)
        lse2[b] = (top + torch.log2(total)).view(q_heads)
    return Reference(o.numpy(), lse2.numpy())


def decode_bound(q, cache, chain: Chain, *, scale: float, dtype: str) -> Bound:
    """Return the bounds of the query heads of the first KV head, for the first and last requests.

    Shapes: as `decode_reference`. Units: dtype names the format of the inputs and of the output.
    """
    batch = q.shape[0]
    requests = tuple(sorted({0, batch - 1}))[:BOUND_REQUESTS]
    heads = q.shape[1] // cache.k.shape[2]
    parts = [
        bounds.decode_bound(
            _numpy(q[b : b + 1, :heads]),
            *_compact_pools(cache, b),
            scale=scale,
            p_format=dtype if chain.tensor_cores else "fp32",
            out_format=dtype,
            splits=SPLITS_ALLOWED,
            tensor_cores=chain.tensor_cores,
            exp2=chain.exp2,
            denominator=chain.denominator,
        )
        for b in requests
    ]
    return Bound(requests, heads, np.concatenate(parts))


def judge(out, lse2, reference: Reference, bound: Bound) -> Errors:
    """Return the errors of an output, and its worst error over what the bound allows.

    A checked element answers to its own bound, every other one to the largest bound of its head:
    random inputs make the requests alike, and bounds stand several times above errors.
    """
    found = _numpy(out)
    error = np.abs(metrics.difference(found, reference.o))
    checked = error[list(bound.requests), : bound.heads]
    with np.errstate(divide="ignore", invalid="ignore"):
        own = np.where(checked == 0, 0.0, checked / bound.values)
    ratio = np.max([np.max(own), np.max(error) / np.max(bound.values)])
    table = metrics.error_table(found, reference.o, by="all")
    lse2_max_abs = None
    if lse2 is not None:
        lse2_error = metrics.difference(_numpy(lse2), reference.lse2)
        lse2_max_abs = float(np.max(np.abs(lse2_error)))
    return Errors(
        rmse=float(table["rmse"]),
        bias=float(table["mean_signed"]),
        max_abs=float(table["max_abs"]),
        lse2_max_abs=lse2_max_abs,
        bound_ratio=float(ratio),
    )


def sample_and_head(out, truth: np.ndarray) -> np.ndarray:
    """Return the error table of each sample and head.

    Shapes: [B, Hq], a record with the fields of metrics.COLUMNS.
    """
    return metrics.error_table(_numpy(out), truth, by="sample_and_head")


def _request_keys(pool, pages, length: int):
    """Return one request's keys or values in float64, [Hkv, length, D]."""
    count = -(-length // pool.shape[1])
    return pool[pages[:count].long()].flatten(0, 1)[:length].transpose(0, 1).double()


def _compact_pools(cache, request: int) -> Sequence[np.ndarray]:
    """Return pools, page table and length that hold one request's first KV head alone."""
    length = int(cache.kv_len[request])
    count = -(-length // cache.k.shape[1])
    pages = cache.page_table[request, :count].long()
    k, v = (_numpy(pool[pages][:, :, :1]) for pool in (cache.k, cache.v))
    return k, v, np.arange(count, dtype=np.int32)[None], np.array([length], dtype=np.int32)


def _numpy(tensor) -> np.ndarray:
    return tensor.double().cpu().numpy()
