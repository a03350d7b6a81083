"""Position encodings that are applied wrongly or some places off: ALiBi and RoPE.

Functions take sheets and a misfit, as those of `fitted` do.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import (
    Misfit,
    best,
    least,
    of_rows,
)
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet
from labkernels.units import LOG2_E

_BASES = (1e4, 5e5, 1e6, 4e4, 1e5, 5e6, 1e7)
_COMMON = 3  # so many bases, the most common ones, are tried where there are many choices
_LARGE = 2**19  # numbers of K: with more, each rotation takes milliseconds
_SCREENED = 2  # sheets of which one row each selects the rotations that are judged
_STEPS = tuple(sign * n for n in (1, 2, 3, 4, 8, 16, 32, 64, 128) for sign in (1, -1))
_STRETCHES = (2.0, 4.0, 8.0, 16.0, 32.0)
_SQUEEZES = (0.5, 0.25, 0.125)
_TABLES = 32  # most tables of cosines and sines that are kept
_NEARLY = 0.01  # largest relative distance of a factor from a round one


def of_alibi(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Scores have a slope along the keys: 2^(-8 (h + 1) / n) for head h, times a fitted factor."""
    n = sheets[0].problem.q.shape[1]

    def sloped(factor: float, first: int) -> Callable[..., Any]:
        def outputs(sheet: Sheet) -> Array:
            slopes = factor * 2.0 ** (-8 * (sheet.heads + first) / n)[:, None]
            distance = np.arange(sheet.kv_len)[None] - sheet.places
            return sheet.attend(sheet.scores + LOG2_E * slopes * distance)

        return outputs

    for first, words in ((1, "h + 1"), (0, "h")):
        factor = least(misfit, lambda x, f=first: sloped(x, f), np.linspace(-2.5, 2.5, 41))
        for round_one in (1.0, 0.5, 2.0, -1.0, LOG2_E, 1 / LOG2_E):
            if abs(factor - round_one) < _NEARLY * abs(round_one):
                factor = round_one
        times = "" if factor == 1 else f"{factor:.4g} times "
        where = f"slopes {times}2^(-8 ({words}) / {n})"
        yield Mistake("ALiBi that was not asked for", where, sloped(factor, first))


@dataclass(frozen=True)
class _Rotation:
    """A rotary embedding: its base, its pairs of channels, how many of them turn, and how far."""

    base: float
    interleaved: bool = False
    share: float = 1.0
    sign: int = 1
    stretch: float = 1.0

    def of(self, x: Array, places: Array) -> Array:
        """Return x [n, D] turned by its places [n]."""
        n = int(x.shape[-1] * self.share) // 2 * 2
        if n < 2:
            return x
        found, half = x.copy(), n // 2
        angles = self.sign / self.stretch * self.base ** (-np.arange(half) / half)
        found[..., :n] = rotated(x[..., :n], places, angles, self.interleaved)
        return found

    @property
    def words(self) -> str:
        """Which rotation it is."""
        kind = f"{'interleaved pairs' if self.interleaved else 'halves'}, base {self.base:g}"
        kind += f", {self.share:g} of the channels" * (self.share < 1)
        return kind + f", places divided by {self.stretch:g}" * (self.stretch != 1)


@dataclass(frozen=True)
class _Turn:
    """q is turned by its place times `of_q`, plus `ahead` places, and k by `of_k` places."""

    name: str
    words: str
    steps: tuple[_Rotation, ...]
    of_q: int = 1
    of_k: int = 1
    ahead: int = 0

    def q(self, sheet: Sheet, rows: list[int] | slice) -> np.ndarray:
        """Return the turned queries of some rows."""
        return self._turned(sheet.q[rows], self.of_q * sheet.places[rows, 0] + self.ahead)

    def k(self, sheet: Sheet) -> np.ndarray:
        """Return the turned keys."""
        found, keys = sheet.k, np.arange(sheet.kv_len)
        for n in range(len(self.steps) if self.of_k else 0):
            step, before = self.steps[n], found
            found = sheet.once(self.steps[: n + 1], lambda x=before, s=step: s.of(x, keys))
        return found

    def _turned(self, x: Array, places: Array) -> Array:
        for step in self.steps:
            x = step.of(x, places)
        return x

    def outputs(self, sheet: Sheet) -> Array | None:
        """Return the outputs with the turned queries and keys."""
        if sheet.problem.variant is not None or sheet.q.shape[-1] % 2:
            return None
        return sheet.attend(sheet.masked(self.q(sheet, slice(None)) @ self.k(sheet).T))


def _turns(sheets: list[Sheet]) -> Iterator[_Turn]:
    bases = _BASES if sheets[0].k.size <= _LARGE else _BASES[:_COMMON]
    yield from _ahead(sheets[0])
    for base in bases:
        for interleaved in (False, True):
            for share in (1.0, 0.5, 0.25):
                one = _Rotation(base, interleaved, share)
                back = replace(one, sign=-1)
                yield _Turn("RoPE applied once more", one.words, (one,))
                yield _Turn("RoPE undone", one.words, (back,))
                for step, way in ((one, "on"), (back, "back")):
                    for which, q, k in (("Q", 1, 0), ("K", 0, 1)):
                        words = f"{which} alone, turned {way}; {one.words}"
                        yield _Turn("RoPE of Q or K alone", words, (step,), q, k)
    for old, new in _instead(bases):
        name = "RoPE of another base"
        if (old.interleaved, old.share) != (new.interleaved, new.share):
            name = "RoPE in the other convention"
        words = f"{new.words} in place of {old.words}"
        yield _Turn(name, words, (replace(old, sign=-1), new))


def _ahead(sheet: Sheet) -> Iterator[_Turn]:
    """Yield turns of queries by some places too many or too few."""
    ends = sheet.problem.q_ends
    n_q = int(ends[sheet.request + 1] - ends[sheet.request])
    far = (sheet.kv_len - n_q, n_q - sheet.kv_len, sheet.kv_len, -sheet.kv_len)
    for base in _BASES[:_COMMON]:
        for interleaved in (False, True):
            for share in (1.0, 0.5, 0.25):
                one = _Rotation(base, interleaved, share)
                for step in dict.fromkeys((*_STEPS, *far)):
                    if step:
                        words = f"{one.words}, q {step:+d} places"
                        yield _Turn("RoPE some places off", words, (one,), 0, 0, step)


def _instead(bases: tuple[float, ...]) -> Iterator[tuple[_Rotation, _Rotation]]:
    """Yield pairs of rotations that differ in base, pairs of channels, share or stretch."""
    for interleaved in (False, True):
        for base in bases:
            old = _Rotation(base, interleaved)
            yield from ((old, replace(old, base=other)) for other in bases if other != base)
            yield from ((old, replace(old, stretch=x)) for x in (*_STRETCHES, *_SQUEEZES))
            yield old, replace(old, interleaved=not interleaved)
            for share in (0.5, 0.25):
                part = replace(old, share=share)
                yield from ((old, part), (part, old))


def rotations(sheets: list[Sheet]) -> Iterator[Mistake]:
    """Yield every rotation as a mistake."""
    if sheets[0].problem.variant is None and sheets[0].q.shape[-1] % 2 == 0:
        yield from (Mistake(turn.name, turn.words, turn.outputs) for turn in _turns(sheets))


def of_values(sheets: list[Sheet]) -> Iterator[Mistake]:
    """V is turned by the places of its keys, or the output by the place of its query."""
    if sheets[0].v.shape[-1] % 2 or not isinstance(sheets[0].channels, slice):
        return
    for base in _BASES:
        for interleaved in (False, True):
            for sign in (1, -1):
                one = _Rotation(base, interleaved, sign=sign)
                yield Mistake(
                    "RoPE of V",
                    one.words,
                    lambda sheet, r=one: sheet.attend(
                        sheet.scores, r.of(sheet.v, np.arange(sheet.kv_len))
                    ),
                )
                yield Mistake(
                    "RoPE of the output",
                    one.words,
                    lambda sheet, r=one: r.of(sheet.attend(sheet.scores), sheet.places[:, 0]),
                )


def of_rotation(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """q and k are rotated once more, back, alone, in part, some places off, or by another base."""
    if sheets[0].problem.variant is not None or sheets[0].q.shape[-1] % 2:
        return
    turns = list(_turns(sheets))

    def each(sheet: Sheet, row: int) -> Array:
        found = []
        for turn in turns:
            scores = turn.q(sheet, [row]) @ turn.k(sheet).T
            scores = np.where(sheet.hidden[[row]], -np.inf, scores)[0]
            p = np.exp2(scores - scores.max())
            found.append(p @ sheet.v / p.sum())
        return np.stack(found)

    chosen = {i for _, _, i in of_rows(sheets[:_SCREENED], each, rows=1)}
    yield from best(
        misfit,
        [Mistake(turns[i].name, turns[i].words, turns[i].outputs) for i in sorted(chosen)],
    )


@functools.lru_cache(_TABLES)
def _turned(places: bytes, angles: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return cosines and sines of places times angles, both as the bytes of int64 and float64."""
    angle = np.frombuffer(places, np.int64)[:, None] * np.frombuffer(angles)
    return np.cos(angle), np.sin(angle)


def rotated(x: Array, places: Array, angles: Array, interleaved: bool) -> Array:
    """Return x [n, D] turned by its places [n], each pair of channels by its angle [D / 2]."""
    half = x.shape[-1] // 2
    cos, sin = _turned(np.asarray(places, np.int64).tobytes(), angles.tobytes())
    pairs = (
        (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(half), slice(half, None))
    )
    found = np.empty_like(x)
    a, b = (x[:, pair] for pair in pairs)
    found[:, pairs[0]], found[:, pairs[1]] = a * cos - b * sin, a * sin + b * cos
    return found


ALL = (of_alibi, of_rotation)
