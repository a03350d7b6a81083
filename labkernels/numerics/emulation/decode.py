"""A decode kernel in NumPy, step by step, in which every source of error can be switched off.

With all sources on, its output has every bit of the CUDA kernel's output.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkernels.numerics import rounding
from labkernels.numerics.arrays import Array
from labkernels.numerics.emulation import exp2, softmax_trace, tensor_core
from labkernels.numerics.emulation.softmax_trace import SoftmaxTrace, shift
from labkernels.numerics.emulation.summation_order import MMA_KEYS, SummationOrder, with_idle_lanes
from labkernels.numerics.rounding import p_parts
from labkernels.numerics.truth.problem import Problem
from labkernels.policy import NumericPolicy
from labkernels.units import LOG2_E, require_choice

SOURCES = ("scores", "exp2", "p", "denominator", "accumulation", "merge", "store")


def emulate(
    problem: Problem,
    policy: NumericPolicy,
    order: SummationOrder,
    *,
    arch: str = "sm_90",
    sources: Iterable[str] = SOURCES,
) -> np.ndarray:
    """Return the output of a decode kernel that rounds in the given sources and nowhere else.

    scores: Q K^T. exp2: the scale, the argument and the function. p: P for the tensor cores.
    denominator: the sum l, also in merges. accumulation: the sum P v and its rescales; this source
    needs p too, because tensor cores take the rounded P. merge: o in the merges of warps and
    splits. store: the division and the output.
    Shapes: [total_q, Hq, Dv] float64. Raises: ValueError for an unknown source.
    """
    on = frozenset(sources)
    for source in on:
        require_choice("sources", source, SOURCES)
    if "accumulation" in on and policy.tensor_cores and "p" not in on:
        raise ValueError("sources has 'accumulation' on tensor cores, allowed: with 'p'")
    out = np.zeros(problem.out_shape)
    for place, trace in softmax_trace.blocks(problem, order):
        place.put(out, _Kernel(trace, policy, arch, problem.scale * LOG2_E, on).run())
    return out


def errors_alone(
    problem: Problem, policy: NumericPolicy, order: SummationOrder, *, arch: str = "sm_90"
) -> np.ndarray:
    """Return the error that each source makes when it is the only one, in the order of SOURCES.

    Some sources need others: P at a maximum depends on the rounding of that maximum, tensor cores
    take rounded P, and a merge takes fp32 sums. The error of such a source is what it adds to the
    error of the others.
    Shapes: [S, total_q, Hq, Dv] float64
    """
    needed = {
        "p": ("exp2",),
        "accumulation": ("exp2", "p"),
        "merge": ("exp2", "p", "accumulation"),
    }
    how = (problem, policy, order)
    exact: tuple[str, ...] = ()
    outs = {exact: emulate(*how, arch=arch, sources=exact)}
    errors = []
    for source in SOURCES:
        base = needed.get(source, exact)
        outs[(*base, source)] = emulate(*how, arch=arch, sources=(*base, source))
        errors.append(outs[(*base, source)] - outs[base])
    return np.stack(errors)


@dataclass(frozen=True, eq=False)
class _State:
    """m, l [..., R] and o [..., R, Dv]."""

    m: np.ndarray
    l: np.ndarray
    o: np.ndarray

    def map(self, change: Callable[..., Any]) -> "_State":
        return _State(*(change(x) for x in (self.m, self.l, self.o)))


@dataclass(frozen=True, eq=False)
class _Kernel:
    trace: SoftmaxTrace
    policy: NumericPolicy
    arch: str
    scale_log2: float
    on: frozenset[str]

    def run(self) -> np.ndarray:
        order = self.trace.order
        state = self._join_lanes(*self._steps())
        warps = state.map(lambda x: x.reshape(-1, order.warps, *x.shape[1:]).swapaxes(0, 1))
        state = self._merge(warps)
        state = self._merge_splits(state) if len(state.m) > 1 else state.map(lambda x: x[0])
        out = self._fp32(state.o / state.l[..., None], "store")
        return rounding.round_to(out, self.policy.out) if "store" in self.on else out

    def _fp32(self, x: np.ndarray, source: str) -> np.ndarray:
        return x.astype(np.float32).astype(np.float64) if source in self.on else x

    def _fma(self, a: Array, b: Array | float, c: Array, source: str) -> np.ndarray:
        if len(self.on) == len(SOURCES):
            return rounding.fma_rn(a, b, c).astype(np.float64)
        return self._fp32(a * b + c, source)

    def _scores(self) -> np.ndarray:
        """Return q k, not scaled. Shapes: [R, n]."""
        q, k_t = self.trace.q, self.trace.k.T
        if "scores" not in self.on:
            return q @ k_t
        if self.policy.tensor_cores:
            fmt = self.policy.p.removesuffix("x2")
            return tensor_core.matmul(q, k_t, arch=self.arch, fmt=fmt).astype(np.float64)
        # a lane adds up some channels of a key; the lanes' sums are joined pairwise
        in_lane = self.trace.order.lane_channels
        q, k_t = with_idle_lanes(q, in_lane), with_idle_lanes(self.trace.k, in_lane).T
        dot = np.zeros((len(q), k_t.shape[1], q.shape[1] // in_lane))
        for c in range(in_lane):
            some = slice(c, None, in_lane)
            dot = rounding.fma_rn(q[:, None, some], k_t.T[None, :, some], dot).astype(np.float64)
        while dot.shape[-1] > 1:
            half = dot.shape[-1] // 2
            dot = self._fp32(dot[..., :half] + dot[..., half:], "scores")
        return dot[..., 0]

    def _steps(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return m [C, R] of each chain, l [C, R, lanes] per lane, o [C, G, R, Dv] per group."""
        trace = self.trace
        seen = trace.score_log2 > -np.inf
        scores = np.where(seen, trace.laid_out(self._scores()), -np.inf)
        n_chains, n_steps, rows, _ = scores.shape
        lanes, groups = trace.order.lanes, trace.order.groups
        m = np.full((n_chains, rows), -np.inf)
        l = np.zeros((n_chains, rows, len(lanes)))
        o = np.zeros((n_chains, groups, rows, trace.v.shape[-1]))
        for step in range(n_steps):
            m, rescale, p = self._exponentials(m, scores[:, step])
            if self.policy.denominator == "rounded":
                p = np.sum(self._parts(p), axis=0)
            parts = self._parts(p)
            l = self._fp32(l * rescale[..., None], "denominator")
            for places in lanes.T:
                l = self._fp32(l + p[..., places], "denominator")
            o = self._fp32(o * rescale[:, None, :, None], "accumulation")
            o = self._accumulate(o, parts, trace.v[:, step])
        return m, l, o

    def _parts(self, p: np.ndarray) -> list[np.ndarray]:
        """Return the parts of P, as the second product takes them."""
        rounded = "p" in self.on and self.policy.p != "fp32"
        return p_parts(p, self.policy.p) if rounded else [p]

    def _exp2(self, x: np.ndarray) -> np.ndarray:
        if "exp2" not in self.on:
            return np.exp2(x)
        function = exp2.EXP2[self.policy.exp2]
        return function(x.astype(np.float32)).astype(np.float64)

    def _exponentials(self, m: Array, scores: Array) -> tuple[Array, Array, Array]:
        """Return the new maximum, the rescale factor and P of one step."""
        exact = "exp2" not in self.on
        scale = self.scale_log2 if exact else float(np.float32(self.scale_log2))
        new = np.maximum(m, self._fp32(scores.max(axis=-1) * scale, "exp2"))
        x = self._fma(scores, scale, -shift(new)[..., None], "exp2")
        return new, self._exp2(self._fp32(m - shift(new), "exp2")), self._exp2(x)

    def _accumulate(self, o: Array, parts: list[Array], v: Array) -> np.ndarray:
        """Add a step's P v to the groups' accumulators."""
        groups = o.shape[1]
        if "accumulation" not in self.on:
            some = [slice(g, None, groups) for g in range(groups)]
            return o + np.stack([np.sum(parts, axis=0)[..., s] @ v[:, s] for s in some], axis=1)
        if self.policy.tensor_cores:
            return self._accumulate_mma(o[:, 0], parts, v)[:, None]
        for i in range(0, v.shape[1], groups):
            p = np.moveaxis(parts[0][..., i : i + groups], -1, 1)
            o = self._fma(p[..., None], v[:, i : i + groups, None], o, "accumulation")
        return o

    def _accumulate_mma(self, o: Array, parts: list[Array], v: Array) -> np.ndarray:
        fmt = self.policy.p.removesuffix("x2")
        promoted = self.trace.order.promoted
        for i in range(0, v.shape[1], MMA_KEYS):
            keys = slice(i, i + MMA_KEYS)
            total = np.zeros_like(o) if promoted else o
            for part in parts:
                some = part[..., keys], v[:, keys]
                total = tensor_core.matmul(*some, total, arch=self.arch, fmt=fmt).astype(np.float64)
            o = self._fp32(o + total, "accumulation") if promoted else total
        return o

    def _join_lanes(self, m: Array, l: Array, o: Array) -> _State:
        """Add up the lanes' sums of each warp."""
        while l.shape[-1] > 1:
            l = self._fp32(l[..., 0::2] + l[..., 1::2], "denominator")
        while o.shape[1] > 1:
            half = o.shape[1] // 2
            o = self._fp32(o[:, :half] + o[:, half:], "accumulation")
        return _State(m, l[..., 0], o[:, 0])

    def _merge(self, states: _State, start: _State | None = None) -> _State:
        """Join States, in order along the first axis, under the largest of their maxima."""
        m = states.m.max(axis=0) if start is None else np.maximum(start.m, states.m.max(axis=0))
        if start is None:
            l, o = np.zeros_like(m), np.zeros(states.o.shape[1:])
        else:
            rescale = self._exp2(self._fp32(start.m - shift(m), "exp2"))
            l = self._fp32(start.l * rescale, "denominator")
            o = self._fp32(start.o * rescale[..., None], "merge")
        for part_m, part_l, part_o in zip(states.m, states.l, states.o, strict=True):
            weight = self._exp2(self._fp32(part_m - shift(m), "exp2"))
            l = self._fma(weight, part_l, l, "denominator")
            o = self._fma(weight[..., None], part_o, o, "merge")
        return _State(m, l, o)

    def _merge_splits(self, splits: _State) -> _State:
        batch = merge_batch(splits.o.shape[-1])
        state = self._merge(splits.map(lambda x: x[:batch]))
        for first in range(batch, len(splits.m), batch):
            some = slice(first, first + batch)
            state = self._merge(splits.map(lambda x, some=some: x[some]), state)
        return state


def merge_batch(head_dim: int) -> int:
    """Return how many States of splits the kernels merge at a time."""
    return 16 if head_dim <= 128 else 8
