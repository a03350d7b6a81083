"""Keys read in another order: at an offset, in reverse, around a ring, or every n-th.

Functions take sheets and a misfit, as those of `fitted` do. Some rows select the offsets, periods
or rings that come nearest; the one that fits all sheets best is then judged.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit, best, of_rows
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet

_PERIODS = 64  # largest period in keys that is tried
_BLOCKS = (2, 4, 8, 16, 32, 64, 128, 256)
_LENGTHS = 512  # of a ring that are tried: of more keys, only round ones
_TENSORS = ("V", "K", "K and V")


def of_offset(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Keys or values are read some places off; beyond the ends they wrap, stop or are zeros."""
    for what, parts in (("V", _of_values), ("K", _of_keys), ("K and V", _of_both)):

        def each(sheet: Sheet, row: int, parts: Callable[..., Any] = parts) -> Array:
            return _at_offsets(*parts(sheet, row))

        found = set()
        for sheet, _, i in of_rows(sheets, each):
            way, place = divmod(i, 2 * sheet.kv_len - 1)
            step, n = place - sheet.kv_len + 1, sheet.kv_len
            found.add((step - n * round(step / n) if way == 0 else step, way))  # n is a whole turn
        yield from best(
            misfit,
            [_at_offset(what, step, way) for step, way in sorted(found) if step],
        )


def _at_offset(what: str, step: int, way: int) -> Mistake:
    name = f"{what} read at an offset"
    if what == "K and V":
        name = "keys read at an offset"
    elif abs(step) == 1:
        name = f"{what} of the key {'before' if step > 0 else 'after'}"
    beyond = ("", ", those beyond the end the last there", ", those beyond the end zeros")[way]
    index = (
        lambda n: (np.arange(n) - step) % n,
        lambda n: np.clip(np.arange(n) - step, 0, n - 1),
        lambda n: np.arange(n) - step,
    )[way]
    return Mistake(name, f"key j reads key j {-step:+d}{beyond}", _reading(what, index))


def _at_offsets(a: Array, b: Array, zero: Array) -> Array:
    """Return the sums over j of a_j b_(j - s) for every s, if b wraps, stops, or is 0 outside.

    Shapes: a [L, 1] or [L, Dv + 1], b alike; zero, b where there are zeros -> [3 (2 L - 1), Dv]
    """
    n = len(a)
    spectrum = np.fft.rfft(a, 2 * n, axis=0) * np.fft.rfft(b, 2 * n, axis=0).conj()
    inside = np.roll(np.fft.irfft(spectrum, 2 * n, axis=0), n - 1, axis=0)[: 2 * n - 1]
    before = np.concatenate([np.zeros((1, a.shape[1])), np.cumsum(a, 0)])  # sums of the first s
    none = np.zeros((n - 1, a.shape[1]))
    under = np.concatenate([none, before[:n]])  # weight of keys that read below 0
    over = np.concatenate([(before[-1] - before)[1:n], none, none[:1]])  # beyond the last
    wrapped = inside.copy()
    wrapped[n:] += inside[: n - 1]
    wrapped[: n - 1] += inside[n:]
    found = np.concatenate(
        [wrapped, inside + under * b[0] + over * b[-1], inside + (under + over) * zero]
    )
    return found[:, :-1] / found[:, -1:]


def _with_ones(values: Array) -> Array:
    return np.concatenate([values, np.ones((len(values), 1))], 1)


def _of_values(sheet: Sheet, row: int) -> tuple[Array, Array, Array]:
    zero = np.zeros(sheet.v.shape[1] + 1)
    zero[-1] = 1.0
    return sheet.weights[row][:, None], _with_ones(sheet.v), zero


def _of_keys(sheet: Sheet, row: int) -> tuple[Array, Array, float]:
    m = sheet.raw[row].max()
    seen = ~sheet.hidden[row][:, None]
    return seen * _with_ones(sheet.v), np.exp2(sheet.raw[row] - m)[:, None], np.exp2(-m)


def _of_both(sheet: Sheet, row: int) -> tuple[Array, Array, Array]:
    m = sheet.raw[row].max()
    t = np.exp2(sheet.raw[row] - m)[:, None]
    zero = np.zeros(sheet.v.shape[1] + 1)
    zero[-1] = np.exp2(-m)
    return (~sheet.hidden[row][:, None]).astype(float), t * _with_ones(sheet.v), zero


def _reading(what: str, index_of: Callable[[int], np.ndarray]) -> Callable[..., Any]:
    """Return attention to keys by another index; outside of the keys there are zeros."""

    def outputs(sheet: Sheet) -> Array:
        index = index_of(sheet.kv_len)
        inside = (index >= 0) & (index < sheet.kv_len)
        index = np.where(inside, index, 0)
        scores, v = sheet.scores, sheet.v
        if "K" in what:
            scores = sheet.masked(np.where(inside, sheet.raw[:, index], 0.0))
        if "V" in what:
            v = np.where(inside[:, None], v[index], 0.0)
        return sheet.attend(scores, v)

    return outputs


def of_order(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Keys come in an order with a rule: in reverse, in pairs, halves of blocks swapped."""
    rules: dict[str, Callable[..., Any]] = {
        "in reverse": lambda n: np.arange(n)[::-1],
        "even ones, then odd ones": lambda n: np.argsort(np.arange(n) % 2, kind="stable"),
        "halves in turn": lambda n: np.arange(n) // 2 + np.arange(n) % 2 * (-(-n // 2)),
    }
    for size in _BLOCKS:
        rules[f"in reverse within blocks of {size}"] = lambda n, s=size: _within(
            n, s, lambda at, s=s: s - 1 - at
        )
        rules[f"halves of blocks of {size} swapped"] = lambda n, s=size: _within(
            n, s, lambda at, s=s: (at + s // 2) % s
        )
        rules[f"the first half of each block of {size} twice"] = lambda n, s=size: _within(
            n, s, lambda at, s=s: at % (s // 2)
        )
        rules[f"the first half of each block of {size} in pairs"] = lambda n, s=size: _within(
            n, s, lambda at: at // 2
        )
        for rows in (2, 4, 8):
            if size > 2 * rows:
                rules[f"blocks of {size} transposed as {rows} x {size // rows}"] = (
                    lambda n, s=size, r=rows: _within(
                        n, s, lambda at, s=s, r=r: at % r * (s // r) + at // r
                    )
                )
    for where, index in rules.items():
        twice = where.startswith("the first half")
        for what in _TENSORS:
            tensor = "keys" if what == "K and V" else what
            name = "keys read twice" if twice else f"{tensor} read in another order"
            yield Mistake(name, f"{what}: {where}", _reading(what, index))


def _within(n: int, size: int, place: Callable[..., Any]) -> np.ndarray:
    """Return an index whose whole blocks are reordered; a last, partial block stays as it is."""
    key = np.arange(n)
    moved = key - key % size + place(key % size)
    return np.where(key < n - n % size, moved, key)


def of_index(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """A key's index wraps, stops, loses or swaps bits, is halved or doubled."""
    longest = max(sheet.kv_len for sheet in sheets)
    rules: dict[str, Callable[..., Any]] = {}
    step = 1 << max(0, (longest - 1) // _LENGTHS).bit_length()
    for n in range(step, longest, step):
        rules[f"key j is key j % {n}"] = lambda at, n=n: at % n
        rules[f"key j is key min(j, {n})"] = lambda at, n=n: np.minimum(at, n)
    for bit in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        rules[f"key j is key j xor {bit}"] = lambda at, n=bit: at ^ n
        rules[f"key j is key j without bit {bit}"] = lambda at, n=bit: at & ~n
        rules[f"key j is key j with bit {bit}"] = lambda at, n=bit: at | n
        rules[f"key j is key j xor (j / {bit} % 8)"] = lambda at, n=bit: at ^ (at // n % 8)
        rules[f"key j is key j - j % {bit}"] = lambda at, n=bit: at - at % n
    for n in (2, 3, 4, 8, 16):
        rules[f"key j is key {n} j % L"] = lambda at, n=n: n * at % len(at)
        rules[f"key j is key j / {n}"] = lambda at, n=n: at // n
    words = list(rules)
    places = [(what, i) for what in _TENSORS for i in range(len(words))]

    def each(sheet: Sheet, row: int) -> Array:
        key, end = np.arange(sheet.kv_len), sheet.kv_len - 1
        index = np.stack([np.minimum(rule(key), end) for rule in rules.values()])
        hidden, p = sheet.hidden[row], sheet.weights[row]
        t = np.exp2(sheet.raw[row] - sheet.raw[row].max())
        other = np.where(hidden, 0.0, t[index])
        # a rule's sums over keys become sums over the keys that it reads
        flat = (np.arange(len(words))[:, None] * len(key) + index).ravel()
        size = index.size
        of_v = np.bincount(flat, np.broadcast_to(p, index.shape).ravel(), size)
        both = np.bincount(flat, other.ravel(), size)
        sums = [
            (of_v.reshape(index.shape) @ sheet.v, np.full(len(words), p.sum())),
            (other @ sheet.v, other.sum(1)),
            (both.reshape(index.shape) @ sheet.v, other.sum(1)),
        ]
        return np.concatenate([o / l[:, None] for o, l in sums])

    chosen = sorted({i for _, _, i in of_rows(sheets[:2], each, rows=2)})
    found: dict[str, list[Mistake]] = {what: [] for what in _TENSORS}
    for i in chosen:
        what, at = places[i]
        rule, of_all = rules[words[at]], what == "K and V"
        again = "keys read again" if "%" in words[at] else "keys read from elsewhere"
        name = again if of_all else f"{what} read from other keys"
        found[what].append(Mistake(name, words[at], _reading(what, _inside(rule))))
    for mistakes in found.values():  # without a mask, V and K in another order are the same
        yield from best(misfit, mistakes)


def _inside(rule: Callable[..., Any]) -> Callable[..., Any]:
    return lambda n: np.minimum(rule(np.arange(n)), n - 1)


def of_period(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Every n-th key is left out, has its value read as 0, or is the only one read."""
    periods = [(n, r) for n in range(2, _PERIODS + 1) for r in range(n)]

    def each(sheet: Sheet, row: int) -> Array:
        p, v = sheet.weights[row], sheet.v
        terms = np.concatenate([p[:, None] * v, p[:, None]], 1)
        total, found = terms.sum(0), []
        for n in range(2, _PERIODS + 1):
            short = -len(p) % n
            padded = np.concatenate([terms, np.zeros((short, terms.shape[1]))])
            found.append(padded.reshape(-1, n, terms.shape[1]).sum(0))
        part = np.concatenate(found)
        rest = total - part
        return np.concatenate(
            [
                rest[:, :-1] / rest[:, -1:],
                part[:, :-1] / part[:, -1:],
                rest[:, :-1] / total[-1],
            ]
        )

    ways = ("keys left out", "keys left out", "V read as 0")
    places = {divmod(i, len(periods)) for _, _, i in of_rows(sheets, each)}
    yield from best(
        misfit,
        [
            Mistake(
                ways[way],
                f"{'all but ' * (way == 1)}every key j with j % {periods[i][0]} = {periods[i][1]}",
                _periodic(way, *periods[i]),
            )
            for way, i in sorted(places)
        ],
    )


def _periodic(way: int, period: int, residue: int) -> Callable[..., Any]:
    def outputs(sheet: Sheet) -> Array:
        chosen = np.arange(sheet.kv_len) % period == residue
        if way == 2:
            return sheet.attend(sheet.scores, np.where(chosen[:, None], 0.0, sheet.v))
        gone = chosen if way == 0 else ~chosen
        scores = np.where(gone, -np.inf, sheet.scores)
        none_left = np.isinf(scores).all(1, keepdims=True)
        return sheet.attend(np.where(none_left, sheet.scores, scores))

    return outputs


ALL = (of_offset, of_period, of_order, of_index)
