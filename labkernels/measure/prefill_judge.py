"""The verdict on a prefill's output, from a sample of its rows."""

import math

import numpy as np

from labkernels.measure import accuracy
from labkernels.measure.accuracy import Chain, Errors
from labkernels.measure.prefill_cases import PrefillCase

SAMPLED = (0, 1, 63, 64, 127, 0.5, -2, -1)  # query tokens of the last request; 0.5: in the middle
PAGE = 16  # keys at most: a ragged K and V are sampled as if they lay in pages


class PrefillJudge:
    """Judges a case's outputs by some query tokens, each a decode over the keys that it sees.

    A call takes out, lse2 (or None) and the chain by which they were computed.
    """

    def __init__(self, case: PrefillCase) -> None:
        work = case.workload
        n, keys = work.q_lens[-1], work.kv_lens[-1]
        tokens = sorted({int(t * n) if isinstance(t, float) else t % n for t in SAMPLED})
        first = sum(work.q_lens[:-1])
        self._case, self._rows = case, [first + t for t in tokens]
        self._caches = [_seen(case, keys - n + t + 1 if work.causal else keys) for t in tokens]
        self._references = [
            accuracy.decode_reference(case.q[row, None], cache, scale=case.scale)
            for row, cache in zip(self._rows, self._caches, strict=True)
        ]
        self._bounds: dict[Chain, list[accuracy.Bound]] = {}

    def __call__(self, out, lse2, chain: Chain) -> Errors:
        bounds = self._bounds_of(chain)
        each = [
            accuracy.judge(
                out[row, None],
                None if lse2 is None else lse2[row, None],
                reference,
                bound,
            )
            for row, reference, bound in zip(self._rows, self._references, bounds, strict=True)
        ]
        # Of the rows that no bound is computed for, this much is asked: all were written.
        written = bool(np.isfinite(out.float().sum().item()))
        ratios = [errors.bound_ratio for errors in each] + ([] if written else [np.nan])
        return Errors(
            rmse=float(np.sqrt(np.mean([errors.rmse**2 for errors in each]))),
            bias=float(np.mean([errors.bias for errors in each])),
            max_abs=float(np.max([errors.max_abs for errors in each])),
            lse2_max_abs=None
            if lse2 is None
            else float(np.max([errors.lse2_max_abs for errors in each])),
            bound_ratio=float(np.max(ratios)),
            rmse_ratio=float(np.max([errors.rmse_ratio for errors in each])),
        )

    def _bounds_of(self, chain: Chain) -> list[accuracy.Bound]:
        if chain not in self._bounds:
            case = self._case
            self._bounds[chain] = [
                accuracy.decode_bound(
                    case.q[row, None], cache, chain, scale=case.scale, dtype=case.workload.dtype
                )
                for row, cache in zip(self._rows, self._caches, strict=True)
            ]
        return self._bounds[chain]


def _seen(case: PrefillCase, keys: int):
    """The first keys of the last request as the cache of a batch of one."""
    import torch

    from labkernels.kernels.paged_kv import PagedKV

    work, kv = case.workload, case.kv
    length = torch.tensor([keys], dtype=torch.int32, device=case.q.device)
    if work.page_size is not None:
        return PagedKV(kv.k, kv.v, kv.page_table[-1:], length)
    begin = sum(work.kv_lens[:-1])
    length_kv = work.kv_lens[-1]
    page = math.gcd(length_kv, PAGE)
    k, v = (x[begin : begin + length_kv].unflatten(0, (-1, page)) for x in (kv.k, kv.v))
    pages = torch.arange(len(k), dtype=torch.int32, device=case.q.device)
    return PagedKV(k, v, pages[None], length)
