"""Tables of error per head and per sample.

No element is dropped: a NaN makes every figure of its group NaN, except `different`, which counts
the NaN as a difference. Arrays are [batch, heads, ...]: outputs [B, H, D] or log-sum-exps [B, H].
"""

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.units import require_choice

GROUPS = ("all", "head", "sample", "sample_and_head")
COLUMNS = ("rmse", "max_abs", "mean_signed", "rel_l2", "different")


def error_table(out: Array, reference: Array, *, by: str) -> np.ndarray:
    """Return the error of out against the reference, one record per group.

    A record has the fields COLUMNS: rmse; max_abs; mean_signed, the mean of the error times the
    reference's sign; rel_l2, the quotient of the L2 norms of error and reference; different, the
    share of elements that are not equal.
    Shapes: by="all" -> [], "head" -> [H], "sample" -> [B], "sample_and_head" -> [B, H].

    >>> reference = np.ones((1, 2, 4))  # one request, two heads
    >>> out = reference + np.array([[[0.0], [0.5]]])
    >>> error_table(out, reference, by="head")["rmse"]
    array([0. , 0.5])
    """
    out, reference = _pair(out, reference)
    error = difference(out, reference)
    axes = _axes(by, error.ndim)
    signed = error * np.sign(reference)
    with np.errstate(divide="ignore", invalid="ignore"):
        error_norm = np.sqrt(np.sum(error**2, axis=axes))
        finite = np.where(np.isinf(reference), 0.0, reference)
        norm = np.sqrt(np.sum(finite**2, axis=axes))
        rel_l2 = np.where(error_norm == 0, 0.0, error_norm / norm)
    columns = (
        rms(error, by=by),
        np.max(np.abs(error), axis=axes, initial=0.0),
        _mean(signed, axes),
        rel_l2,
        _mean(~(out == reference), axes),
    )
    table = np.empty(error_norm.shape, dtype=[(name, np.float64) for name in COLUMNS])
    for name, column in zip(COLUMNS, columns, strict=True):
        table[name] = column
    return table


def difference(a: Array, b: Array) -> np.ndarray:
    """Return a - b in float64, with 0 where both are the same infinity; NaN stays NaN."""
    a, b = _pair(a, b)
    with np.errstate(invalid="ignore"):
        return np.where(a == b, 0.0, a - b)


def rms(error: Array, *, by: str) -> np.ndarray:
    """Return the root mean square per group of GROUPS; 0 for a group without elements."""
    error = np.asarray(error, dtype=np.float64)
    return np.sqrt(_mean(error**2, _axes(by, error.ndim)))


def mean(values: Array, *, by: str) -> np.ndarray:
    """Return the mean per group of GROUPS; 0 for a group without elements."""
    values = np.asarray(values, dtype=np.float64)
    return _mean(values, _axes(by, values.ndim))


def _pair(out: Array, reference: Array) -> tuple[np.ndarray, np.ndarray]:
    out, reference = (np.asarray(x, dtype=np.float64) for x in (out, reference))
    if out.shape != reference.shape:
        raise ValueError(f"out.shape = {out.shape}, allowed: that of reference, {reference.shape}")
    return out, reference


def _axes(by: str, ndim: int) -> tuple[int, ...]:
    require_choice("by", by, GROUPS)
    if ndim < 2:
        raise ValueError(f"ndim = {ndim}, allowed: 2 or more, [batch, heads, ...]")
    rest = tuple(range(2, ndim))
    return {"all": (0, 1, *rest), "head": (0, *rest), "sample": (1, *rest)}.get(by, rest)


def _mean(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Return the mean over the axes; 0 if they hold no element."""
    count = int(np.prod([x.shape[axis] for axis in axes]))
    return np.asarray(np.sum(x, axis=axes, dtype=np.float64) / max(1, count))
