"""What some keys have beside their right values: numbers for each channel of V, or for each row.

The zero point of a page of V adds a vector to the values of its keys, a scale for each channel of a
page multiplies them; both are linear in what is added. A vector that is added to K gives the keys a
factor that differs from row to row. All scopes are tried at once, from sums over their keys.
"""

from collections.abc import Callable, Iterator

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.structure.gathered import Block
from labkernels.numerics.verdict.diagnosis.structure.linear import LEFT, SMALLER_BY
from labkernels.numerics.verdict.diagnosis.structure.weights import Found
from labkernels.numerics.verdict.diagnosis.whole_kernel.grammar import scopes
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import directions

_EACH = 3  # least rows for each number of a channel
_ENDS, _FINE = 32, 512  # most ends of runs of keys, and of runs from or to an end of all keys
_REACH = 4  # least directions in which a part of the keys moves a row
_PERIODS = (12, 24, 48, 96)  # tiles that are no powers of two

_SHARED: dict[str, Callable[[Block], object]] = {
    "": lambda block: 0,
    ", for each KV head": lambda block: block.sheet.kv_head,
    ", for each sample": lambda block: block.sheet.request,
    ", for each KV head and sample": lambda block: (block.sheet.request, block.sheet.kv_head),
}


def _scopes(n: int) -> tuple[list[str], Array]:
    """Return words for sets of keys, and which of n keys they have. Shapes: [S, n]."""
    some, flags = scopes.regular(n)
    key, told, rows = np.arange(n), [one.words for one in some], list(flags)
    for size in _PERIODS:
        for part, which in enumerate(("even", "odd")):
            told.append(f"{which} tiles of {size} keys")
            rows.append(key // size % 2 == part)
    for period in (4, 8):
        for size in (8, 16, 32, 64):
            for rest in range(period):
                told.append(f"tiles t of {size} keys with t % {period} = {rest}")
                rows.append(key // size % period == rest)
    step, fine = max(8, -(-n // _ENDS)), -(-n // _FINE)
    ends = [*range(0, n, step), n]
    runs = [(a, b) for i, a in enumerate(ends) for b in ends[i + 1 :]]
    runs += [run for x in range(fine, n, fine) for run in ((0, x), (x, n))]
    for first, last in dict.fromkeys(runs):
        if (first, last) != (0, n):
            told.append(scopes.run(first, last, n).words)
            rows.append((key >= first) & (key < last))
    return told, np.stack(rows).astype(float)


def _right(block: Block) -> Array:
    return np.where(block.seen, block.p, 0.0)


def of_values(blocks: list[Block], was: float) -> Iterator[Found]:
    """Fit a number for each channel of V, added to the values of some keys or multiplied."""
    longest = max(block.sheet.kv_len for block in blocks)
    told, flags = _scopes(longest)
    for name, of in (
        ("V with an offset of its own in each channel, for some keys", _added),
        ("V by a factor for each channel, for some keys", _times),
    ):
        for shared, label in _SHARED.items():
            parts: dict[object, list[Block]] = {}
            for block in blocks:
                parts.setdefault(label(block), []).append(block)
            if any(sum(len(b.sheet.tokens) for b in some) < _EACH for some in parts.values()):
                continue
            if shared and len(parts) == 1:
                continue
            square, free = np.zeros(len(flags)), 0
            for some in parts.values():
                square = square + _left(some, flags, of)
                rows = sum(len(block.sheet.tokens) for block in some)
                free += (rows - 1) * some[0].v.shape[1]
            rms = np.sqrt(square / max(free, 1))
            i = int(np.argmin(rms))
            if rms[i] <= LEFT and rms[i] * SMALLER_BY <= was:
                yield Found(name, told[i] + shared, float(rms[i]))
                return


def _added(block: Block, flags: Array) -> Array:
    """Return what a row gains by 1 more in a channel of some keys. Shapes: [S, R, 1]."""
    return (_right(block) @ flags[:, : block.sheet.kv_len].T).T[..., None]


def _times(block: Block, flags: Array) -> Array:
    """Return what some keys add to a row. Shapes: [S, R, Dv]."""
    p = _right(block)
    return np.stack([(p * some) @ block.v for some in flags[:, : block.sheet.kv_len]])


def _left(blocks: list[Block], flags: Array, of: Callable[..., Array]) -> Array:
    """Return the sum of z^2 that the best number of each channel leaves. Shapes: [S]."""
    along, power, before = 0.0, 0.0, 0.0
    for block in blocks:
        each = of(block, flags)
        error = block.sheet.out - block.sheet.truth
        inverse = 1 / np.maximum(block.sigma, 1e-300) ** 2
        along = along + (each * (error * inverse)).sum(1)  # [S, Dv]
        power = power + (each**2 * inverse).sum(1)
        before += float((error**2 * inverse).sum())
    gain = np.asarray(along) ** 2 / np.maximum(power, 1e-300)
    return np.maximum(before - gain.sum(-1), 0.0)


def of_keys(blocks: list[Block], was: float) -> Iterator[Found]:
    """Fit a factor of each row on the weights of some keys, which an offset of K gives them."""
    if any(block.sheet.has_sink for block in blocks):
        return
    told, flags = _scopes(max(block.sheet.kv_len for block in blocks))
    square, free = np.zeros(len(flags)), 0
    shown = np.zeros(len(flags))
    for block in blocks:
        some = flags[:, : block.sheet.kv_len]
        p, truth = _right(block), block.sheet.truth
        for row in range(len(p)):
            below = some @ p[row]
            mean = (some * p[row]) @ block.v / np.maximum(below, 1e-300)[:, None]
            z = (mean - truth[row]) / block.sigma[row]  # [S, Dv]
            error = (block.sheet.out[row] - truth[row]) / block.sigma[row]
            power = np.maximum((z**2).sum(1), 1e-300)
            square += np.maximum((error**2).sum() - (z @ error) ** 2 / power, 0.0)
            shown += below * power > 1
            free += len(error) - 1
    rms = np.where(shown > 0, np.sqrt(square / max(free, 1)), np.inf)
    i = int(np.argmin(rms))
    if not (rms[i] <= LEFT and rms[i] * SMALLER_BY <= was):
        return
    if not _determined(blocks, flags[i]):
        return
    name = "K with an offset for some keys, or their weights by a factor of each row's own"
    yield Found(name, f"{told[i]}, or all others", float(rms[i]))


def _determined(blocks: list[Block], some: Array) -> bool:
    """Return whether the keys move rows in more directions than one factor explains."""
    found = []
    for block in blocks:
        p, chosen = _right(block), some[: block.sheet.kv_len] > 0
        for row in range(0, len(p), max(1, len(p) // 2)):
            v = block.v - block.sheet.truth[row]
            both = (directions(p[row, x], v[x], block.sigma[row]) for x in (chosen, ~chosen))
            found.append(min(both))
    return bool(np.median(found) >= _REACH)


ALL = (of_values, of_keys)
