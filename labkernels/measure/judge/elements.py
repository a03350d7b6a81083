"""Errors of single elements, and the error that rounding allows each element: data for figures."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Elements:
    """Some rows and heads of one output, in float64.

    tensor: "out", or a gradient's name. rows: which rows of the tensor, query tokens or (dk and dv)
    keys. heads: which of its heads. ratio: |error| over its bound, 0 where the error is 0.
    Shapes: truth, error, ratio [rows, heads, channels].
    """

    tensor: str
    rows: tuple[int, ...]
    heads: tuple[int, ...]
    truth: np.ndarray
    error: np.ndarray
    ratio: np.ndarray


def over(error: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Return |error| / allowed, and 0 where the error is 0, even if allowed is 0."""
    error = np.abs(error)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(error == 0, 0.0, error / allowed)
