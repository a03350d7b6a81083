"""Errors of elements beside the error that rounding allows each: data for figures."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Elements:
    """Some rows and heads of one output, in float64.

    tensor: "out", or a gradient's name. rows: query tokens, or keys of dk and dv, as they lie in
    the tensor. heads: which of its heads. ratio: |error| over its bound, 0 where there is no error.
    Shapes: truth, error, ratio [rows, heads, channels].
    """

    tensor: str
    rows: tuple[int, ...]
    heads: tuple[int, ...]
    truth: np.ndarray
    error: np.ndarray
    ratio: np.ndarray


def over(error: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Return |error| / allowed, where no error is 0 whatever is allowed."""
    error = np.abs(error)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(error == 0, 0.0, error / allowed)
