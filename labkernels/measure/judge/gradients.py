"""The verdict on gradients, from some heads of the first request and the last."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from labkernels.kernels.backward.inputs import BackwardInputs
from labkernels.kernels.random_inputs import variant_tensors
from labkernels.measure.judge.elements import Elements, over
from labkernels.numerics.arrays import as_float64
from labkernels.numerics.error.gradient_bounds import gradient_bounds, sink_bound
from labkernels.numerics.truth.gradients import Given, gradients, sink_gradient
from labkernels.numerics.truth.oracle import attention
from labkernels.numerics.truth.problem import Problem
from labkernels.policy import NumericPolicy

GRADIENTS = ("dq", "dk", "dv")
# Up to this many scores (query heads x queries x keys) of a request are judged, but at least those
# of one KV head.
JUDGED_SCORES = 2**24


@dataclass(frozen=True)
class HeadErrors:
    """Errors of one gradient in the judged heads: query heads for dq, KV heads for dk and dv.

    heads: which heads were judged. rmse: of each of them, over the judged requests. bound_ratio:
    the largest error over its bound.
    """

    heads: tuple[int, ...]
    rmse: tuple[float, ...]
    max_abs: float
    bound_ratio: float


class GradientErrors(dict[str, HeadErrors]):
    """Errors of dq, dk and dv, and of dsinks, by name."""

    @property
    def passed(self) -> bool:
        """Whether every judged element kept its bound; NaN does not."""
        return all(errors.bound_ratio <= 1.0 for errors in self.values())

    @property
    def reason(self) -> str:
        """The worst error of each gradient over its bound, in words."""
        worst = ", ".join(f"{name} {errors.bound_ratio:.3g}" for name, errors in self.items())
        return f"worst errors over their bounds: {worst}, allowed: 1"


@dataclass(frozen=True, eq=False)
class _Sample:
    """Some heads of one request: slices of its rows and keys, and its problem in float64."""

    rows: slice
    keys: slice
    kv_heads: tuple[int, ...]
    q_heads: tuple[int, ...]
    problem: Problem


class GradientJudge:
    """Judges gradients of some inputs; if their forward pass has no lse2, the exact one is used."""

    def __init__(self, inputs: BackwardInputs) -> None:
        self._inputs = inputs
        requests = _requests(inputs)
        longest = max(1, *(_scores(inputs, request) for request in requests))
        judged = max(1, min(inputs.workload.kv_heads, JUDGED_SCORES // longest))
        self._samples = [_sample(inputs, request, judged) for request in requests]

    def __call__(self, outputs, policy: NumericPolicy, forward=None) -> GradientErrors:
        """Return the errors of dq, dk and dv, and of dsinks where the outputs have them.

        forward: the forward pass that the gradients belong to, by default that of the inputs. The
        bound for P and dS in 16 bits also holds for kernels that keep them in fp32.
        """
        errors, ratios = {name: [] for name in GRADIENTS}, {name: [] for name in GRADIENTS}
        for _, name, _, off, bound in self._held(outputs, policy, forward):
            errors[name].append(off)
            ratios[name].append(_worst(off, bound))
        last = self._samples[-1]
        found = GradientErrors(
            {
                name: _errors(
                    last.q_heads if name == "dq" else last.kv_heads,
                    errors[name],
                    # Elements that are not judged must at least have been written.
                    [*ratios[name], 0.0 if bool(tensor.isfinite().all()) else np.nan],
                )
                for name, tensor in zip(GRADIENTS, outputs[: len(GRADIENTS)], strict=True)
            }
        )
        if self._inputs.variant.sinks and len(outputs) > len(GRADIENTS):
            found["dsinks"] = self._of_sinks(outputs[-1], forward)
        return found

    def _of_sinks(self, dsinks, forward) -> HeadErrors:
        """Return the errors of dsinks, which sums over all rows and needs no scores."""
        out, lse2 = forward or (self._inputs.out, self._inputs.lse2)
        lse2 = self._inputs.lse2 if lse2 is None else lse2
        sinks = self._inputs.forward.options["sinks"]
        given = [x.double() for x in (sinks, self._inputs.dout, out, lse2)]
        error, bound = dsinks.double() - sink_gradient(*given), sink_bound(*given)
        heads = tuple(range(len(sinks)))
        size = error.abs()
        return HeadErrors(heads, tuple(size.tolist()), float(size.max()), _worst(error, bound))

    def elements(self, outputs, policy: NumericPolicy, forward=None) -> list[Elements]:
        """Return every judged element of the gradients, a part for each request and gradient."""
        found = []
        for sample, name, truth, error, bound in self._held(outputs, policy, forward):
            place = sample.rows if name == "dq" else sample.keys
            heads = sample.q_heads if name == "dq" else sample.kv_heads
            rows = tuple(range(place.start, place.stop))
            truth, error, bound = map(as_float64, (truth, error, bound))
            found.append(Elements(name, rows, heads, truth, error, over(error, bound)))
        return found

    def _held(self, outputs, policy: NumericPolicy, forward) -> Iterator[tuple]:
        """Yield sample, name, truth, error and bound of each sample and gradient, on its device."""
        told = replace(policy, p="input").of(self._inputs.workload.dtype)
        out, lse2 = forward or (self._inputs.out, self._inputs.lse2)
        for sample in self._samples:
            given = self._given(sample, out, lse2)
            exact, allowed = gradients(given), gradient_bounds(given, told)
            every = zip(GRADIENTS, outputs[:3], exact[:3], allowed[:3], strict=True)
            for name, tensor, truth, bound in every:
                yield sample, name, truth, _part(sample, name, tensor).double() - truth, bound

    def _given(self, sample: _Sample, out, lse2) -> Given:
        dout = _part(sample, "dq", self._inputs.dout).double()
        exact_lse2 = attention(sample.problem)[1] if lse2 is None else None
        lse2 = exact_lse2 if lse2 is None else _part(sample, "dq", lse2).double()
        return Given(sample.problem, dout, _part(sample, "dq", out).double(), lse2)


def _requests(inputs: BackwardInputs) -> list[int]:
    """Return the first request and the last, or only the last if it exceeds JUDGED_SCORES."""
    last = inputs.workload.batch - 1
    return [last] if _scores(inputs, last) > JUDGED_SCORES else sorted({0, last})


def _scores(inputs: BackwardInputs, request: int) -> int:
    """Return how many scores a request has for the query heads that share one KV head."""
    work = inputs.workload
    return work.group * work.q_lens[request] * work.kv_lens[request]


def _sample(inputs: BackwardInputs, request: int, judged: int) -> _Sample:
    """Return a sample of a request: `judged` KV heads, spread evenly, and their query heads."""
    work, forward = inputs.workload, inputs.forward
    q_ends, k_ends = (np.concatenate([[0], np.cumsum(n)]) for n in (work.q_lens, work.kv_lens))
    rows, keys = (slice(int(e[request]), int(e[request + 1])) for e in (q_ends, k_ends))
    group = work.group
    kv_heads = tuple(int(h) for h in np.unique(np.linspace(0, work.kv_heads - 1, judged).round()))
    q_heads = tuple(h * group + i for h in kv_heads for i in range(group))
    variant = variant_tensors(forward.options)
    problem = Problem.packed(
        _wide(forward.q[rows][:, list(q_heads)]),
        *(_wide(x[keys][:, list(kv_heads)]) for x in (forward.kv.k, forward.kv.v)),
        np.array([0, keys.stop - keys.start]),
        scale=forward.scale,
        cu_seqlens_q=np.array([0, rows.stop - rows.start]),
        causal=work.causal,
        variant=variant and variant.part(np.arange(rows.start, rows.stop), np.array(q_heads), 0),
    )
    return _Sample(rows, keys, kv_heads, q_heads, problem)


def _part(sample: _Sample, name: str, tensor):
    """Return the sample's part of a tensor with the layout of the named gradient."""
    of_query = name == "dq"
    tokens = tensor[sample.rows if of_query else sample.keys]
    return tokens[:, list(sample.q_heads if of_query else sample.kv_heads)]


def _wide(tensor):
    return tensor.double().contiguous()


def _worst(error, bound) -> float:
    """Return the largest error over its bound; the ratio is 0 where the error is 0."""
    if error.numel() == 0:
        return 0.0
    return float(torch.where(error == 0, 0.0, error.abs() / bound).max())


def _errors(heads: tuple[int, ...], errors: list, ratios: list[float]) -> HeadErrors:
    every = torch.cat(errors)
    if every.numel() == 0:
        return HeadErrors(heads, (0.0,) * len(heads), 0.0, float(np.max(ratios)))
    rmse = every.square().mean(dim=(0, 2)).sqrt()
    return HeadErrors(heads, tuple(rmse.tolist()), float(every.abs().max()), float(np.max(ratios)))
