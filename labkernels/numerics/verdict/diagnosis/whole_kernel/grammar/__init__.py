"""A grammar of mistakes: a stage, what happens to it, and for which keys.

Readings of scores, weights, K and V and those with a number are tried at all keys, at every run of
keys and at regular sets of keys; the others are tried at all keys alone. Readings that leave no
more than rounding are mistakes, the simplest first.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from labkernels import formats
from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis import words
from labkernels.numerics.verdict.diagnosis.whole_kernel.grammar import (
    parameters,
    queries,
    readings,
    rows,
    scopes,
)
from labkernels.numerics.verdict.diagnosis.whole_kernel.grammar.parameters import Family
from labkernels.numerics.verdict.diagnosis.whole_kernel.grammar.scopes import (
    ALL_KEYS,
    Nearest,
    Scope,
    Screen,
)
from labkernels.numerics.verdict.diagnosis.whole_kernel.grammar.terms import Reading, joined
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet, part

_LEFT = 4.0  # mean z^2 up to which a reading is judged on all rows
_SHARE = 1e-7  # part of the mean z^2 before that products of large sums lose by rounding
_EQUATIONS = 128  # equations of the screen, which has two rows at least
_ROWS_MOST = 6
_JUDGED = 16  # mistakes that are judged on all rows
_SLACK = 1e-3  # part of z^2 before by which errors may be larger, as where mistakes are judged
_STEPS = 48  # of a golden section
_SURE, _HOPELESS = 16, 0.01  # after so many steps a right number leaves less than this part of z^2
_GOLDEN = (5**0.5 - 1) / 2
_BLOCKS = (16, 8, 32, 64, 4)
_WHOLE = 0.02  # largest distance of a factor from a named one
_NORM = " divided by its "

_NAMED = {
    "keys left out": {1.0: "keys left out", -1.0: "keys counted twice"},
    "V read as 0": {1.0: words.V_LOST, -1.0: "V counted twice", 2.0: "V with the wrong sign"},
    readings.PADDED: {},
    readings.IN_DENOMINATOR: {
        1.0: readings.IN_DENOMINATOR,
        -1.0: "keys twice in the denominator",
    },
}
_SEVERAL = {
    "keys left out": "keys counted {} times",
    "V read as 0": "V counted {} times",
    readings.IN_DENOMINATOR: "keys {} times in the denominator",
}
_BY_FACTOR = {
    "keys left out": "weights of keys by a factor, as of a bias of their scores",
    "V read as 0": "V by a factor",
    readings.IN_DENOMINATOR: "denominator with keys by a factor",
}


def of_readings(sheets: list[Sheet], misfit: Callable[..., float]) -> Iterator[Mistake]:
    """Yield the readings that explain a few rows, the simplest first."""
    screen = Screen(_rows(sheets))
    limit = max(_LEFT, _SHARE * _before(screen))
    first = sheets[0]
    main = itertools.chain(
        readings.of_weights(first),
        readings.of_scores(first),
        readings.of_operands(first),
        readings.of_stale_weights(first),
        readings.of_sums(first),
    )
    stages: tuple[Callable[[], list[tuple[Reading, Nearest]]], ...] = (
        lambda: _screened(screen, main, limit),
        lambda: _in_blocks(screen, first, limit),
        lambda: _with_numbers(screen, sheets, limit),
        lambda: _screened(
            screen,
            itertools.chain(
                readings.of_padding(first),
                readings.of_formats(first),
                readings.of_channels(first),
                queries.of_queries(first),
                readings.of_rounded_scales(first),
            ),
            limit,
            everywhere=True,
        ),
        lambda: _screened(
            screen, itertools.chain(readings.of_parts(first), readings.of_scales(first)), limit
        ),
    )
    for stage in stages:
        found = sorted(stage(), key=lambda pair: pair[0].cost + pair[1].scope.cost)
        good = []
        for mistake in [_mistake(*pair) for pair in found[:_JUDGED]]:
            good += [mistake.name] * (misfit(mistake.outputs, limit=_LEFT) <= _LEFT)
            yield mistake
        if any(_NORM in name for name in good):  # a norm of rows that are alike is a factor
            scales = _with_numbers(screen, sheets, limit, (parameters.SCALE,))
            yield from (_mistake(*pair) for pair in scales)
        if good:
            return
    yield from rows.of_runs(sheets, limit)


def _rows(sheets: list[Sheet]) -> list[Sheet]:
    """Return the worst row of each sheet, then the next ones, each as a sheet."""
    count = min(_ROWS_MOST, max(2, -(-_EQUATIONS // sheets[0].out.shape[1])))
    found = []
    for sheet in sheets:
        z = (((sheet.out - sheet.truth) / sheet.sigma) ** 2).mean(1)
        order = np.argsort(-z)[:count].tolist()
        found += [(rank, -float(z[i]), sheet, i) for rank, i in enumerate(order)]
    found.sort(key=lambda each: each[:2])
    return [_with_slack(part(sheet, slice(i, i + 1)), -z) for _, z, sheet, i in found[:count]]


def _with_slack(row: Sheet, before: float) -> Sheet:
    """Return a row with the errors of P as large as they may be under other weights.

    A wrong reading may spread a row over many keys that has one key, whose weight has no error. A
    row that went far wrong allows more.
    """
    narrow = formats.named(row.p_format.removesuffix("x2")).unit_roundoff
    spread = row.sigma**2 + (narrow * row.v).var(0)
    most = row.sigma**2 * max(1.0, _SLACK * before)
    return replace(row, sigma=np.sqrt(np.clip(spread, row.sigma**2, most)), notes={})


def _before(screen: Screen) -> float:
    total = sum(float((((s.out - s.truth) / s.sigma) ** 2).sum()) for s in screen.rows)
    return total / screen.equations


def _screened(
    screen: Screen, tried: Iterator[Reading], limit: float, *, everywhere: bool = False
) -> list[tuple[Reading, Nearest]]:
    """Return readings with the cheapest scope that explains the screen's rows."""
    found = []
    for reading in tried:
        near = screen.nearest(reading.of, reading.scalable, everywhere=everywhere, limit=limit)
        fitting = [one for one in near if one.miss <= limit]
        # One factor on all keys is a factor on the output, which other modules name. Where it
        # explains the rows, a factor on fewer keys only imitates it.
        one_factor = reading.scalable and reading.name != readings.PADDED
        if fitting and not (one_factor and any(x.scope is ALL_KEYS for x in fitting)):
            found.append((reading, fitting[0]))
            closest = min(fitting, key=lambda one: one.miss)
            if closest is not fitting[0]:
                found.append((reading, closest))
    return found


def _in_blocks(screen: Screen, sheet: Sheet, limit: float) -> list[tuple[Reading, Nearest]]:
    """Return readings at sets of blocks of keys."""
    found = []
    tried = itertools.chain(readings.of_weights(sheet), readings.of_operands(sheet))
    for reading in (one for one in tried if one.cost <= 1.0):
        for size in _BLOCKS:
            scope = scopes.of_blocks(screen, reading.of, size, limit)
            if scope is not None:
                found.append((replace(reading, scalable=False), Nearest(scope, 0.0)))
                break
    return found


def _with_numbers(
    screen: Screen,
    sheets: list[Sheet],
    limit: float,
    families: tuple[Family, ...] = parameters.FAMILIES,
) -> list[tuple[Reading, Nearest]]:
    """Return readings with a number, at the scope that fits best."""
    found = []
    for family in families:
        fitted = _fitted(screen, family, family.grid(sheets), limit)
        if fitted is not None:
            found.append(fitted)
    return found


def _fitted(
    screen: Screen, family: Family, grid: Array, limit: float
) -> tuple[Reading, Nearest] | None:
    """Return a family with the number and the scope that explain the rows; None if none do."""

    def nearest(x: float) -> list[Nearest]:
        return screen.nearest(lambda s: family.of(s, x))

    tried = [
        (x, near)
        for x in grid.tolist()
        for near in screen.nearest(lambda s, y=x: family.of(s, y), coarse=True)
    ]
    if not tried:
        return None
    by_scope = {
        cost: min((pair for pair in tried if pair[1].scope.cost == cost), key=lambda p: p[1].miss)
        for cost in {near.scope.cost for _, near in tried}
    }
    for _, (x, near) in sorted(by_scope.items()):
        for _ in range(3):
            x, miss = _least(screen, family, near.scope, x, grid)
            if miss <= limit:
                near, x, miss = _ended(screen, family, near, x, miss, grid)
                x = _tidy(screen, family, near.scope, x, miss)
                reading = Reading(
                    family.name, family.where.format(x), lambda s, y=x: family.of(s, y), family.cost
                )
                return reading, Nearest(near.scope, miss)
            better = [n for n in nearest(x) if n.scope.cost == near.scope.cost]
            again = min(better, key=lambda n: n.miss, default=near)
            if again.scope.words == near.scope.words:
                break
            near = again
    return None


def _ended(
    screen: Screen, family: Family, near: Nearest, x: float, miss: float, grid: Array
) -> tuple[Nearest, float, float]:
    """Return the scope of the same kind whose ends fit best at a number that fits, and both again.

    A key of little weight at the end of a run hardly shows in a few rows.
    """
    for _ in range(2):
        tried = screen.nearest(lambda s, y=x: family.of(s, y))
        alike = [one for one in tried if one.scope.cost == near.scope.cost]
        other = min(alike, key=lambda n: n.miss, default=near)
        if other.scope.words == near.scope.words or not other.miss < miss:
            break
        near = other
        x, miss = _least(screen, family, near.scope, x, grid)
    return near, x, miss


def _tidy(screen: Screen, family: Family, scope: Scope, x: float, miss: float) -> float:
    near = parameters.rounded(x)
    return near if screen.missed(lambda s: family.of(s, near), scope) <= 1.1 * miss + 0.1 else x


def _least(
    screen: Screen, family: Family, scope: Scope, x: float, grid: Array
) -> tuple[float, float]:
    """Return the number near x that leaves least in a scope, and the mean z^2 that it leaves."""

    def miss(y: float) -> float:
        return screen.missed(lambda s: family.of(s, y), scope)

    i = int(np.abs(grid - x).argmin())
    order = np.sort(grid)
    i = int(np.searchsorted(order, x))
    low, high = order[max(i - 1, 0)], order[min(i + 1, len(order) - 1)]
    a, b = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_a, at_b = miss(a), miss(b)
    given_up = max(_LEFT, _HOPELESS * _before(screen))
    for step in range(_STEPS):
        if step == _SURE and min(at_a, at_b) > given_up:
            break
        if at_a < at_b:
            high, b, at_b = b, a, at_a
            a = high - _GOLDEN * (high - low)
            at_a = miss(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + _GOLDEN * (high - low)
            at_b = miss(b)
    y = float((low + high) / 2)
    return y, miss(y)


def _mistake(reading: Reading, near: Nearest) -> Mistake:
    name, where, factor = reading.name, reading.where, 1.0
    cost = reading.cost + near.scope.cost
    if reading.scalable:
        factor = near.factor
        whole = [x for x in _NAMED[name] if abs(factor - x) <= _WHOLE]
        times = round(1 - factor)
        if whole:
            factor, name = whole[0], _NAMED[name][whole[0]]
        elif name in _SEVERAL and times > 2 and abs(1 - factor - times) <= _WHOLE:
            factor, name = 1.0 - times, _SEVERAL[name].format(times)
        else:
            padded = name == readings.PADDED
            where = f"{factor:.4g} of them; {where}" if padded else f"times {1 - factor:.4g}"
            name = _BY_FACTOR.get(name, name)
            cost += 1.0
    if near.scope is ALL_KEYS:  # a product meets the same channels if Q has them in that order
        name = name.replace("K read with its channels mixed up", "channels of Q or K mixed up")
    where = "; ".join(filter(None, (where, near.scope.words)))

    def outputs(sheet: Sheet) -> Array | None:
        terms = reading.of(sheet)
        if terms is None:
            return None
        some = np.broadcast_to(near.scope.of(sheet.kv_len), sheet.weights.shape)
        return joined(sheet, terms, some, factor)

    return Mistake(name, where, outputs, reading.precision, cost=cost)


__all__ = ["ALL_KEYS", "of_readings"]
