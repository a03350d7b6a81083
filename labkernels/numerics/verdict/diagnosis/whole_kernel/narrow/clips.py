"""Q, K or V clipped where a scale ends that was made of other numbers.

Functions take sheets and a misfit, as those of `fitted` do.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit, least
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet, keys_of, queries_of

_GRID = np.linspace(0.05, 1.0, 20)
_HOPELESS = 0.3  # part of mean z^2 that the best share of the grid leaves if it is not refined


def _of_all_heads(sheet: Sheet, which: str) -> Array:
    """Return the largest absolute value of a request's heads."""

    def found() -> Array:
        problem = sheet.problem
        if which == "q":
            tokens = np.arange(*(int(problem.q_ends[sheet.request + i]) for i in (0, 1)))
            return np.abs(queries_of(problem, tokens, slice(None))).max()
        heads = range(problem.kv_heads)
        return np.max([np.abs(keys_of(problem, which, h, sheet.request)).max() for h in heads])

    return sheet.once((which, "largest of a request"), found)


def _tensor(sheet: Sheet, which: str) -> Array:
    return sheet.q if which == "q" else sheet.keys(which)


_RMS = "the root mean square of its token"
_MOST = {_RMS: 4.0}  # largest number that is tried, where it is not 1
_OF: dict[str, Callable[..., Any]] = {
    "the largest of its request": _of_all_heads,
    "the largest of its head of a request": lambda sheet, which: np.abs(
        _tensor(sheet, which)
    ).max(),
    "the largest of its token": lambda sheet, which: np.abs(_tensor(sheet, which)).max(
        1, keepdims=True
    ),
    "the largest of its channel": lambda sheet, which: np.abs(_tensor(sheet, which)).max(
        0, keepdims=True
    ),
    _RMS: lambda sheet, which: np.sqrt((_tensor(sheet, which) ** 2).mean(1, keepdims=True)),
}
_TENSORS = ("K", "V", "Q", "K and V")


def of_shares(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """A tensor is clipped at a share of its largest, or at a multiple of its token's size."""
    before = misfit(lambda sheet: None)
    for what in _TENSORS:
        for whose, of in _OF.items():
            if what == "Q" and whose.endswith(("channel", "head of a request")):
                continue  # the sheets have some of the rows alone
            grid = _GRID * _MOST.get(whose, 1.0)

            def clipped(share: float, w: str = what, by: Callable[..., Any] = of) -> Any:
                return lambda sheet: _outputs(sheet, w, by, share)

            if min(misfit(clipped(x), limit=before) for x in grid) > _HOPELESS * before:
                continue
            share = least(misfit, clipped, grid)
            where = f"at {share:.4g} of {whose}, and its negative"
            yield Mistake(f"{what} clipped", where, clipped(share), cost=2.0)


def _outputs(sheet: Sheet, what: str, of: Callable[..., Any], share: float) -> Array:
    def cut(which: str) -> Array:
        x, most = _tensor(sheet, which), share * of(sheet, which)
        return np.clip(x, -most, most)

    scores, v = sheet.scores, sheet.v
    if what != "V":
        q, k = (cut("q"), sheet.k) if what == "Q" else (sheet.q, cut("k"))
        scores = sheet.masked(sheet.shaped(q @ k.T))
    if "V" in what:
        v = cut("v")
    return sheet.attend(scores, v)


ALL = (of_shares,)
