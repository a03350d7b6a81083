"""The verdict on an MLA decode's output, from all tokens and heads of two of its requests."""

import numpy as np
import torch

from labkernels.measure import accuracy
from labkernels.measure.accuracy import Bound, Chain, Errors, Reference
from labkernels.measure.mla_cases import MlaCase
from labkernels.numerics import bounds, error_model, metrics, oracle
from labkernels.numerics.arrays import to_numpy
from labkernels.numerics.problem import Problem
from labkernels.numerics.rounds import Rounds


class MlaJudge:
    """Judges a case's outputs by its first request and its last, in float64 where the case lies.

    A call takes out, lse2 (or None) and the chain by which they were computed.
    """

    def __init__(self, case: MlaCase) -> None:
        n, requests = case.workload.q_len, sorted({0, case.workload.batch - 1})
        self._dtype = case.workload.dtype
        self._rows = [request * n + token for request in requests for token in range(n)]
        q = case.q[self._rows].double()
        parts = [case.cache.of_request(request) for request in requests]
        k, v = (torch.cat(each).double() for each in zip(*parts, strict=True))
        ends = np.cumsum([0, *(len(part[0]) for part in parts)])
        self.problem = Problem.packed(
            *_of_numerics(q, k, v),
            ends,
            scale=case.scale,
            cu_seqlens_q=np.arange(len(requests) + 1) * n,
            causal=case.workload.causal,
        )
        self._reference = Reference(*map(to_numpy, oracle.attention(self.problem)))
        self._bounds: dict[Chain, Bound] = {}

    def __call__(self, out, lse2, chain: Chain) -> Errors:
        rows = None if lse2 is None else lse2[self._rows]
        errors = accuracy.judge(out[self._rows], rows, self._reference, self._bound(chain))
        # Of the rows that no bound is computed for, this much is asked: all were written.
        written = bool(np.isfinite(out.float().sum().item()))
        bound_ratio = errors.bound_ratio if written else float("nan")
        return Errors(**{**errors.__dict__, "bound_ratio": bound_ratio})

    def _bound(self, chain: Chain) -> Bound:
        if chain not in self._bounds:
            rounds = Rounds(
                p_format=self._dtype if chain.tensor_cores else "fp32",
                out_format=self._dtype,
                denominator=chain.denominator,
                exp2=chain.exp2,
                tensor_cores=chain.tensor_cores,
            )
            o, lse2 = map(to_numpy, bounds.both_bounds(self.problem, rounds))
            sigma = to_numpy(error_model.sigma(self.problem, rounds))
            self._bounds[chain] = Bound(o, lse2, metrics.rms(sigma, by="sample_and_head"))
        return self._bounds[chain]


def _of_numerics(*tensors):
    """Tensors of a GPU as they are, those of a CPU as NumPy's, which is faster there."""
    return [x if x.is_cuda else x.numpy() for x in tensors]
