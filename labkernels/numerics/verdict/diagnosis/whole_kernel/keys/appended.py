"""New keys that a cache takes at wrong slots: one early, all at one, none, or from another place.

The new keys of a request are those of its own queries. Functions take sheets and a misfit, as those
of `fitted` do.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit, best
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet

_STEPS = (*(sign * x for x in (1, 2, 3, 4, 8, 16, 32, 64, 128) for sign in (1, -1)),)
_TENSORS = ("K and V", "K", "V")
_LEFT = {"hold 0": -1, "hold what they should": 0}

Index = Callable[
    [int, int], np.ndarray
]  # of n keys, m of them new: which each slot holds, -1 for 0


def _moved(step: int, left: int) -> Index:
    def index(n: int, m: int) -> Array:
        slot = np.arange(n)
        held = np.where((slot >= n - m) & (left < 0), -1, slot)
        to = slot[n - m :] + step
        there = (to >= 0) & (to < n)
        held[to[there]] = slot[n - m :][there]
        return held

    return index


def _rules() -> Iterator[tuple[str, Index]]:
    for step, (words, left) in itertools.product(_STEPS, _LEFT.items()):
        said = f"new keys are appended {abs(step)} slots {'late' if step > 0 else 'early'}"
        yield f"{said}; slots without one {words}", _moved(step, left)
    yield "new keys hold 0", lambda n, m: np.where(np.arange(n) < n - m, np.arange(n), -1)
    for words, place in (("first", 0), ("last", -1)):
        for said, rest in (("0", None), ("it too", 0)):

            def one(n: int, m: int, p: int = place, fill: int | None = rest) -> Array:
                slot = np.arange(n)
                only = n - m if p == 0 else n - 1
                other = -1 if fill is None else only
                return np.where((slot < n - m) | (slot == only), slot, other)

            yield f"of the new keys the {words} alone is appended; the others hold {said}", one
    yield (
        "new keys are appended in reverse",
        lambda n, m: np.append(np.arange(n - m), np.arange(n - m, n)[::-1]),
    )
    yield (
        "new keys are written over the first slots, and their own hold 0",
        lambda n, m: np.where(
            np.arange(n) >= n - m,
            -1,
            np.where(np.arange(n) < m, np.arange(n) + n - m, np.arange(n)),
        ),
    )
    yield (
        "slots of new keys hold the keys before them",
        lambda n, m: np.where(np.arange(n) < n - m, np.arange(n), np.maximum(np.arange(n) - m, 0)),
    )


def of_new(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Keys that are new with the queries lie at wrong slots, in K, V or both."""
    asked = np.diff(sheets[0].problem.q_ends)
    found = []
    for (words, index), what in itertools.product(_rules(), _TENSORS):

        def outputs(sheet: Sheet, of: Index = index, w: str = what) -> Array | None:
            n = sheet.kv_len
            return _read(sheet, of(n, min(int(asked[sheet.request]), n)), w)

        name = "keys" if what == "K and V" else what
        found.append(Mistake(f"{name} read from other keys", words, outputs, cost=1.0))
    yield from best(misfit, found)


def _read(sheet: Sheet, held: Array, what: str) -> Array:
    there, held = held >= 0, np.maximum(held, 0)
    scores, v = sheet.scores, sheet.v
    if "K" in what:
        k = np.where(there[:, None], sheet.k[held], 0.0)
        scores = sheet.masked(sheet.shaped(sheet.q @ k.T))
    if "V" in what:
        v = np.where(there[:, None], v[held], 0.0)
    return sheet.attend(scores, v)


ALL: tuple[Any, ...] = (of_new,)
