"""The factor with which each group of keys enters a row, by a linear fit.

A softmax whose weights have factors w gives sum_j w_j p_j (v_j - out) = 0, which is linear in w; so
is an output whose values alone have factors. Factors of 0, 1 and 2 say which keys were lost or came
twice, wherever they lie. The fitted factors are rounded to these, and then judged like a guess.
Functions take sheets and a misfit, as those of `fitted` do.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import (
    CLEARLY,
    Misfit,
    best,
    run_words,
)
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet, part
from labkernels.numerics.verdict.diagnosis.words import V_LOST

_SIZES = (*range(4, 65, 4), 80, 96, 128, 160, 192, 256, 320, 512, 1024)  # keys of a block
_COUNTS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16)  # numbers of blocks of any size
_PERIODS = (*range(2, 17), 20, 24, 32, 40, 48, 64, 80, 96, 128)
_GROUPS_MOST = 0.4  # most groups per equation
_ROWS = 12  # most rows of a sheet
_WHOLE = 0.25  # distance of a factor from a whole number, up to which it counts as one
_USUAL = 0.3  # part of the largest factor: keys above it are neither lost nor weak
_LISTED = 4


@dataclass(frozen=True)
class _Groups:
    """Keys in groups. label(n): the group of each of n keys; words(groups, n): some in words.

    sums: from running sums over the keys [L + 1, X], the sum of each group [G, X].
    """

    label: Callable[[int], np.ndarray]
    words: Callable[[list[int], int], str]
    sums: Callable[[Array], np.ndarray]


def _blocks(size: int) -> _Groups:
    def words(groups: list[int], longest: int) -> str:
        runs: list[list[int]] = []
        for group in groups:
            if runs and group == runs[-1][1] + 1:
                runs[-1][1] = group
            else:
                runs.append([group, group])
        said = [run_words(a * size, min((b + 1) * size, longest) - a * size) for a, b in runs]
        more = f" and {len(said) - _LISTED} runs more" if len(said) > _LISTED else ""
        return ", ".join(said[:_LISTED]) + more

    def sums(running: Array) -> np.ndarray:
        n = len(running) - 1
        return np.diff(running[np.append(np.arange(0, n, size), n)], axis=0)

    return _Groups(lambda n: np.arange(n) // size, words, sums)


def _residues(period: int) -> _Groups:
    def words(groups: list[int], longest: int) -> str:
        return f"every key j with j % {period} in {', '.join(map(str, groups))}"

    def sums(running: Array) -> np.ndarray:
        each = np.diff(running, axis=0)
        whole = len(each) // period * period
        found = each[:whole].reshape(-1, period, each.shape[1]).sum(0)
        found[: len(each) - whole] += each[whole:]
        return found

    return _Groups(lambda n: np.arange(n) % period, words, sums)


def of_groups(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Keys are left out, counted twice or read as 0, in blocks or in places of a tile."""
    some = [part(sheet, slice(None, _ROWS)) for sheet in sheets]
    longest = max(sheet.kv_len for sheet in some)
    sizes = [n for n in _SIZES if n < longest]
    sizes += [size for n in _COUNTS if (size := -(-longest // n)) < longest and size not in sizes]
    groupings = [_residues(n) for n in _PERIODS if n < longest] + [_blocks(n) for n in sizes]
    before = misfit(lambda sheet: None)
    for of in _NAMES:
        terms = [(_running(each), error) for each, error in (_terms(s, of) for s in some)]
        found: list[Mistake] = []
        for groups in groupings:
            factors = _fitted(some, terms, groups, of)
            if factors is not None:
                found += _named(groups, factors, longest, of)
        yield from best(misfit, [mistake for mistake in found if not mistake.vague])
        for mistake in best(misfit, [mistake for mistake in found if mistake.vague]):
            if misfit(mistake.outputs) * CLEARLY <= before:
                yield mistake


def _terms(sheet: Sheet, of: str) -> tuple[Array, Array]:
    """Return what each key adds to the equations per unit of its factor, and their right sides.

    Shapes: [L, R, Dv], [R, Dv].
    """
    p = (sheet.weights / sheet.weights.sum(1, keepdims=True)).T[..., None]
    error = (sheet.out - sheet.truth) / sheet.sigma
    if of == "l":  # a row has one equation, for its denominator
        along = (sheet.out * error).sum(1, keepdims=True), (sheet.out**2 / sheet.sigma).sum(1)
        size = np.sqrt((sheet.out**2 / sheet.sigma**2).sum(1, keepdims=True))
        return -p * size[None], along[0] / np.maximum(size, 1e-300) + 0 * along[1][:, None]
    v = sheet.v[:, None] if of == "v" else sheet.v[:, None] - sheet.out
    return p * v / sheet.sigma, error


def _running(each: Array) -> np.ndarray:
    """Return sums over the first 0, 1, ... keys. Shapes: each [L, R, Dv] -> [L + 1, R Dv]."""
    found = np.zeros((len(each) + 1, each[0].size))
    np.cumsum(each.reshape(len(each), -1), 0, out=found[1:])
    return found


def _fitted(
    sheets: list[Sheet], terms: list[tuple[Array, Array]], groups: _Groups, of: str
) -> tuple[Array, Array] | None:
    """Return each group's factor less 1, and its standard error; None if they cannot be fitted."""
    n = max(int(groups.label(sheet.kv_len).max()) for sheet in sheets) + 1
    left, right, equations = np.zeros((n, n)), np.zeros(n), sum(error.size for _, error in terms)
    if n > _GROUPS_MOST * equations:
        return None
    for each, error in terms:
        sums = groups.sums(each)
        left[: len(sums), : len(sums)] += sums @ sums.T
        right[: len(sums)] += sums @ error.ravel()
    if not np.isfinite(left).all():
        return None
    spread, axes = np.linalg.eigh(left)
    kept = spread > 1e-12 * spread[-1]
    kept[0] &= of != "p"
    if not kept.any():
        return None
    inverse = (axes[:, kept] / spread[kept]) @ axes[:, kept].T
    errors = np.sqrt(np.maximum(np.diag(inverse), 0.0))
    if of != "p":
        return inverse @ right, errors
    factors = axes[:, 0]  # a softmax determines the factors only up to a common factor
    top = factors[np.abs(factors).argmax()]
    usual = np.median(factors[factors / top > _USUAL])
    return factors / usual - 1, errors / abs(usual)


_BIASED = "keys by a factor for each block, as of a bias of their scores"
_NAMES = {
    "p": ("keys left out", "keys counted twice", _BIASED),
    "v": (V_LOST, "V counted twice", "V by a factor for each block"),
    "l": ("keys missing in the denominator", "keys twice in the denominator", ""),
}
_MOVED = {  # names where some keys are lost and others count more than once
    "p": "keys read from elsewhere, some twice and others not at all",
    "v": "V read from elsewhere, that of some keys twice and of others not at all",
}


def _named(
    groups: _Groups, fitted: tuple[Array, Array], longest: int, of: str
) -> Iterator[Mistake]:
    factors, errors = fitted
    whole = np.rint(factors)
    sure = (np.abs(factors - whole) <= _WHOLE) & (errors < _WHOLE)
    lost, twice, other = _NAMES[of]
    for change, name in ((-1, lost), (1, twice)):
        some = np.flatnonzero((whole == change) & sure)
        if 0 < len(some) < len(factors):
            words = groups.words(some.tolist(), longest)
            yield Mistake(name, words, _weighed(groups, {int(g): change for g in some}, of))
    if of in _MOVED and (sure & (whole < 0)).any() and (sure & (whole > 0)).any():
        changes = {int(g): float(whole[g]) for g in np.flatnonzero(sure & (whole != 0))}
        moved = [
            groups.words(np.flatnonzero(sure & way).tolist(), longest)
            for way in (whole < 0, whole > 0)
        ]
        where = f"lost: {moved[0]}; twice or more: {moved[1]}"
        yield Mistake(_MOVED[of], where, _weighed(groups, changes, of), cost=0.5)
    if other and np.all(errors < _WHOLE) and np.any(np.abs(factors) > 8 * errors):
        told = ", ".join(f"{1 + x:.4g}" for x in factors[:_LISTED])
        where = f"{groups.words([0], longest)} and so on: times {told}, ..."
        changes = dict(enumerate(factors.tolist()))
        yield Mistake(other, where, _weighed(groups, changes, of), vague=True)


def _weighed(groups: _Groups, changes: dict[int, float], of: str) -> Callable[..., Any]:
    def outputs(sheet: Sheet) -> Array:
        label = groups.label(sheet.kv_len)
        factors = np.ones(int(label.max()) + 1)
        for group, change in changes.items():
            if group < len(factors):
                factors[group] += change
        each = factors[label]
        if of == "v":
            return sheet.attend(sheet.scores, each[:, None] * sheet.v)
        if of == "l":
            l = sheet.weights.sum(1, keepdims=True)
            return sheet.truth * l / (l + sheet.weights @ (each - 1)[:, None])
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = sheet.scores + np.log2(each)
        none_left = np.isinf(scores).all(1, keepdims=True)
        return sheet.attend(np.where(none_left, sheet.scores, scores))

    return outputs


ALL = (of_groups,)
