"""Errors of an attention output against float64, at sizes where NumPy would take minutes.

numerics computes the truth on the tensors' device. If the rows that are judged together have few
keys, every element gets a bound; else one row's elements of one KV head get bounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from labkernels.measure.judge.elements import Elements, over
from labkernels.numerics import metrics
from labkernels.numerics.arrays import as_float64, to_numpy
from labkernels.numerics.error import bounds
from labkernels.numerics.error import sigma as error_sigma
from labkernels.numerics.truth import oracle
from labkernels.numerics.truth.problem import Problem
from labkernels.policy import NumericPolicy

# The RMSE of a right kernel's worst head stays below 2.4 times what the error model expects. Over
# long contexts the bound of an element is larger than any output, and only the RMSE shows a lost
# page.
RMSE_RATIO_MAX = 4.0
# Up to this many keys (summed over the rows) times KV heads, every element gets its own bound.
CHECK_ALL_KEYS = 2**15
# The factor by which an unchecked element may exceed the largest checked bound: rows of random
# inputs are similar.
HEADROOM = 2.0
SAMPLED = (0, 1, 63, 64, 127, 0.5, -2, -1)  # query tokens of a request; 0.5: the middle one


class Reference(NamedTuple):
    """Float64 truth. Shapes: o [rows, Hq, Dv], lse2 [rows, Hq], base 2."""

    o: np.ndarray
    lse2: np.ndarray


class Bound(NamedTuple):
    """Bounds on |out - o| and on lse2 for the last rows and first query heads, and the RMSE.

    Shapes: o [rows, heads, Dv], lse2 [rows, heads]; rmse: the expected one of each row and head
    if all have bounds or a window, else one number for all.
    """

    o: np.ndarray
    lse2: np.ndarray
    rmse: np.ndarray


@dataclass(frozen=True)
class Errors:
    """Errors of one output over all judged rows.

    bound_ratio is the worst error over its bound, rmse_ratio the worst head's RMSE over the
    expected one. lse2_max_abs is None if the implementation returns no log-sum-exp.
    """

    rmse: float
    bias: float
    max_abs: float
    lse2_max_abs: float | None
    bound_ratio: float
    rmse_ratio: float

    @property
    def passed(self) -> bool:
        """Whether every element kept its bound and every head its RMSE_RATIO_MAX; False for NaN."""
        return self.bound_ratio <= 1.0 and self.rmse_ratio <= RMSE_RATIO_MAX

    @property
    def reason(self) -> str:
        """The two ratios and their limits, in words."""
        return (
            f"worst error {self.bound_ratio:.3g} of its bound, allowed: 1; worst head's RMSE "
            f"{self.rmse_ratio:.3g} of the expected, allowed: {RMSE_RATIO_MAX:g}"
        )


def every_row(inputs) -> list[list[int]]:
    """Return the rows of a decode: all, judged together."""
    return [list(range(inputs.workload.batch))]


def some_tokens(inputs) -> list[list[int]]:
    """Return some query tokens of a prefill's last request, each judged by itself."""
    q_lens = inputs.workload.q_lens
    n, first = q_lens[-1], sum(q_lens[:-1])
    tokens = sorted({int(t * n) if isinstance(t, float) else t % n for t in SAMPLED})
    return [[first + token] for token in tokens]


def ends_of_batch(inputs) -> list[list[int]]:
    """Return all tokens of an MLA decode's first request and its last, judged together."""
    n, last = inputs.workload.q_len, inputs.workload.batch - 1
    return [[request * n + token for request in sorted({0, last}) for token in range(n)]]


class OutputJudge:
    """Judges outputs by some of their rows, in float64 on the inputs' device.

    rows: lists of query tokens that are judged together, as from every_row, some_tokens and
    ends_of_batch.
    """

    def __init__(self, inputs, rows: Sequence[Sequence[int]]) -> None:
        self._dtype = inputs.workload.dtype
        self._parts = [_Part(list(some), inputs.problem(some)) for some in rows]

    @property
    def reference(self) -> Reference:
        """The float64 truth of the judged rows."""
        parts = [part.reference for part in self._parts]
        return Reference(*(np.concatenate(each) for each in zip(*parts, strict=True)))

    def __call__(self, outputs, policy: NumericPolicy, forward=None) -> Errors:
        """Return the errors of an output: out [rows, Hq, Dv], and lse2 [rows, Hq] or None."""
        out, lse2 = outputs
        told = policy.of(self._dtype)
        each = [part.errors(out, lse2, told) for part in self._parts]
        # Rows without a computed bound must at least have been written.
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

    def elements(self, outputs, policy: NumericPolicy, forward=None) -> list[Elements]:
        """Return every judged element of an output, a part for rows that are judged together."""
        told = policy.of(self._dtype)
        return [part.elements(outputs[0], told) for part in self._parts]


class _Part:
    """Rows that are judged together: their truth, and their bounds by policy."""

    def __init__(self, rows: list[int], problem: Problem) -> None:
        self._rows, self._problem = rows, problem
        self.reference = Reference(*map(to_numpy, oracle.attention(problem)))
        self._bounds: dict[NumericPolicy, Bound] = {}

    def errors(self, out, lse2, policy: NumericPolicy) -> Errors:
        """Return the errors of the rows; the policy names formats, and never "input"."""
        rows = self._rows
        return errors_of(
            out[rows], None if lse2 is None else lse2[rows], self.reference, self._bound(policy)
        )

    def elements(self, out, policy: NumericPolicy) -> Elements:
        """Return the errors of the rows, and their ratios to the bounds."""
        truth = self.reference.o
        error = metrics.difference(as_float64(out[self._rows]), truth)
        heads = tuple(range(truth.shape[1]))
        ratio = _ratios(error, self._bound(policy).o)
        return Elements("out", tuple(self._rows), heads, truth, error, ratio)

    def _bound(self, policy: NumericPolicy) -> Bound:
        if policy not in self._bounds:
            self._bounds[policy] = bound_of(self._problem, policy)
        return self._bounds[policy]


def bound_of(problem: Problem, policy: NumericPolicy) -> Bound:
    """Return the bounds that a kernel must keep; the policy names formats, and never "input"."""
    checked, whole = _checked(problem)
    o, lse2 = map(to_numpy, bounds.both_bounds(checked, policy))
    # a window leaves few keys, and then rows and heads differ too much for one expected RMSE
    whole = whole or (problem.variant is not None and problem.variant.window_left is not None)
    sigma = to_numpy(error_sigma.sigma(problem if whole else checked, policy))
    return Bound(o, lse2, metrics.rms(sigma, by="sample_and_head" if whole else "all"))


def _checked(problem: Problem) -> tuple[Problem, bool]:
    """Return the part of a problem that gets bounds, and whether that is the whole problem.

    A problem with a single KV head stays whole: its bounds take no longer than its truth.
    """
    kv_heads = problem.k_pool.shape[2]
    if kv_heads == 1 or int(problem.n_keys.sum()) * kv_heads <= CHECK_ALL_KEYS:
        return problem, True
    variant, group = problem.variant, problem.group
    token = np.array([len(problem.q) - 1])
    last = {
        "q": problem.q[-1:, :group],
        "k_pool": problem.k_pool[:, :, :1],
        "v_pool": problem.v_pool[:, :, :1],
        "page_table": problem.page_table[-1:],
        "kv_lens": problem.kv_lens[-1:],
        "places": problem.places_here[-1:],
        "variant": variant and variant.part(token, np.arange(group), int(problem.kv_lens[-1])),
    }
    return replace(problem, **last, cu_seqlens_q=None), False


def errors_of(out, lse2, reference: Reference, bound: Bound) -> Errors:
    """Return the errors of an output, and its worst error over its bound.

    An element without a bound of its own may err by HEADROOM times the largest bound.
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
        rmse_ratio=float(np.max(over(rmse_of_heads, bound.rmse))),
    )


def _worst_ratio(error: np.ndarray, bound: np.ndarray) -> float:
    """Return the largest error over its bound; NaN if an error is NaN."""
    return float(np.max(_ratios(error, bound)))


def _ratios(error: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Return every error over its own bound, or over HEADROOM times the largest if it has none."""
    requests, heads = bound.shape[:2]
    ratios = over(error, HEADROOM * np.max(bound))
    ratios[-requests:, :heads] = over(error[-requests:, :heads], bound)
    return ratios
