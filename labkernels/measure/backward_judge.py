"""The verdict on gradients, from some heads of the first request and the last."""

from dataclasses import dataclass

import numpy as np

from labkernels.measure.accuracy import Chain
from labkernels.measure.backward_cases import BackwardCase
from labkernels.numerics.gradients import Given, gradient_bounds, gradients
from labkernels.numerics.oracle import attention
from labkernels.numerics.problem import Problem
from labkernels.numerics.rounds import Rounds

GRADIENTS = ("dq", "dk", "dv")
# Query heads times queries times keys that are judged of a request, where more than one head fits.
JUDGED_SCORES = 2**24


@dataclass(frozen=True)
class GradientErrors:
    """Errors of one gradient in the judged heads, [query or KV head]; worst error over its bound.

    heads: which they are. rmse is a head's, over the judged requests.
    """

    heads: tuple[int, ...]
    rmse: tuple[float, ...]
    max_abs: float
    bound_ratio: float

    @property
    def passed(self) -> bool:
        """Whether every judged element kept its bound; NaN does not."""
        return self.bound_ratio <= 1.0


@dataclass(frozen=True, eq=False)
class _Sample:
    """Some heads of one request: slices of its rows and keys, and its problem in float64."""

    rows: slice
    keys: slice
    kv_heads: tuple[int, ...]
    q_heads: tuple[int, ...]
    problem: Problem


class BackwardJudge:
    """Judges a case's gradients.

    A call takes dq, dk and dv, the output of the forward pass that they belong to, its lse2 (None:
    the exact one) and the chain by which they were computed; it gives the errors of each.
    """

    def __init__(self, case: BackwardCase) -> None:
        self._case = case
        requests = _requests(case)
        longest = max(1, *(_scores(case, request) for request in requests))
        judged = max(1, min(case.workload.kv_heads, JUDGED_SCORES // longest))
        self._samples = [_sample(case, request, judged) for request in requests]

    def __call__(self, found, out, lse2, chain: Chain) -> dict[str, GradientErrors]:
        dtype = self._case.workload.dtype
        rounds = Rounds(dtype, dtype, exp2=chain.exp2)
        errors, ratios = {name: [] for name in GRADIENTS}, {name: [] for name in GRADIENTS}
        for sample in self._samples:
            given = self._given(sample, out, lse2)
            exact, allowed = gradients(given), gradient_bounds(given, rounds)
            for name, tensor, truth, bound in zip(GRADIENTS, found, exact, allowed, strict=True):
                off = _part(sample, name, tensor).double() - truth
                errors[name].append(off)
                ratios[name].append(_worst(off, bound))
        return {
            name: _errors(
                self._samples[-1].q_heads if name == "dq" else self._samples[-1].kv_heads,
                errors[name],
                # Of what is not judged, this much is asked: all was written.
                [*ratios[name], 0.0 if bool(tensor.isfinite().all()) else np.nan],
            )
            for name, tensor in zip(GRADIENTS, found, strict=True)
        }

    def _given(self, sample: _Sample, out, lse2) -> Given:
        dout = _part(sample, "dq", self._case.dout).double()
        exact_lse2 = attention(sample.problem)[1] if lse2 is None else None
        lse2 = exact_lse2 if lse2 is None else _part(sample, "dq", lse2).double()
        return Given(sample.problem, dout, _part(sample, "dq", out).double(), lse2)


def _requests(case: BackwardCase) -> list[int]:
    """The first request and the last; the last alone where one is long enough."""
    last = case.workload.batch - 1
    return [last] if _scores(case, last) > JUDGED_SCORES else sorted({0, last})


def _scores(case: BackwardCase, request: int) -> int:
    """Scores of a request's query heads that share a KV head."""
    work = case.workload
    return work.group * work.q_lens[request] * work.kv_lens[request]


def _sample(case: BackwardCase, request: int, judged: int) -> _Sample:
    """So many KV heads of a request, spread over all."""
    work, forward = case.workload, case.forward
    q_ends, k_ends = (np.concatenate([[0], np.cumsum(n)]) for n in (work.q_lens, work.kv_lens))
    rows, keys = (slice(int(e[request]), int(e[request + 1])) for e in (q_ends, k_ends))
    group = work.group
    kv_heads = tuple(int(h) for h in np.unique(np.linspace(0, work.kv_heads - 1, judged).round()))
    q_heads = tuple(h * group + i for h in kv_heads for i in range(group))
    problem = Problem.packed(
        _wide(forward.q[rows][:, list(q_heads)]),
        *(_wide(x[keys][:, list(kv_heads)]) for x in (forward.kv.k, forward.kv.v)),
        np.array([0, keys.stop - keys.start]),
        scale=forward.scale,
        cu_seqlens_q=np.array([0, rows.stop - rows.start]),
        causal=work.causal,
    )
    return _Sample(rows, keys, kv_heads, q_heads, problem)


def _part(sample: _Sample, name: str, tensor):
    """What a sample has of a tensor that lies as a gradient does."""
    of_query = name == "dq"
    tokens = tensor[sample.rows if of_query else sample.keys]
    return tokens[:, list(sample.q_heads if of_query else sample.kv_heads)]


def _wide(tensor):
    return tensor.double().contiguous()


def _worst(error, bound) -> float:
    """The largest error over its bound, where no error is 0 whatever is allowed."""
    import torch

    if error.numel() == 0:
        return 0.0
    return float(torch.where(error == 0, 0.0, error.abs() / bound).max())


def _errors(heads: tuple[int, ...], errors: list, ratios: list[float]) -> GradientErrors:
    import torch

    every = torch.cat(errors)
    if every.numel() == 0:
        return GradientErrors(heads, (0.0,) * len(heads), 0.0, float(np.max(ratios)))
    rmse = every.square().mean(dim=(0, 2)).sqrt()
    return GradientErrors(
        heads, tuple(rmse.tolist()), float(every.abs().max()), float(np.max(ratios))
    )
