"""Runs of keys that were left out, read as zeros, or read from elsewhere; they are fitted.

Functions take sheets and a misfit, as those of `fitted` do.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import (
    ROWS,
    Misfit,
    best,
    of_rows,
    run_words,
)
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet
from labkernels.numerics.verdict.diagnosis.words import V_LOST

_RUNS = 1024  # most runs of a row, of which all pairs are tried


def of_range(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """A run of keys is left out, or read as zeros; it starts at a multiple of its length."""
    longest = max(int(sheet.n_keys.max()) for sheet in sheets)
    for size in (1, 8, 16, 32, 64, 128, 256):
        if size >= longest:
            break
        for name, way in (
            ("keys left out", _left_out),
            ("keys read as 0", _zeroed),
            ("V read as 0" if size == 1 else V_LOST, _valueless),
        ):

            def each(
                sheet: Sheet, row: int, size: int = size, way: Callable[..., Any] = way
            ) -> Array:
                return way(sheet, [row], *_blocks(sheet, row, size))

            starts = {i * size for _, _, i in of_rows(sheets, each)}
            yield from best(
                misfit,
                [
                    Mistake(
                        _number(name, size),
                        run_words(first, min(size, longest - first)),
                        _whole(way, first, size),
                    )
                    for first in starts
                ],
            )


def of_other_runs(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """A run of keys is read in place of another: a slot of a page table, an index that wraps."""
    for size in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        pairs = set()
        for sheet in sheets:
            for row in range(min(ROWS, len(sheet.tokens))):
                pairs |= _swapped(sheet, row, size)
        yield from best(
            misfit,
            [
                Mistake(
                    *_elsewhere(sheets[0], to, of, size),
                    _replaced(to * size, of * size, size),
                )
                for to, of in pairs
            ],
        )


def _elsewhere(sheet: Sheet, to: int, of: int, size: int) -> tuple[str, str]:
    """Return the name and place of a page, or of keys if pages lie in order, as if dense."""
    table = sheet.problem.page_table
    where = f"{run_words(to * size, size)} are read from {run_words(of * size, size)}"
    paged = (np.diff(table[sheet.request]) != 1).any()
    if not paged or size != sheet.problem.k_pool.shape[1]:
        return "keys read from elsewhere", where
    pages = table[sheet.request][[of, to]]
    return "wrong page", f"slot {to}: page {pages[0]} for {pages[1]}; {where}"


def _swapped(sheet: Sheet, row: int, size: int) -> set[tuple[int, int]]:
    """Return the two runs of keys that come nearest to a row if one is read for the other."""
    n = int(sheet.n_keys[row])
    if not 2 <= -(-n // size) <= _RUNS:
        return set()
    p, pv, _ = _blocks(sheet, row, size)
    left, given = p.sum() - p, pv.sum(0) - pv
    # the run that was read gives out (l_left + l) = o_left + o: take the nearest pair
    out, weight = sheet.out[row], 1 / sheet.sigma[row]
    asked, offered = (out * left - given) * weight, (pv - out * p) * weight
    squares = (asked**2).sum(1)[:, None] + (offered**2).sum(1) - 2 * asked @ offered.T
    with np.errstate(invalid="ignore", divide="ignore"):
        miss = squares / (left + p.T) ** 2
    np.fill_diagonal(miss, np.inf)
    miss[~np.isfinite(miss)] = np.inf
    to, of = np.unravel_index(int(miss.argmin()), miss.shape)
    return {(int(to), int(of))}


def _replaced(to: int, of: int, size: int) -> Callable[..., Any]:
    def outputs(sheet: Sheet) -> Array | None:
        index = np.arange(sheet.kv_len)
        n = min(size, len(index) - to, len(index) - of)
        if n <= 0:
            return None
        index[to : to + n] = np.arange(of, of + n)
        return sheet.attend(sheet.masked(sheet.raw[:, index]), sheet.v[index])

    return outputs


def _number(name: str, size: int) -> str:
    return name.replace("keys", "key") if size == 1 else name


def _blocks(sheet: Sheet, row: int, size: int) -> tuple[Array, Array, Array]:
    """Return weights, weighted values and key counts of all blocks: [n, 1], [n, Dv], [n, 1]."""
    n = int(sheet.n_keys[row])
    p, starts = sheet.weights[row, :n, None], np.arange(0, n, size)
    counts = np.diff([*starts, n])[:, None]
    return np.add.reduceat(p, starts), np.add.reduceat(p * sheet.v[:n], starts), counts


def _whole(way: Callable[..., Any], first: int, size: int) -> Callable[..., Any]:
    def outputs(sheet: Sheet) -> Array:
        keys = slice(first, first + size)
        p = sheet.weights[:, keys]
        counts = (~sheet.hidden[:, keys]).sum(1, keepdims=True)
        return way(sheet, slice(None), p.sum(1, keepdims=True), p @ sheet.v[keys], counts)

    return outputs


def _left_out(sheet: Sheet, rows: list[int] | slice, p: Array, pv: Array, counts: Array) -> Array:
    l = sheet.weights[rows].sum(1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        left = np.where(l - p > 1e-12 * l, l - p, np.nan)
        return (sheet.truth[rows] * l - pv) / left


def _zeroed(sheet: Sheet, rows: list[int] | slice, p: Array, pv: Array, counts: Array) -> Array:
    l, m = sheet.weights[rows].sum(1, keepdims=True), sheet.scores[rows].max(1, keepdims=True)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return (sheet.truth[rows] * l - pv) / (l - p + counts * np.exp2(-m))


def _valueless(sheet: Sheet, rows: list[int] | slice, p: Array, pv: Array, counts: Array) -> Array:
    return sheet.truth[rows] - pv / sheet.weights[rows].sum(1, keepdims=True)


def of_cleared(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """From some key on, all keys are read as zeros."""
    for name, outputs, each in (
        ("K read as 0", _k_cleared, _k_cleared_from),
        (V_LOST, _v_cleared, _v_cleared_from),
        ("keys read as 0", _both_cleared, _both_cleared_from),
    ):
        starts = {i for _, _, i in of_rows(sheets, each)}
        found = []
        for first in starts:
            said = f"Q read as 0, or {name}" if first == 0 and name == "K read as 0" else name
            found.append(Mistake(said, f"from key {first} on", outputs(first)))
        yield from best(misfit, found)


def _before(sheet: Sheet, row: int) -> tuple[Array, Array, Array, float]:
    """Return sums of weights and weighted values before each key, and two weights of zero keys.

    They are the weight of zero keys in place of all keys from each key on, and that of one.
    """
    n = int(sheet.n_keys[row])
    p, v = sheet.weights[row, :n, None], sheet.v[:n]
    with np.errstate(over="ignore"):
        zero = np.exp2(-sheet.scores[row].max())
    late = np.arange(n, 0, -1)[:, None]
    return np.cumsum(p, 0) - p, np.cumsum(p * v, 0) - p * v, zero * late, zero


def _k_cleared_from(sheet: Sheet, row: int) -> Array:
    l, o, zeros, zero = _before(sheet, row)
    v = sheet.v[: int(sheet.n_keys[row])]
    after = np.cumsum(v[::-1], 0)[::-1]
    with np.errstate(invalid="ignore", over="ignore"):
        return (o + zero * after) / (l + zeros)


def _v_cleared_from(sheet: Sheet, row: int) -> Array:
    return _before(sheet, row)[1] / sheet.weights[row].sum()


def _both_cleared_from(sheet: Sheet, row: int) -> Array:
    l, o, zeros, _ = _before(sheet, row)
    with np.errstate(invalid="ignore", over="ignore"):
        return o / (l + zeros)


def _k_cleared(first: int) -> Callable[..., Any]:
    def outputs(sheet: Sheet) -> Array:
        late = np.arange(sheet.kv_len) >= first
        return sheet.attend(sheet.masked(np.where(late, 0.0, sheet.raw)))

    return outputs


def _v_cleared(first: int) -> Callable[..., Any]:
    return lambda sheet: sheet.attend(
        sheet.scores, sheet.v * (np.arange(sheet.kv_len) < first)[:, None]
    )


def _both_cleared(first: int) -> Callable[..., Any]:
    def outputs(sheet: Sheet) -> Array:
        late = np.arange(sheet.kv_len) >= first
        scores = sheet.masked(np.where(late, 0.0, sheet.raw))
        return sheet.attend(scores, np.where(late[:, None], 0.0, sheet.v))

    return outputs


LATER = (of_cleared, of_other_runs)
