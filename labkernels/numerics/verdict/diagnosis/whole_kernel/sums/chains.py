"""Running sums that do not follow their maximum, and partial results with wrong weights.

Functions take sheets and a misfit, as those of `fitted` do.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import CLEARLY, Misfit, best
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet, part
from labkernels.numerics.verdict.diagnosis.words import BIAS_OF_PARTS

_BLOCKS = (8, 16, 32, 64, 128, 256)
_SHOWN = 4  # about so many rows of a sheet tell how many directions rows have
_FREE = 0.25  # most fitted weights of a row per channel
OTHER_TILES = "keys left out, other tiles in each row"
_SIZES = (512, 256, 128, 96, 80, 64, 48, 40, 32, 24, 16)


def _kept(tops: Array) -> Array:
    return tops[..., -1:] - tops


def _late(tops: Array) -> Array:
    """Return log2 factors if every step but the first two rescales as the step before should."""
    moves = np.diff(tops, axis=-1, prepend=tops[..., :1])
    late = np.concatenate([np.zeros_like(moves[..., :1]), moves[..., :-1]], -1)
    late[..., 1:2] = 0.0
    after = np.cumsum(late[..., ::-1], -1)[..., ::-1] - late
    return _kept(tops) - after


def _once(tops: Array) -> Array:
    """Return log2 factors if the sums follow the last move of the maximum alone."""
    step = np.arange(tops.shape[-1])
    return np.where(step < step[-1], tops[..., -2:][..., :1] - tops, 0.0)


_WAYS: dict[str, tuple[Callable[..., Any] | None, Callable[..., Any] | None]] = {
    "o not rescaled when the maximum moves": (_kept, None),
    "l not rescaled when the maximum moves": (None, _kept),
    "o and l not rescaled when the maximum moves": (_kept, _kept),
    "o rescaled by a stale maximum": (_late, None),
    "l rescaled by a stale maximum": (None, _late),
    "o and l rescaled by a stale maximum": (_late, _late),
    "o not rescaled, but for the last move of the maximum": (_once, None),
}


def of_rescales(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """o, l or both miss the factor of a maximum that moves, in blocks of keys."""
    longest = max(sheet.kv_len for sheet in sheets)
    for name, (of_o, of_l) in _WAYS.items():
        yield from best(
            misfit,
            [
                Mistake(name, f"blocks of {n} keys", _rescaled(n, of_o, of_l))
                for n in _BLOCKS
                if n < longest
            ],
        )


def _rescaled(
    size: int, of_o: Callable[..., Any] | None, of_l: Callable[..., Any] | None
) -> Callable[..., Any]:
    def outputs(sheet: Sheet) -> Array | None:
        if sheet.has_sink:
            return None
        label = np.arange(sheet.kv_len) // size
        starts = np.arange(0, sheet.kv_len, size)
        tops = np.maximum.accumulate(np.maximum.reduceat(sheet.scores, starts, axis=1), 1)
        tops = np.where(np.isinf(tops), sheet.scores[:, :1], tops)

        def weights(way: Callable[..., Any] | None) -> Array:
            return sheet.weights * (np.exp2(way(tops))[:, label] if way else 1.0)

        return weights(of_o) @ sheet.v / weights(of_l).sum(1, keepdims=True)

    return outputs


def of_weights(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Right partial results are joined with wrong weights, which are fitted for each row."""
    most = _FREE * sheets[0].v.shape[1]
    longest = max(sheet.kv_len for sheet in sheets)
    # values in few directions are explained by weights of any parts
    some = [part(s, slice(None, None, max(1, len(s.tokens) // _SHOWN))) for s in sheets]
    most = min(most, _FREE * float(np.median(np.concatenate([s.reach for s in some]))))
    found = [
        Mistake(
            f"splits merged with wrong weights, or tiles rescaled wrongly, or {BIAS_OF_PARTS}",
            f"parts of {n} keys that are right each",
            _joined(n),
            vague=True,
        )
        for n in _SIZES
        if n < longest <= n * most
    ]
    before = misfit(lambda sheet: None)
    for mistake in best(misfit, found):
        if misfit(mistake.outputs, limit=before / CLEARLY) * CLEARLY <= before:
            yield mistake
    lost = [
        Mistake(OTHER_TILES, f"tiles of {n} keys", _joined(n, whole=True), cost=2.0)
        for n in _SIZES
        if n < longest <= n * most
    ]
    yield from best(misfit, lost)


def _joined(size: int, *, whole: bool = False) -> Callable[..., Any]:
    def outputs(sheet: Sheet) -> Array:
        starts = np.arange(0, sheet.kv_len, size)
        out = np.empty_like(sheet.out)
        for row, p in enumerate(sheet.weights):
            parts = np.add.reduceat(p[:, None] * sheet.v, starts, axis=0)
            sums = np.add.reduceat(p, starts)
            parts = parts[sums > 0] / sums[sums > 0, None]
            some, inverse = slice(None, None, 2), 1 / sheet.sigma[row]
            own = (parts * inverse)[:, some].T
            weights = np.linalg.lstsq(own, (sheet.out[row] * inverse)[some], rcond=1e-12)[0]
            weights = weights / weights.sum()  # a merge divides by the sum of its weights
            if whole:  # each part has its right weight or none
                own_sums = sums[sums > 0]
                times = weights / own_sums
                there = times > times.max() / 2
                weights = there * own_sums / (there * own_sums).sum()
            out[row] = weights @ parts
        return out

    return outputs


ALL = (of_rescales,)
LAST = (of_weights,)
