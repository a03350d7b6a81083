"""Keys that are turned on by some places, for a part of the keys, and queries by any places.

A key that is turned by d places has a score that is linear in the cosines and sines of d angles. So
one product gives the scores of all keys for all d, and a rule of places is a look into this table.
Functions take sheets and a misfit, as those of `fitted` do.
"""

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.products import parts, screens
from labkernels.numerics.verdict.diagnosis.whole_kernel.scores.places import Angles
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Cut, Sheet

_BASES = (1e4, 5e5, 1e6)
_FAR = 160  # most places that a key or query is turned on
_STEPS = (1, 2, 3, 4, 8, 16, 24, 32, 48, 64, 96, 128)
_SIZES = (8, 16, 32, 64, 128)
_JUDGED = 4
_DIRECTIONS = 16  # of the screen's channels
_NUMBERS = 2**26  # numbers of a table: with more, it would take seconds

Rules = Callable[[int], Iterator[tuple[str, np.ndarray]]]  # of n keys: words, and turns [n]


def _angles() -> Iterator[Angles]:
    for base, share, interleaved in itertools.product(_BASES, (1.0, 0.5), (False, True)):
        yield Angles(base, interleaved, share)


def _table(q: Array, k: Array, angles: Angles, far: int = _FAR) -> np.ndarray:
    """Return the scores of a query [D] and keys turned by -far to far places: [L, 2 far + 1]."""
    n = int(len(q) * angles.share) // 2 * 2
    half = n // 2
    first, second = slice(half), slice(half, n)
    if angles.interleaved:
        first, second = slice(0, n, 2), slice(1, n, 2)
    along = q[first] * k[:, first] + q[second] * k[:, second]
    across = q[second] * k[:, first] - q[first] * k[:, second]
    turn = np.arange(-far, far + 1) * angles.of(half)[:, None]
    rest = k[:, n:] @ q[n:]
    return along @ np.cos(turn) + across @ np.sin(turn) + rest[:, None]


def _places(n: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield by how many places keys are turned on, as far as the table goes. Shapes: [n]."""
    key = np.arange(n)
    for size in _SIZES:
        for words, d in (
            (f"x % {size}", key % size),
            (f"x / {size}", key // size),
            (f"x - x % {size}", key // size * size),
            (f"{size} - x % {size}", size - key % size),
        ):
            yield f"by {words}", d
            yield f"back by {words}", -d
    for step in _STEPS:
        yield f"by {step}", 0 * key + step
        yield f"back by {step}", 0 * key - step


def _some(n: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield parts of the keys. Shapes: [n], bool."""
    yield "", np.ones(n, bool)
    whole = parts.tiles(Cut(-1), n)
    yield from ((f"{words} of all", keys) for words, keys in parts.places(whole) if words)
    for size in _SIZES:
        if 2 * size < n:
            yield from itertools.islice(parts.scopes(parts.tiles(Cut(size), n), whole=False), 1, 40)


def _rules(n: int) -> Iterator[tuple[str, np.ndarray]]:
    some = list(_some(n))
    for (words, d), (which, keys) in itertools.product(_places(n), some):
        turned = np.where(keys, d, 0)
        if np.abs(turned).max() <= _FAR:
            yield parts.said(words, which), turned


def _rings(n: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield by how many places keys at places of a ring of any size are turned on. Shapes: [n]."""
    x = np.arange(n)
    for size in range(2, n):
        for words, place in (
            (f"x % {size}", x % size),
            (f"min(x, {size})", np.minimum(x, size)),
            (f"max(x - {size}, 0)", np.maximum(x - size, 0)),
            (f"x - {size}, if x is not less", np.where(x >= size, x - size, x)),
            (f"(x + {size}) % L, as in a ring", (x + size) % n),
            (f"x % {size}, of a ring that ends with the last key", (x - n) % size),
        ):
            yield f"to the place {words}", place - x


def of_keys(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Keys are turned on, or back, by some places, all of them or a part."""
    rows = _rows(sheets)
    if rows and rows[0].keys * (2 * _FAR + 1) * sheets[0].k.shape[1] <= _NUMBERS:
        yield from _of_rules(rows, _rules, _FAR)


def of_rings(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Keys are turned to the places of slots of a ring, or as places that begin anew."""
    rows = _rows(sheets)
    if rows and rows[0].keys >= 4 and 6 * rows[0].keys ** 2 * _DIRECTIONS <= _NUMBERS * 4:
        yield from _of_rules(rows, _rings, rows[0].keys)


def _rows(sheets: list[Sheet]) -> list[screens.Rows]:
    """Return the rows that are looked at; none where a variant or odd channels forbid it."""
    if sheets[0].problem.variant is not None or sheets[0].k.shape[1] % 2:
        return []
    return screens.rows_of(sheets)


def _of_rules(rows: list[screens.Rows], rules: Rules, far: int) -> Iterator[Mistake]:
    """Yield the nearest rules by which keys are turned, each by at most `far` places."""
    first, *others = rows
    words, places = zip(*rules(first.keys), strict=True)
    at, key = np.stack(places) + far, np.arange(first.keys)
    every = list(_angles())
    near = screens.Nearest(_JUDGED, others)

    def left(row: screens.Rows, angles: Angles, some: Array) -> Array:
        table = _table(row.sheet.q[0], row.sheet.k, angles, far)
        return row.of_products(table[key, some])

    for i, angles in enumerate(every):
        points = np.stack(np.broadcast_arrays(i, np.arange(len(at))), 1)
        near.add(left(first, angles, at), i * len(at), points)

    def missed(row: screens.Rows, points: Array) -> Array:
        found = np.zeros(len(points))
        for i in np.unique(points[:, 0]).tolist():
            mine = points[:, 0] == i
            found[mine] = left(row, every[i], at[points[mine, 1]])
        return found

    for number in near.best(missed):
        i, j = divmod(number, len(at))
        yield Mistake(
            "RoPE of K by wrong places",
            f"key x is turned {words[j]}; {every[i].words}",
            lambda sheet, a=every[i], w=words[j]: _turned(sheet, rules, a, w),
            cost=1.5,
        )


def _turned(sheet: Sheet, rules: Rules, angles: Angles, words: str) -> Array | None:
    at = next((d for said, d in rules(sheet.kv_len) if said == words), None)
    if at is None:
        return None
    k = angles.turned(sheet.k, at)
    return sheet.attend(sheet.masked(sheet.q @ k.T))


def of_runs(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Keys from one on, or up to one, are turned on or back by one number of places, any one."""
    rows = _rows(sheets)
    if not rows or rows[0].keys * (2 * _FAR + 1) * _DIRECTIONS > _NUMBERS:
        return
    first, *others = rows
    n, every = first.keys, list(_angles())
    near = screens.Nearest(_JUDGED, others)
    for i, angles in enumerate(every):
        axes = np.meshgrid(np.arange(-_FAR, _FAR + 1), np.arange(1, n), (0, 1), indexing="ij")
        points = np.stack([0 * axes[0] + i, *axes], -1).reshape(-1, 4)
        near.add(_left_of_runs(first, angles).ravel(), i * len(points), points)

    def missed(row: screens.Rows, points: Array) -> Array:
        scores = [_run(row.sheet, every[i], d, start, late)[0] for i, d, start, late in points]
        return row.of_products(np.stack(scores)) if row.keys == n else np.zeros(len(points))

    count = (2 * _FAR + 1) * (n - 1) * 2
    for number in near.best(missed):
        i, rest = divmod(number, count)
        d, start, late = rest // (2 * (n - 1)) - _FAR, rest // 2 % (n - 1) + 1, rest % 2
        which = f"keys from {start} on" if late else f"keys up to {start - 1}"
        yield Mistake(
            "RoPE of K by wrong places",
            f"{which} are turned {'on' if d > 0 else 'back'} by {abs(d)}; {every[i].words}",
            lambda sheet, run=(every[i], d, start, late): sheet.attend(
                sheet.masked(_run(sheet, *run))
            ),
            cost=2.0,
        )


def _run(sheet: Sheet, angles: Angles, step: int, start: int, late: int) -> Array:
    """Return the scores of all rows if a run of keys is turned on by some places."""
    key = np.arange(sheet.kv_len)
    turned = np.where((key >= start) == bool(late), step, 0)
    return sheet.q @ angles.turned(sheet.k, turned).T


def _left_of_runs(row: screens.Rows, angles: Angles) -> np.ndarray:
    """Return mean z^2 of a row by steps, first keys and early or late keys. Shapes: [S, n - 1, 2].

    Sums over the turned keys up to each one, and over the others behind it, give all runs.
    """
    sheet = row.sheet
    table = _table(sheet.q[0], sheet.k, angles)
    table = np.where(sheet.hidden[0][:, None], -np.inf, table)
    top = max(float(table.max()), float(sheet.scores.max()))
    right = np.exp2(sheet.scores[0] - top)
    values = np.concatenate([row.values[:-1], np.ones((row.keys, 1))], 1)
    own = np.cumsum(right[:, None] * values, 0)
    found = np.empty((table.shape[1], row.keys - 1, 2))
    for i, p in enumerate(np.exp2(table - top).T):
        other = np.cumsum(p[:, None] * values, 0)
        for late, (a, b) in enumerate(((other, own), (own, other))):
            sums = a[:-1] + b[-1] - b[:-1]
            found[i, :, late] = row.missed(sums[:, :-1], sums[:, -1])
    return found


def of_queries(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Each query is turned on by a number of places of its own, which is fitted."""
    rows = _rows(sheets)
    if not rows or rows[0].keys * (2 * _FAR + 1) * sheets[0].k.shape[1] > _NUMBERS:
        return
    left = []
    for i, angles in enumerate(_angles()):
        each = [row.of_products(_table(row.sheet.q[0], row.sheet.k, angles).T) for row in rows]
        left.append((sum(float(one.min()) for one in each), i, angles))
    _, _, angles = min(left, key=lambda one: one[:2])
    told = [f"{row.sheet.queries[0]} by {_best(row.sheet, 0, angles):+d}" for row in rows]
    where = f"query {', '.join(told)}, each by its own number; {angles.words}"
    name = "RoPE of Q by wrong places"
    yield Mistake(name, where, lambda sheet: _by_row(sheet, angles), cost=2.0)


def _best(sheet: Sheet, row: int, angles: Angles) -> int:
    """Return by how many places a query is turned, as its outputs in every second channel say.

    A query that is turned on has the scores of keys that are turned back.
    """
    scores = _table(sheet.q[row], sheet.k, angles).T
    scores = np.where(sheet.hidden[row], -np.inf, scores)
    p = np.exp2(scores - scores.max(1, keepdims=True))
    some = slice(None, None, 2)
    given = p @ sheet.v[:, some] / p.sum(1, keepdims=True)
    z = (given - sheet.out[row, some]) / sheet.sigma[row, some]
    return _FAR - int((z**2).sum(1).argmin())


def _by_row(sheet: Sheet, angles: Angles) -> Array:
    steps = np.array([_best(sheet, row, angles) for row in range(len(sheet.tokens))])
    q = angles.turned(sheet.q, steps)
    return sheet.attend(sheet.masked(q @ sheet.k.T))


ALL = (of_keys, of_queries)
LATE = (of_rings, of_runs)
