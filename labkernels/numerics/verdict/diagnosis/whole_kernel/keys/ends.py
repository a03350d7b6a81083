"""Mistakes in where a row's keys begin and end: windows, diagonals, lengths; all are fitted.

Functions take sheets and a misfit, as those of `fitted` do.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import (
    Misfit,
    best,
    of_rows,
    run_words,
)
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet


def of_last_keys(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """The last keys are left out: some of every row, or all from one key on."""

    def without_the_last(sheet: Sheet, row: int) -> Array:
        n = int(sheet.n_keys[row])
        return _running_means(sheet.weights[row, :n], sheet.v[:n])

    counts, ends = set(), set()
    for sheet, row, i in of_rows(sheets, without_the_last):
        counts.add(int(sheet.n_keys[row]) - i - 1)
        ends.add(i + 1)
    name = "keys at the end left out"
    found = [
        Mistake(
            name,
            f"the last {n} of every row",
            _seeing(lambda sheet, key, n=n: (key < sheet.n_keys[:, None] - n) | (key == 0)),
        )
        for n in counts
    ]
    found += [
        Mistake(
            name,
            f"from key {n} on",
            _seeing(lambda sheet, key, n=n: np.broadcast_to(key < n, sheet.hidden.shape)),
        )
        for n in ends
    ]
    yield from best(misfit, found)


def of_diagonal(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """The causal mask is some keys off, or was not asked for."""
    if max(len(np.unique(sheet.places)) for sheet in sheets) < 2:
        return

    def ending_at(sheet: Sheet, row: int) -> Array:
        p = np.exp2(sheet.raw[row] - sheet.raw[row].max())
        return _running_means(p, sheet.v)

    of_place, of_query = set(), set()
    for sheet, row, i in of_rows(sheets, ending_at):
        place = int(sheet.places[row, 0])
        of_place.add(i - place)
        of_query.add(i - place + _ahead(sheet))
    causal = sheets[0].problem.causal
    found = [
        Mistake(
            ("keys that the mask hides" if step > 0 else "causal mask is strict")
            if causal
            else "a causal mask that was not asked for",
            f"a query sees keys up to its own {step:+d}",
            _up_to(lambda sheet, n=step: sheet.places + n),
        )
        for step in sorted(of_place)
        if step or not causal
    ]
    found += [
        Mistake(
            "causal mask aligned to the first key"
            if causal
            else "a causal mask that was not asked for",
            "query i sees keys 0 to i" + f" {step:+d}" * (step != 0),
            _up_to(lambda sheet, n=step: sheet.places - _ahead(sheet) + n),
        )
        for step in sorted(of_query)
        if any(_ahead(sheet) for sheet in sheets)
    ]
    yield from best(misfit, found)


def _ahead(sheet: Sheet) -> int:
    """Return the number of keys before the first query's own."""
    ends = sheet.problem.q_ends
    return sheet.kv_len - int(ends[sheet.request + 1] - ends[sheet.request])


def _up_to(last: Callable[..., Any]) -> Callable[..., Any]:
    """Return attention to keys up to last(sheet) [R, 1], hidden ones too; at least to the first."""

    def outputs(sheet: Sheet) -> Array:
        key = np.arange(sheet.kv_len)
        return sheet.attend(np.where(key <= np.maximum(last(sheet), 0), sheet.raw, -np.inf))

    return outputs


def of_first_keys(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """The first keys are left out: up to some key, or by a window before the last or own key."""

    def without_the_first(sheet: Sheet, row: int) -> Array:
        tail = slice(int(sheet.n_keys[row]) - 1, None, -1)
        return _running_means(sheet.weights[row][tail], sheet.v[tail])

    widths, own, firsts = set(), set(), set()
    for sheet, row, i in of_rows(sheets, without_the_first):
        first = int(sheet.n_keys[row]) - i - 1
        widths.add(i + 1)
        own.add(int(sheet.places[row, 0]) - first)
        firsts.add(first)
    found = [
        Mistake(
            "window that was not asked for",
            f"the last {n} keys",
            _seeing(lambda sheet, key, n=n: key >= sheet.n_keys[:, None] - n),
        )
        for n in sorted(widths)
    ]
    found += [
        Mistake(
            "window that was not asked for",
            f"no keys more than {n} before the query's own",
            _seeing(lambda sheet, key, n=n: key >= sheet.places - n),
        )
        for n in sorted(own)
        if n >= 0
    ]
    found += [
        Mistake(
            "keys left out",
            run_words(0, n),
            _seeing(lambda sheet, key, n=n: (key >= n) | (sheet.n_keys[:, None] <= n)),
        )
        for n in sorted(firsts)
    ]
    yield from best(misfit, found)


def of_sinks_and_window(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """A row sees a window of its last keys, and the first keys."""
    for kept in (1, 4, 16, 64, 128):

        def without_a_middle(sheet: Sheet, row: int, kept: int = kept) -> Array:
            tail = slice(int(sheet.n_keys[row]) - 1, kept - 1, -1)
            p, v = sheet.weights[row], sheet.v
            sums = np.cumsum(p[tail, None] * v[tail], 0) + p[:kept] @ v[:kept]
            with np.errstate(invalid="ignore", divide="ignore"):
                return (sums / (np.cumsum(p[tail]) + p[:kept].sum())[:, None])[:-1]

        widths = {i + 1 for _, _, i in of_rows(sheets, without_a_middle)}
        yield from best(
            misfit,
            [
                Mistake(
                    "window that was not asked for",
                    f"the last {n} keys and the first {kept}",
                    _seeing(
                        lambda sheet, key, n=n, k=kept: (
                            (key >= sheet.n_keys[:, None] - n) | (key < k)
                        )
                    ),
                )
                for n in sorted(widths)
            ],
        )


def of_longer(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Every row sees some keys more; behind the last key are those of the next request, or zeros.

    A causal mask alone would stop at the last key.
    """
    if sheets[0].problem.variant is not None:
        return
    found = []
    for more in (1, 2, 4, 8):
        for words, source in (("the next request's first keys", 1), ("its own first keys", 0)):
            where = f"{more} more; behind the last key are {words}"
            found.append(
                Mistake(
                    "keys past the end, or keys that the mask hides",
                    where,
                    lambda sheet, n=more, step=source: _longer(sheet, n, step),
                )
            )
    yield from best(misfit, found)


def _longer(sheet: Sheet, more: int, step: int) -> Array:
    request = (sheet.request + step) % sheet.problem.batch
    k, v = (sheet.keys(which, request=request)[:more] for which in "kv")
    scores = np.concatenate([sheet.raw, sheet.q @ k.T], 1)
    seen = np.arange(scores.shape[1]) < sheet.n_keys[:, None] + more
    return sheet.attend(np.where(seen, scores, -np.inf), np.concatenate([sheet.v, v]))


def _seeing(see: Callable[..., Any]) -> Callable[..., Any]:
    """Return attention to the keys for which see(sheet, key) holds, among those that a row sees."""

    def outputs(sheet: Sheet) -> Array:
        return sheet.attend(np.where(see(sheet, np.arange(sheet.kv_len)), sheet.scores, -np.inf))

    return outputs


def _running_means(p: Array, v: Array) -> Array:
    """Return the running means of the first 1, 2, ... keys, but not of all keys."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return (np.cumsum(p[:, None] * v, 0) / np.cumsum(p)[:, None])[:-1]


ALL = (of_last_keys, of_first_keys, of_diagonal, of_sinks_and_window, of_longer)
