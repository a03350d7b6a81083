"""The search for what explains an output: location first, then each edit at each set of keys.

An edit is tried on a few rows. It explains an output if it leaves little more than rounding on many
of the rows that went wrong. Edits that leave the same rows are equally good, and are said together.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict import significance
from labkernels.numerics.verdict.diagnosis import (
    loads,
    region,
    roundings,
    scores,
    stored,
    weights,
)
from labkernels.numerics.verdict.diagnosis.match import Edit, Match, Region
from labkernels.numerics.verdict.diagnosis.program import (
    Block,
    Case,
    Terms,
    Trial,
    joined,
    mean_square,
)
from labkernels.numerics.verdict.diagnosis.scopes import Scope, Screen
from labkernels.numerics.verdict.matched_filters import Filters
from labkernels.policy import NumericPolicy

LEFT = 1.5  # rms of z that may be left
_SHARE = 0.08  # of the excess of z^2 that may be left
_GAIN = 60.0  # least fall of sum z^2: one fitted number gains 60 by chance once in 10^14
_ALIKE = 30.0  # sum z^2 by which two edits do not differ
_COSTS = 1.0  # an edit that costs so much more to say is no rival
_LISTED = 3
_FEW, _WEAK = 0.2, 9.0  # all rows are used if fewer are bad, each weakly, but all together clearly
_BLOCKS, _ROWS = 10, 40
_SCREENED, _SCREENED_LONG, _LONG = 6, 3, 1024  # rows of the screen, and of long requests
_CHANNELS = 32  # of the screen of long requests
_COMMON = 0.8  # the largest cost of an edit that is tried at some keys of a long request
_NUMBERS = 2**21  # most rows times keys that are followed
_PASSES, _GOLDEN = 44, (5**0.5 - 1) / 2
_FIRST = 4.0  # times the residual that is allowed in the end, on the few rows of the screen

# Edits of one family are rivals; a family that explains the rows ends the search.
_Family = Callable[[Block], Iterator[Trial]]
_SIMPLE: tuple[_Family, ...] = (
    weights.of_rows,
    scores.numbers,
    scores.masks,
    weights.of_denominator,
)
_ROUNDINGS: tuple[_Family, ...] = (
    roundings.of_weights,
    roundings.of_scores,
    roundings.of_operands,
)
_LOADS: tuple[_Family, ...] = (
    weights.of_keys,
    loads.sources,
    loads.past_the_end,
    loads.queries,
    lambda block: loads.keys(block.n),
)


@dataclass(frozen=True)
class Diagnosis:
    """Where an output went wrong, and the mistakes that explain it, equally well, if any do."""

    region: Region
    matches: tuple[Match, ...]


@dataclass(frozen=True, eq=False)
class _Found:
    trial: Trial
    edit: Edit
    keys: np.ndarray | None
    rms: float
    cost: float
    rows: list[np.ndarray]


def of_output(
    problem: Problem,
    policy: NumericPolicy,
    arrays: tuple[Array, Array, Array, Array],
    filtered: Filters,
    *,
    shared: bool,
    honest: Callable[[], Any],
) -> Diagnosis:
    """Return what explains a wrong output.

    arrays: out, truth, sigma and z, [total_q, Hq, Dv] each. shared: a test over all rows fails.
    honest: tells whether coarser arithmetic errs as much, so that only closed forms and roundings
    are tried; it takes long.
    """
    out, truth, sigma, z = arrays
    finite = np.isfinite(out)
    if not finite.all():
        return Diagnosis(region.of_rows(problem, ~finite.all(-1)), ())
    score = np.where(problem.n_keys[:, None] > 0, (z**2).mean(-1), 0.0)
    score = score / significance.row_limits(filtered)
    bad = score > 1
    if not bad.any() or (shared and bad.mean() < _FEW and score.max() < _WEAK):
        bad = np.broadcast_to(problem.n_keys[:, None] > 0, bad.shape)
    blind = np.abs(z).max(-1) > significance.OUTLIER
    bad = bad if bad[problem.n_keys > 0].any() else blind
    if not bad.any():
        return Diagnosis(Region(), ())
    channels = region.wrong_channels(problem, z, bad)
    where = region.of_rows(problem, bad, channels)
    case = Case(problem, out, truth, sigma, bad, policy.out, policy.p)
    blocks = chosen(case, score, slice(None) if channels is None else channels)
    if not blocks:
        return Diagnosis(where, ())
    with np.errstate(all="ignore"):
        return Diagnosis(where, _explained(case, blocks, where, honest=honest))


def chosen(case: Case, score: Array, channels: Any) -> list[Block]:
    """Return blocks of wrong rows, of requests and heads as different as can be."""
    problem = case.problem
    pairs = []
    for r in np.flatnonzero(problem.kv_lens > 0):
        part = slice(*problem.q_ends[r : r + 2].tolist())
        worst = np.where(case.bad[part], score[part], 0.0).max(0, initial=0.0)
        pairs += [(float(worst[h]), int(r), int(h)) for h in np.flatnonzero(worst)]
    pairs.sort(reverse=True)
    picked: list[tuple[int, int]] = []
    while pairs and len(picked) < _BLOCKS:
        requests, heads = {r for r, _ in picked}, {h for _, h in picked}
        new = [(r not in requests) + (h not in heads) for _, r, h in pairs]
        picked.append(pairs.pop(new.index(max(new)))[1:])
    longest = max((int(problem.kv_lens[r]) for r, _ in picked), default=1)
    most = max(2, min(_ROWS, _NUMBERS // longest) // max(1, len(picked)))
    blocks = []
    for request, head in picked:
        first = int(problem.q_ends[request])
        rows = np.flatnonzero(case.bad[first : int(problem.q_ends[request + 1]), head])
        rows = rows[np.unique(np.linspace(0, len(rows) - 1, most).astype(int))]
        blocks.append(Block(case, request, head, first + rows, channels))
    return blocks


def _explained(
    case: Case, blocks: list[Block], where: Region, *, honest: Callable[[], Any]
) -> tuple[Match, ...]:
    search = _Search(blocks)
    search.of((lambda block: stored.trials(case, block), *_SIMPLE))
    if not search.settled and honest():
        search.of(_ROUNDINGS)
    elif not search.settled:
        search.of(_LOADS)
        if not search.settled:
            search.of(_ROUNDINGS)
    if search.found:
        return tuple(_match(case, x, where, search.before) for x in search.best())
    found = None if honest() else weights.free(blocks, search.left)
    if found is None:
        return ()
    kinds, edit = found
    return tuple(Match(kind, edit, where, search.before, search.free_rms) for kind in kinds)


def _some(block: Block) -> Any:
    """Return the channels of the screen: of a long request, a few tell as much in less time."""
    width = block.truth.shape[1]
    if block.n <= _LONG or width <= _CHANNELS:
        return block.channels
    every = np.arange(block.case.truth.shape[2])[block.channels]
    return every[np.linspace(0, width - 1, _CHANNELS).astype(int)]


def _match(case: Case, found: _Found, where: Region, before: float) -> Match:
    trial = found.trial
    if found.keys is not None:
        some = np.flatnonzero(found.keys)
        words = f"{where.words}, {region.numbers('key', some, len(found.keys))}"
        where = replace(where, keys=tuple(map(int, some)), words=words)
    return Match(trial.kind, found.edit, where, before, found.rms, trial.precision)


class _Search:
    """Tries edits on a few rows, and on many where they explain the few."""

    def __init__(self, blocks: list[Block]) -> None:
        self.blocks = blocks
        few: list[Block] = []
        most = _SCREENED if max(b.n for b in blocks) <= _LONG else _SCREENED_LONG
        for block in blocks:
            if sum(len(b.tokens) for b in few) < most:
                ends = block.tokens[[0, -1]] if len(block.tokens) > 1 else block.tokens
                few.append(replace(block, tokens=ends, channels=_some(block)))
        self.screen = Screen(few)
        self.before = mean_square(blocks, [b.truth for b in blocks]) ** 0.5
        self.most = max(_FIRST * LEFT**2, _SHARE / 4 * self.before**2)
        self.size = sum(b.truth.size for b in blocks)
        self.found: list[_Found] = []
        self.free_rms = np.inf

    @property
    def settled(self) -> bool:
        """Whether an edit leaves no more than rounding."""
        return any(x.rms <= significance.RIGHT_RMS for x in self.found)

    def of(self, families: tuple[_Family, ...]) -> None:
        """Try all edits of some families; in long requests, until a family explains the rows."""
        for family in families:
            for trial in family(self.blocks[0]):
                self._try(trial)
            if self.screen.n > _LONG and self.settled:
                break

    def _try(self, trial: Trial) -> None:
        few = self.screen.blocks
        if trial.grid is not None:
            x = self._fitted(trial)
            note = scores.known(x, few[0]) if trial.edit.operand == "scale" else ""
            edit = replace(trial.edit, numbers=(*trial.edit.numbers, x), note=note)
            trial = replace(trial, edit=edit, of=lambda s, f=trial.of: f(s, x))
        scoped = trial.scoped and (self.screen.n <= _LONG or trial.cost <= _COMMON)
        given = [trial.of(few[0])]
        least = mean_square(few[:1], given) * few[0].truth.size / self.screen.size
        if not (scoped or least <= self.most):
            return
        given += [trial.of(s) for s in few[1:]]
        if not all(np.isfinite(t.above if isinstance(t, Terms) else t).all() for t in given):
            return
        if trial.factors and mean_square(few, given) <= self.most and self._keep(trial, None):
            return
        if scoped:
            for scope in self.screen.scopes(given, trial.factors, self.most):
                self._keep(trial, scope)

    def _fitted(self, trial: Trial) -> float:
        """Return the number with which an edit explains the few rows best."""
        few, grid = self.screen.blocks, np.asarray(trial.grid)

        def miss(x: float) -> float:
            return mean_square(few, [trial.of(s, x) for s in few])

        at = int(np.argmin([miss(x) for x in grid]))
        a, b = float(grid[max(at - 1, 0)]), float(grid[min(at + 1, len(grid) - 1)])
        c, d = b - _GOLDEN * (b - a), a + _GOLDEN * (b - a)
        of_c, of_d = miss(c), miss(d)
        for _ in range(_PASSES):
            if of_c < of_d:
                b, d, of_d = d, c, of_c
                c = b - _GOLDEN * (b - a)
                of_c = miss(c)
            else:
                a, c, of_c = c, d, of_d
                d = a + _GOLDEN * (b - a)
                of_d = miss(d)
        return (a + b) / 2

    def _keep(self, trial: Trial, scope: Scope | None) -> bool:
        """Keep an edit that explains all rows; return whether it does."""
        given = [trial.of(s) for s in self.blocks]
        edit, cost = trial.edit, trial.cost
        if scope is not None:
            share = scope.factor * scope.keys
            pairs = zip(self.blocks, given, strict=True)
            given = [joined(s, t, share[: s.n]) for s, t in pairs]
            cost += scope.cost
            if not trial.factors:
                edit = Edit(edit.operand, edit.operation, (1 - scope.factor,))
        after = mean_square(self.blocks, given)
        before = self.before**2
        explains = after <= LEFT**2 and after - 1 <= _SHARE * (before - 1)
        if not (explains and (before - after) * self.size >= _GAIN):
            return False
        rows = [t.output() if isinstance(t, Terms) else t for t in given]
        keys = None if scope is None else scope.keys
        self.found.append(_Found(trial, edit, keys, after**0.5, cost, rows))
        return True

    def best(self) -> list[_Found]:
        """Return the edits that leave the least, one of each class and the cheapest first."""
        least = min(x.rms for x in self.found) ** 2
        room = _ALIKE * max(least, 0.05)
        near = [x for x in self.found if (x.rms**2 - least) * self.size <= room]
        near.sort(key=lambda x: x.cost)
        first, listed = near[0], {near[0].trial.kind: near[0]}
        for x in near[1:]:
            if x.cost <= first.cost + _COSTS and self._alike(x, first):
                listed.setdefault(x.trial.kind, x)
        return list(listed.values())[:_LISTED]

    def _alike(self, a: _Found, b: _Found) -> bool:
        """Return whether two edits give the same rows but for rounding."""
        triples = zip(a.rows, b.rows, self.blocks, strict=True)
        off = sum(float(np.minimum(((x - y) / s.sigma) ** 2, 1e6).sum()) for x, y, s in triples)
        return off <= 0.5 * self.size

    def left(self, rows: list[np.ndarray], spent: int) -> bool:
        """Return whether rows with so many free numbers explain the output."""
        after = mean_square(self.blocks, rows) * self.size / max(self.size - spent, 1)
        self.free_rms = after**0.5
        enough = after <= LEFT**2 and after - 1 <= _SHARE * (self.before**2 - 1)
        return bool(enough and spent < self.size / 3)
