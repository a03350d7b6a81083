"""An exp2 with errors between powers of two, as of polynomials of low degree; errors are fitted."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.polynomial import legendre

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet

_BLOCKS = (1 << 30, 128, 64, 32, 16)  # keys between two moves of the running maximum
_LARGEST = 0.1  # largest relative error of a function that counts as exp2
_TERMS = 6
_ROUNDS = 3  # steps of the fit, each of first order


def of_polynomial(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Weights are 2^x (1 + e), where e depends on the fraction of x alone."""
    for block in _BLOCKS:
        if block < 1 << 30 and block >= max(sheet.kv_len for sheet in sheets):
            continue
        parts = [_shapes(sheet, block) for sheet in sheets]
        found = np.zeros(_TERMS)
        for _ in range(_ROUNDS):
            sides = [_equations(s, x, found) for s, x in zip(sheets, parts, strict=True)]
            left = sum(a for a, _ in sides)
            found = found + np.linalg.lstsq(left, sum(b for _, b in sides), rcond=1e-9)[0]
        fraction = np.linspace(0, 1, 65)
        largest = float(np.abs(np.tensordot(found, _basis(fraction), 1)).max())
        if not 0 < largest <= _LARGEST:
            continue
        against = "the row's maximum" if block == 1 << 30 else f"that of blocks of {block} keys"
        yield Mistake(
            "exp2 by a polynomial of low degree",
            f"off by up to {largest:.2g} between powers of two, against {against}",
            _erring(block, found),
            precision=True,
        )


def _basis(fraction: Array) -> Array:
    """Return x (1 - x) times Legendre polynomials, errors that are 0 at both ends.

    Shapes: [T, ...].
    """
    arc = fraction * (1 - fraction)
    return arc * np.moveaxis(legendre.legvander(2 * fraction - 1, _TERMS - 1), -1, 0)


def _shapes(sheet: Sheet, block: int) -> np.ndarray:
    """Return the basis at each weight's exponent. Shapes: [T, R, L]."""
    scores = sheet.scores
    tops = np.maximum.accumulate(
        np.concatenate(
            [
                np.broadcast_to(part.max(1, keepdims=True), part.shape)
                for part in np.split(scores, range(block, scores.shape[1], block), axis=1)
            ],
            1,
        ),
        axis=1,
    )
    x = np.where(np.isinf(scores), 0.0, scores - np.where(np.isinf(tops), 0.0, tops))
    return _basis(x - np.floor(x))


def _erring(block: int, found: Array) -> Callable[..., Any]:
    def outputs(sheet: Sheet) -> Array:
        p = sheet.weights * (1 + np.tensordot(found, _shapes(sheet, block), 1))
        return p @ sheet.v / p.sum(1, keepdims=True)

    return outputs


def _equations(sheet: Sheet, shapes: Array, found: Array) -> tuple[Array, Array]:
    """Return the normal equations of what is left of the error, to first order."""
    p = sheet.weights * (1 + np.tensordot(found, shapes, 1))
    l = p.sum(1, keepdims=True)
    o = p @ sheet.v / l
    weighted = sheet.weights / l * shapes
    changes = (weighted @ sheet.v - weighted.sum(-1, keepdims=True) * o) / sheet.sigma
    changes = changes.reshape(_TERMS, -1)
    return changes @ changes.T, changes @ ((sheet.out - o) / sheet.sigma).ravel()


ALL = (of_polynomial,)
