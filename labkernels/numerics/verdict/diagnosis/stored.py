"""What an output or a log-sum-exp holds in place of the right one: solved, not searched."""

import math
from collections.abc import Iterator

import numpy as np

from labkernels import defects, formats
from labkernels.numerics import rounding
from labkernels.numerics.arrays import Array, to_numpy
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict.diagnosis import region
from labkernels.numerics.verdict.diagnosis.match import Edit, Match
from labkernels.numerics.verdict.diagnosis.program import TINY, Block, Case, Trial
from labkernels.units import LOG2_E

_ZERO = 0.9  # share of the elements that are 0 in rows that were never written
_ROWS = 48  # wrong rows whose nearest right row is looked for
_OTHER = 2**26  # numbers of right rows that are compared with one wrong row at a time
_TOGETHER = 64  # rows that are compared at once
_SMALLEST = 1e-30  # the least sigma, whose square is above 0
_NEAR = 4.0  # mean z^2 of a row that is another one's
_SOME = 2048  # wrong rows whose bits are looked at
_FEW = 32  # elements: fewer may have few bits by chance


def trials(case: Case, block: Block) -> Iterator[Trial]:
    """Yield edits of the store: rows, channels or numbers in place of the right ones."""
    part = case.out[case.bad][:, block.channels]
    if (part == 0).mean() > _ZERO:
        zero = lambda s: 0 * s.truth
        yield Trial(defects.STORE, Edit("output", "never written, it is 0"), zero, 0.3)
    some = part[:: max(1, len(part) // _SOME)]
    for fmt in ("bf16", "fp16", "e4m3", "e5m2"):
        few_bits = part.size >= _FEW and rounding.is_representable(some, fmt).all()
        if few_bits and formats.coarser(fmt, case.out_format):
            yield _output("rounded to", lambda s, f=fmt: rounding.round_to(s.truth, f), fmt)
    yield _changed("without its sign", lambda s: np.abs(s.truth))
    most = float(np.abs(part).max(initial=0.0))
    if (np.abs(part) > 0.999 * most).mean() > 0.01:
        yield _changed("clipped at", lambda s: np.clip(s.truth, -most, most), most)
    yield from _other_channels(case, block)
    yield from _other_rows(case, block)


def _output(words: str, of, *said: str) -> Trial:
    edit = Edit("output", words, said)
    return Trial(defects.LESS_EXACT, edit, of, 0.5, precision=True)


def _changed(words: str, of, *said: float) -> Trial:
    return Trial(defects.STORE, Edit("output", words, said), of, 0.8)


def _other_channels(case: Case, block: Block) -> Iterator[Trial]:
    """Yield the map of channels in which each is the nearest right one."""
    rows = np.argwhere(case.bad)
    rows = rows[np.unique(np.linspace(0, len(rows) - 1, _ROWS).astype(int))]
    out, truth, sigma = (x[rows[:, 0], rows[:, 1]] for x in (case.out, case.truth, case.sigma))
    if len(rows) < 2:
        return
    far = np.zeros((out.shape[1],) * 2)
    for o, t, s in zip(out, truth, np.maximum(sigma, TINY), strict=True):
        far += np.minimum(((o[:, None] - t) / s[:, None]) ** 2, 1e6)
    source = (far / len(rows) + 1e-9 * (1 - np.eye(len(far)))).argmin(1)
    moved = np.flatnonzero(source != np.arange(len(source)))
    if len(moved):
        said = ", ".join(f"{c} from {source[c]}" for c in moved[:4]) + ", ..." * (len(moved) > 4)
        of = lambda s: s.case.truth[s.tokens, s.head][:, source][:, s.channels]
        edit = Edit("channels", "of the output mixed up:", (said,))
        yield Trial(defects.INDEX_OUT, edit, of, 0.7)


def _other_rows(case: Case, block: Block) -> Iterator[Trial]:
    """Yield the nearest right row of each wrong one, where one step leads to all of them."""
    some = block.channels
    right = case.truth[:, :, some].reshape(-1, block.truth.shape[1])
    rows = np.argwhere(case.bad)
    rows = rows[np.unique(np.linspace(0, len(rows) - 1, _ROWS).astype(int))]
    rows = rows[: max(4, _OTHER // max(right.size, 1))]
    heads = case.bad.shape[1]
    near, far = _nearest(case, rows, right, some)
    steps = np.stack(np.divmod(near, heads), 1) - rows
    moved = steps.any(1) & (far < _NEAR)
    if moved.mean() < 0.5:
        return
    problem, own = case.problem, np.argwhere(case.bad)
    step, counts = np.unique(steps[moved] % [len(right), heads], axis=0, return_counts=True)
    most = step[counts.argmax()]
    most = np.where(most > np.array([len(right), heads]) / 2, most - [len(right), heads], most)
    request = problem.request_of[own[:, 0]]
    first, count = problem.q_ends[request], np.diff(problem.q_ends)[request]
    inside = first + (own[:, 0] - first + most[0]) % count
    token = np.where(most[0] % count == 0, (own[:, 0] + most[0]) % len(case.bad), inside)
    moved_to = np.zeros(case.truth.shape)
    moved_to[own[:, 0], own[:, 1]] = case.truth[token, (own[:, 1] + most[1]) % heads]
    of = lambda s: moved_to[s.tokens, s.head][:, s.channels]
    said = f"token {most[0]:+d}, head {most[1]:+d}"
    yield Trial(defects.INDEX_OUT, Edit("row", "of the output holds that of", (said,)), of, 0.6)
    if len(step) > 1:
        rule = Edit("row", "of the output holds another one's, by a rule of its own")
        nearest = case.truth.copy()
        some_own = own[:: max(1, len(own) * right.size // (16 * _OTHER))]
        sources = _nearest(case, some_own, right, some)[0]
        nearest[tuple(some_own.T)] = case.truth.reshape(-1, nearest.shape[-1])[sources]
        yield Trial(defects.INDEX_OUT, rule, lambda s: nearest[s.tokens, s.head][:, s.channels])


def _nearest(
    case: Case, rows: Array, right: Array, some: Array | slice
) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of the right row nearest to each of some rows, and the mean z^2 of it."""
    token, head = rows.T
    out = case.out[token, head][:, some]
    per = np.maximum(case.sigma[token, head][:, some], _SMALLEST) ** -2.0
    near = np.empty(len(rows), np.int64)
    for part in (slice(i, i + _TOGETHER) for i in range(0, len(rows), _TOGETHER)):
        far = right**2 @ per[part].T - 2 * right @ (out * per)[part].T  # less the sum of out^2
        near[part] = far.argmin(0)
    return near, (per * (right[near] - out) ** 2).mean(-1)


def of_lse2(problem: Problem, lse2: Array, truth: Array, bound: Array) -> Match | None:
    """Return what the log-sum-exp holds instead. Shapes: lse2, truth, bound [total_q, Hq].

    before, after: the largest error over its bound.
    """
    live = np.isfinite(truth)
    if not live.any():
        return None
    largest = problem.zeros(*problem.out_shape[:2])
    for rows in problem.row_blocks():
        rows.put(largest, rows.softmax.m)
    m = to_numpy(largest)
    tries = {
        Edit("lse2", "in base e"): truth / LOG2_E,
        Edit("lse2", "converted to base 2 twice"): truth * LOG2_E,
        Edit("lse2", "with the sign turned"): -truth,
        Edit("lse2", "is the largest score"): m,
        Edit("lse2", "without the largest score"): truth - m,
    }
    offset = float(np.median(lse2[live] - truth[live]))
    tries[Edit("lse2", "plus", (offset,))] = truth + offset
    for axis, what in ((1, "head h"), (0, "token t")):
        for step in range(1, min(truth.shape[axis], 64)):
            tries[Edit("lse2", "of", (f"{what} + {step}",))] = np.roll(truth, -step, axis)
    off = {edit: _largest(lse2[live], x[live], bound[live]) for edit, x in tries.items()}
    was = _largest(lse2[live], truth[live], bound[live])
    with np.errstate(invalid="ignore"):
        wrong = ~((np.abs(lse2 - truth) <= bound) | (lse2 == truth))
    where = region.of_rows(problem, wrong)
    best = min(off, key=lambda edit: off[edit])
    if off[best] <= 1:
        return Match(defects.LSE, best, where, was, off[best])
    return Match(defects.LSE, None, where, was, math.nan)


def _largest(given: Array, right: Array, allowed: Array) -> float:
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(given == right, 0.0, np.abs(given - right) / allowed)
    return float(np.where(np.isnan(ratio), np.inf, ratio).max(initial=0.0))
