"""Every way to read keys wrongly: a tensor and what happens to it, or to scores and weights."""

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from labkernels.numerics import rounding
from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.grammar import caches, tensors
from labkernels.numerics.verdict.diagnosis.whole_kernel.grammar.terms import (
    Reading,
    Terms,
    by_keys,
    by_masked,
    by_scores,
    by_some_channels,
    by_values,
)
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet
from labkernels.units import LOG2_E

IN_DENOMINATOR = "keys missing in the denominator"
PADDED = "padding: keys of score 0 with the value of another key"
_LEAST = 8  # channels side by side that some keys may have from elsewhere
_FACTORS = (0.125, 0.25, 0.5, math.log(2), 2**-0.5, 2**0.5, LOG2_E, 2.0, 4.0, 8.0, -1.0)


def of_operands(sheet: Sheet) -> Iterator[Reading]:
    """Yield K, V or both, from other places or with other values."""
    yield from _of_operands(
        sheet, (tensors.sources, caches.tokens, caches.addresses, tensors.orders, tensors.values)
    )


def of_scales(sheet: Sheet) -> Iterator[Reading]:
    """Yield K, V or both with the scales of others."""
    yield from _of_operands(sheet, (caches.scales,))


def of_rounded_scales(sheet: Sheet) -> Iterator[Reading]:
    """Yield K, V or both in few bits with the scales of others."""
    of = (functools.partial(caches.scales, fmt=fmt) for fmt in caches.FORMATS)
    for reading in _of_operands(sheet, tuple(of)):
        yield replace(reading, precision=False)


def _of_operands(sheet: Sheet, families: tuple[Callable[..., Any], ...]) -> Iterator[Reading]:
    for name, where, change, cost in itertools.chain(*(of(sheet) for of in families)):
        precision = name.startswith("{} in ") and "order" not in name
        yield Reading(name.format("K", "V"), where, _of_k(change), cost, precision)
        yield Reading(name.format("V", "K"), where, _of_v(change), cost, precision)
        both = "K and V exchanged" if "read for" in name else name.format("K and V")
        yield Reading(both, where, _of_both(change), cost, precision)


def _of_k(change: Callable[..., Any]) -> Callable[..., Any]:
    def of(sheet: Sheet) -> Terms | None:
        k = change(sheet, "k")
        return None if k is None or k.shape != sheet.k.shape else by_keys(sheet, k)

    return of


def _of_v(change: Callable[..., Any]) -> Callable[..., Any]:
    def of(sheet: Sheet) -> Terms | None:
        v = change(sheet, "v")
        return None if v is None or v.shape != sheet.v.shape else by_values(sheet, v)

    return of


def _of_both(change: Callable[..., Any]) -> Callable[..., Any]:
    def of(sheet: Sheet) -> Terms | None:
        k, v = change(sheet, "k"), change(sheet, "v")
        if k is None or v is None or k.shape != sheet.k.shape or v.shape != sheet.v.shape:
            return None
        return by_keys(sheet, k, v)

    return of


def of_weights(sheet: Sheet) -> Iterator[Reading]:
    """Yield weights of keys times a number: in both sums, in the output or in the denominator."""

    def zero(s: Sheet) -> Array:
        return np.zeros_like(s.weights)

    yield Reading("keys left out", "", lambda s: Terms(zero(s), zero(s), s.v), 0.5, scalable=True)
    yield Reading("V read as 0", "", lambda s: Terms(zero(s), s.weights, s.v), 0.5, scalable=True)
    yield Reading(
        IN_DENOMINATOR,
        "",
        lambda s: Terms(s.weights, zero(s), s.v),
        0.5,
        scalable=True,
    )


def of_stale_weights(sheet: Sheet) -> Iterator[Reading]:
    """Yield weights in the second product that are those of a tile before or behind."""
    for size in (8, 16, 32, 64, 128):
        for step in (size, -size):
            if size < sheet.kv_len:
                for below in (False, True):

                    def of(s: Sheet, d: int = step, both: bool = below) -> Terms:
                        at = np.arange(s.kv_len) - d
                        inside = (at >= 0) & (at < s.kv_len)
                        p = s.weights[:, np.where(inside, at, np.arange(s.kv_len))]
                        return Terms(p, p if both else s.weights, s.v)

                    what = "in both sums" if below else "in the output alone"
                    where = f"those of {size} keys {'before' if step > 0 else 'behind'}, {what}"
                    yield Reading("weights are those of another tile", where, of, 1.5)


def of_scores(sheet: Sheet) -> Iterator[Reading]:
    """Yield scores with another factor, another format, without their sign or mask."""
    for factor in _FACTORS:
        yield Reading(
            "wrong scale" if factor > 0 else "scores have the wrong sign",
            f"scores times {factor:.4g}",
            lambda s, f=factor: by_scores(s, f * s.raw),
        )
    yield Reading("scores have no sign", "", lambda s: by_scores(s, np.abs(s.raw)), 1.5)
    yield Reading(
        "scores have no negative values, as after relu",
        "",
        lambda s: by_scores(s, np.maximum(s.raw, 0)),
        1.5,
    )
    for fmt in ("bf16", "fp16"):
        for words, unit in (("scale q k", LOG2_E), ("log2 units", 1.0)):
            yield Reading(
                f"scores rounded to {fmt}",
                f"as {words}",
                lambda s, f=fmt, u=unit: by_scores(s, rounding.round_to(s.raw / u, f) * u),
                1.5,
                precision=True,
            )
    if sheet.hidden.any():
        variant = sheet.problem.variant
        has_window = variant is not None and variant.window_left is not None
        asked = "window or mask" if has_window else "mask"
        yield Reading(
            f"another {asked}: keys that the mask hides", "", lambda s: by_masked(s, s.raw), 0.5
        )
        yield Reading(
            "hidden keys take part with score 0",
            "",
            lambda s: by_masked(s, np.where(s.hidden, 0.0, s.raw)),
            1.0,
        )


def of_sums(sheet: Sheet) -> Iterator[Reading]:
    """Yield scores that are added to those of a tile before, as where no step clears them."""
    for size in (8, 16, 32, 64, 128):
        if size < sheet.kv_len:

            def of(s: Sheet, n: int = size) -> Terms:
                return by_keys(s, s.k + np.concatenate([0 * s.k[:n], s.k[:-n]]))

            where = f"its own and that of key {-size:+d}"
            yield Reading("K is a sum of several keys'", where, of, 1.5)


def of_padding(sheet: Sheet) -> Iterator[Reading]:
    """Yield keys of score 0 behind the last key, with the value of the last or the first key."""
    for words, place in (("the last key", -1), ("the first key", 0)):

        def of(s: Sheet, first: bool = place == 0) -> Terms:
            p = s.weights.copy()
            key = np.zeros(len(p), int) if first else s.n_keys - 1
            p[np.arange(len(p)), key] += np.exp2(-s.scores.max(1))
            return Terms(p, p, s.v)

        yield Reading(PADDED, f"the value is that of {words}", of, 1.0, scalable=True)


def of_formats(sheet: Sheet) -> Iterator[Reading]:
    """Yield K or V in few bits, with a scale that is too large."""
    for fmt, largest in (("e4m3", 448.0), ("e5m2", 57344.0), ("int8", 127.0), ("int4", 7.0)):
        for times in (2.0**k for k in range(1, 15)):
            for which, make in (("k", _of_k), ("v", _of_v)):

                def change(s: Sheet, w: str, f: str = fmt, c: float = times / largest) -> Array:
                    step = c * s.once((w, "largest"), lambda: np.array(s.largest(w)))
                    x = s.keys(w) / np.where(step > 0, step, 1.0)
                    whole = f.startswith("int")
                    return step * (np.rint(x) if whole else rounding.round_to(x, f))

                yield Reading(
                    f"{which.upper()} in {fmt}",
                    f"with a scale {times:g} times too large",
                    make(change),
                    2.0,
                    precision=True,
                )
    yield from _of_own_scales()


def _of_own_scales() -> Iterator[Reading]:
    """Yield K or V in few bits, with the right scale of each key, channel, tile or head."""
    for fmt, largest in (("int8", 127.0), ("int4", 7.0), ("e4m3", 448.0), ("e5m2", 57344.0)):
        for whose, size_of in tensors.SIZES.items():
            for which, make in (("k", _of_k), ("v", _of_v)):

                def change(
                    s: Sheet,
                    w: str,
                    f: str = fmt,
                    most: float = largest,
                    of: Callable[..., Any] = size_of,
                ) -> Array:
                    step = np.maximum(of(s.keys(w)), 1e-300) / most
                    x = s.keys(w) / step
                    return step * (np.rint(x) if f.startswith("int") else rounding.round_to(x, f))

                where = f"with a scale for each {whose}"
                yield Reading(f"{which.upper()} in {fmt}", where, make(change), 2.0, precision=True)


def of_channels(sheet: Sheet) -> Iterator[Reading]:
    """Yield channels of K or V in another order, and readings of some of K's channels."""
    for which, make in (("k", _of_k), ("v", _of_v)):
        for name, where, change, cost in tensors.channels(sheet, sheet.keys(which).shape[1]):
            yield Reading(name.format(which.upper()), where, make(change), cost)
        for name, where, change, cost in tensors.swizzled(sheet, which):
            yield Reading(name.format(which.upper()), where, make(change), cost)
    for name, where, changed, some in tensors.in_some_channels(sheet):
        said = name.format("Q or K" if _of_either(name) else "K")
        yield Reading(said, where, _of_channels(changed, some), 2.0)


def of_parts(sheet: Sheet) -> Iterator[Reading]:
    """Yield readings of several channels of K side by side, for some keys alone."""
    for name, where, changed, some in tensors.in_some_channels(sheet):
        if some.sum() >= _LEAST and np.ptp(np.flatnonzero(some)) + 1 == some.sum():
            said = name.format("Q or K" if _of_either(name) else "K")
            yield Reading(said, where, _of_channels(changed, some), 2.0)


def _of_channels(change: Callable[[Sheet], np.ndarray], some: Array) -> Callable[..., Any]:
    def of(sheet: Sheet) -> Terms | None:
        k = change(sheet)
        if k.shape != sheet.k.shape:
            return None
        return by_some_channels(sheet, sheet.q[:, some], k[:, some], some)

    return of


def _of_either(name: str) -> bool:
    return any(words in name for words in ("left out", "wrong sign", "twice"))
