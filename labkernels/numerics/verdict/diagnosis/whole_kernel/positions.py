"""Positions that are applied where they should not be, or are some places off: ALiBi and RoPE.

Each takes sheets and a function of a prediction's misfit, as those of fitted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import (
    Misfit,
    best,
    least,
    of_rows,
)
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet
from labkernels.units import LOG2_E

_BASES = (1e4, 5e5, 1e6)
_STEPS = tuple(sign * n for n in (1, 2, 3, 4, 8, 16, 32, 64, 128) for sign in (1, -1))
_STRETCHES = (2.0, 4.0, 8.0)
_NEARLY = 0.01  # of a factor: it is a round one


def of_alibi(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """A slope along the keys, by head: 2^(-8 (h + 1) / n) times a factor that is fitted."""
    n = sheets[0].problem.q.shape[1]

    def sloped(factor: float, first: int) -> Callable:
        def outputs(sheet: Sheet):
            slopes = factor * 2.0 ** (-8 * (sheet.heads + first) / n)[:, None]
            distance = np.arange(sheet.kv_len)[None] - sheet.places
            return sheet.attend(sheet.scores + LOG2_E * slopes * distance)

        return outputs

    for first, words in ((1, "h + 1"), (0, "h")):
        factor = least(lambda x, f=first: misfit(sloped(x, f)), np.linspace(-2.5, 2.5, 41))
        for round_one in (1.0, 0.5, 2.0, -1.0, LOG2_E, 1 / LOG2_E):
            if abs(factor - round_one) < _NEARLY * abs(round_one):
                factor = round_one
        times = "" if factor == 1 else f"{factor:.4g} times "
        where = f"slopes {times}2^(-8 ({words}) / {n})"
        yield Mistake("ALiBi that was not asked for", where, sloped(factor, first))


@dataclass(frozen=True)
class _Turn:
    """A rotation of q by its place times `of_q`, plus `ahead` places, and of k by `of_k` places."""

    words: str
    base: float
    interleaved: bool
    share: float
    of_q: int
    of_k: int
    ahead: int
    instead: float = 0.0  # the base that is taken for `base`, where it is not 0
    stretch: float = 1.0

    @property
    def name(self) -> str:
        """Its name as a mistake."""
        if self.instead or self.stretch != 1:
            return "RoPE of another base"
        if self.ahead:
            return "RoPE some places off"
        kinds = {(1, 1): "RoPE applied once more", (-1, -1): "RoPE undone"}
        return kinds.get((self.of_q, self.of_k), "RoPE of Q or K alone")

    def angles(self, half: int) -> np.ndarray:
        """Angle of a place by channel pair. Shapes: [half]."""
        power = -np.arange(half) / half
        angle = self.base**power
        if self.instead:
            return self.instead**power - angle
        return angle if self.stretch == 1 else angle / self.stretch - angle

    def q(self, sheet: Sheet, rows) -> np.ndarray:
        """The turned queries of some rows."""
        places = self.of_q * sheet.places[rows, 0] + self.ahead
        return self._turned(sheet.q[rows], places)

    def k(self, sheet: Sheet) -> np.ndarray:
        """The turned keys."""
        return self._turned(sheet.k, self.of_k * np.arange(sheet.kv_len)) if self.of_k else sheet.k

    def _turned(self, x, places):
        n = int(x.shape[-1] * self.share) // 2 * 2
        if n < 2:
            return x
        found = x.copy()
        found[..., :n] = rotated(x[..., :n], places, self.angles(n // 2), self.interleaved)
        return found

    def outputs(self, sheet: Sheet):
        """Its outputs."""
        if sheet.problem.variant is not None or sheet.q.shape[-1] % 2:
            return None
        return sheet.attend(sheet.masked(self.q(sheet, slice(None)) @ self.k(sheet).T))


def _turns(sheets: list[Sheet]) -> list[_Turn]:
    sheet = sheets[0]
    ends = sheet.problem.q_ends
    n_q = int(ends[sheet.request + 1] - ends[sheet.request])
    far = (sheet.kv_len - n_q, n_q - sheet.kv_len, sheet.kv_len, -sheet.kv_len)
    ways = [(1, 1, 0), (-1, -1, 0), (1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -1, 0)]
    steps = dict.fromkeys((*_STEPS, *far))
    ways += [(0, 0, step) for step in steps if step]
    found = []
    for base in _BASES:
        for interleaved in (False, True):
            kind = f"{'interleaved pairs' if interleaved else 'halves'}, base {base:g}"
            for share in (1.0, 0.5, 0.25):
                of = f", {share:g} of the channels" * (share < 1)
                for of_q, of_k, ahead in ways:
                    moved = f", q {ahead:+d} places" if ahead else ""
                    only = {(0, 1): ", K alone", (1, 0): ", Q alone"}.get(
                        (abs(of_q), abs(of_k)), ""
                    )
                    words = kind + of + moved + only
                    found.append(_Turn(words, base, interleaved, share, of_q, of_k, ahead))
            for other in _BASES:
                if other != base:
                    words = f"{kind}, taken for {other:g}"
                    found.append(_Turn(words, base, interleaved, 1.0, 1, 1, 0, instead=other))
            for stretch in (*_STRETCHES, *(1 / x for x in _STRETCHES)):
                words = f"{kind}, places divided by {stretch:g}"
                found.append(_Turn(words, base, interleaved, 1.0, 1, 1, 0, stretch=stretch))
    return found


def of_rotation(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """q and k rotated once more, or back, alone, in part, some places off, or by another base."""
    if sheets[0].problem.variant is not None or sheets[0].q.shape[-1] % 2:
        return
    turns = _turns(sheets)
    keys: dict[tuple, np.ndarray] = {}

    def each(sheet: Sheet, row: int):
        found = []
        for turn in turns:
            place = id(sheet), turn.of_k and (turn.angles(4).tobytes(), turn.share, turn.of_k)
            place = (*place, turn.interleaved)
            if place not in keys:
                keys[place] = turn.k(sheet)
            scores = turn.q(sheet, [row]) @ keys[place].T
            scores = np.where(sheet.hidden[[row]], -np.inf, scores)[0]
            p = np.exp2(scores - scores.max())
            found.append(p @ sheet.v / p.sum())
        return np.stack(found)

    chosen = {i for _, _, i in of_rows(sheets, each, rows=2)}
    yield from best(
        misfit,
        [Mistake(turns[i].name, turns[i].words, turns[i].outputs) for i in sorted(chosen)],
    )


def rotated(x, places, angles, interleaved: bool):
    """x [n, D] turned by its places [n], each pair of channels by its angle [D / 2]."""
    half = x.shape[-1] // 2
    angle = np.asarray(places)[:, None] * angles
    cos, sin = np.cos(angle), np.sin(angle)
    pairs = (
        (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(half), slice(half, None))
    )
    found = np.empty_like(x)
    a, b = (x[:, pair] for pair in pairs)
    found[:, pairs[0]], found[:, pairs[1]] = a * cos - b * sin, a * sin + b * cos
    return found


ALL = (of_alibi, of_rotation)
