"""Outputs with something added, or with a factor for each head, sample, query or channel."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from labkernels.numerics import rounding
from labkernels.numerics.arrays import Array
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict import significance
from labkernels.numerics.verdict.diagnosis.one_row import Match
from labkernels.numerics.verdict.diagnosis.whole_kernel import sheets

_LEFT = 1.5  # rms of z that may be left, as in whole_kernel
_SMALLER_BY = 3.0
_STEPS = 16  # other rows are tried at fewer heads, queries or samples from the row
_LISTED = 6
_PAIRS = 8  # most pairs of a request and a KV head by which a key is found
_ROWS = 768  # most rows by which two numbers are fitted: more tell no more
_QUERIES = 128  # most queries by which a number per head, sample, query or channel is fitted
_EACH = 12  # least elements per number that is fitted
_OF_EACH = 4  # least elements per offset that is fitted
_NONE = 0.01  # difference of a factor from 1: a smaller one is no factor
_ROUND = 0.004  # relative distance from a round factor
_ALIKE = 0.02  # share of the largest offset by which offsets may differ and count as one
_MEAN = "the mean of V"
_ROUND_ONES = (1.0, -1.0, 0.5, -0.5, 2.0, 0.25, 1 / 3)


def of_sums(
    problem: Problem, out: Array, truth: Array, sigma: Array, bad: Array, fmt: str
) -> list[Match]:
    """Return what was added to the outputs. Shapes: bad [total_q, Hq], bool."""
    rows = _some(np.nonzero(bad))
    if not out[rows].any():
        return []
    given, right, variance, store = _of(rows, out, truth, sigma, fmt)
    found = [
        _sum_of(words, given, right, other, variance, noise, store)
        for words, other, noise in _others(problem, out, truth, sigma, rows)
    ]
    return _best(found, _rms(given - right, variance))


def of_factors(
    problem: Problem, out: Array, truth: Array, sigma: Array, bad: Array, fmt: str
) -> list[Match]:
    """Return factors or offsets that made outputs wrong. Shapes: bad [total_q, Hq], bool."""
    if not bad.any():  # errors of all rows together may be too large where none is by itself
        return []
    rows = _of_queries(problem, np.nonzero(bad))
    given, right, variance, store = _of(rows, out, truth, sigma, fmt)
    was = _rms(given - right, variance)
    return _simplest(_by_factors(problem, rows, given, right, variance, store), was) or _simplest(
        _by_offset(problem, rows, given, right, np.maximum(variance, store)), was
    )


def _some(rows: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return rows that are spread evenly over those that went wrong, at most _ROWS."""
    chosen = np.unique(np.linspace(0, len(rows[0]) - 1, _ROWS).astype(int))
    return rows if len(rows[0]) <= _ROWS else tuple(x[chosen] for x in rows)


def _of_queries(problem: Problem, rows: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return the rows of at most _QUERIES queries that went wrong, of all heads and samples."""
    query = rows[0] - problem.q_ends[problem.request_of[rows[0]]]
    numbers = np.unique(query)
    chosen = numbers[np.unique(np.linspace(0, len(numbers) - 1, _QUERIES).astype(int))]
    few = len(numbers) <= _QUERIES
    return rows if few else tuple(x[np.isin(query, chosen)] for x in rows)


def _of(
    rows: tuple[Array, ...], out: Array, truth: Array, sigma: Array, fmt: str
) -> tuple[Array, Array, Array, Array]:
    store = rounding.quantum(out[rows], fmt) ** 2 / 12
    return out[rows], truth[rows], sigma[rows] ** 2, store


def _best(found: list[Match], was: float) -> list[Match]:
    kept = [match for match in found if match.rms <= min(_LEFT, was / _SMALLER_BY)]
    return [replace(min(kept, key=lambda match: match.rms), was=was)] if kept else []


def _simplest(found: list[Match], was: float) -> list[Match]:
    """Return the first match that leaves no more than right elements have, else the best one."""
    return _best([m for m in found if m.rms <= significance.RIGHT_RMS][:1] or found, was)


def _rms(error: Array, variance: Array) -> float:
    return float(np.sqrt((error**2 / np.maximum(variance, 1e-300)).mean()))


def _by_factors(
    problem: Problem,
    rows: tuple[Array, ...],
    given: Array,
    right: Array,
    variance: Array,
    store: Array,
) -> list[Match]:
    """Return matches for a factor on the outputs of each head, sample, query, channel or row."""
    token, head = rows
    n = given.shape[1]
    shown = np.count_nonzero(np.abs(right) > significance.SHOWS * np.sqrt(variance))
    query = token - problem.q_ends[problem.request_of[token]]
    kv_head = head // problem.group
    labels = {
        "head": np.broadcast_to(head[:, None], given.shape),
        "sample": np.broadcast_to(problem.request_of[token][:, None], given.shape),
        "channel": np.broadcast_to(np.arange(n), given.shape),
        "channel of each KV head": kv_head[:, None] * n + np.arange(n),
        "channel of each KV head and sample": (
            (problem.request_of[token] * problem.kv_heads + kv_head)[:, None] * n + np.arange(n)
        ),
        "query": np.broadcast_to(query[:, None], given.shape),
        "row": np.broadcast_to(np.arange(len(token))[:, None], given.shape),
    }
    found = []
    for what, label in labels.items():
        size, weight = int(label.max()) + 1, (1 / np.maximum(variance, 1e-300)).ravel()
        flat = label.ravel()
        above = np.bincount(flat, (given * right).ravel() * weight, size)
        below = np.bincount(flat, (right**2).ravel() * weight, size)
        numbers = np.unique(flat)
        alone = what in ("head", "sample", "query") and 2 * len(numbers) > len(token)
        if alone or len(numbers) < 2 or len(numbers) * _EACH > shown:
            continue
        factor = above / np.where(below > 0, below, 1.0)
        each = factor[label]
        left = _rms(given - each * right, np.maximum(each**2 * variance, store))
        told = ", ".join(f"{factor[i]:.4g}" for i in numbers[:_LISTED])
        more = ", ..." if len(numbers) > _LISTED else ""
        name = "denominator of each row" if what == "row" else f"factor for each {what}"
        of = f" for {what}s {numbers[0]} to {numbers[-1]}" if " " not in what else ""
        where = f"times {told}{more}{of}"
        found.append(Match(name, where, left, np.nan))
    return found


def _by_offset(
    problem: Problem, rows: tuple[Array, ...], given: Array, right: Array, variance: Array
) -> list[Match]:
    """Return matches for a number added to each channel, of each KV head or of all."""
    n, kv_head = given.shape[1], rows[1] // problem.group
    found = []
    for what, part in (("channel", 0 * kv_head), ("channel of each KV head", kv_head)):
        label = (part[:, None] * n + np.arange(n)).ravel()
        weight = (1 / np.maximum(variance, 1e-300)).ravel()
        below = np.bincount(label, weight)
        offset = np.bincount(label, (given - right).ravel() * weight) / np.where(below, below, 1.0)
        if len(np.unique(label)) * _OF_EACH > given.size:
            continue
        added = offset[label].reshape(given.shape)
        # P's rounding acts on the offset, too, as it acts on the values
        size = np.maximum((right**2).mean(), 1e-300)
        left = _rms(given - right - added, variance * (1 + added**2 / size))
        told = ", ".join(f"{x:.4g}" for x in offset[np.unique(label)[:_LISTED]])
        if np.ptp(added, 1).max() <= _ALIKE * np.abs(added).max():
            name = f"a constant is added to V, of each {what.removeprefix('channel of each ')}"
        else:
            name = f"an offset of V for each {what}"
        found.append(Match(name, f"{told}, ...", left, np.nan))
    return found


def _others(
    problem: Problem, out: Array, truth: Array, sigma: Array, rows: tuple[Array, ...]
) -> Iterator[tuple[Any, ...]]:
    """Yield words, values and variance of what may have been added. Shapes: [R, Dv] each."""
    token, head = rows
    n_heads, n = truth.shape[1], truth.shape[2]
    for step in range(1, min(n_heads, _STEPS)):
        at = token, (head + step) % n_heads
        yield f"the output of head + {step}", truth[at], sigma[at] ** 2
    begin, end = (problem.q_ends[problem.request_of[token] + i] for i in (0, 1))
    longest = int((end - begin).max())
    for step in (s for k in range(1, min(longest, _STEPS)) for s in (k, -k)):
        at = begin + (token - begin + step) % (end - begin), head
        yield f"the output of query {step:+d}", truth[at], sigma[at] ** 2
    if longest > 1:
        lone = begin, head
        yield "the output of the first query", truth[lone], sigma[lone] ** 2
    if (np.diff(problem.q_ends) == longest).all():
        for step in range(1, min(problem.batch, _STEPS)):
            at = (token + step * longest) % len(truth), head
            yield f"the output of sample + {step}", truth[at], sigma[at] ** 2
    q = problem.q_here[rows].astype(np.float64)[:, :n]
    q = np.pad(q, ((0, 0), (0, n - q.shape[1])))  # added in as many channels as it has
    yield "the query", q, 0.0
    yield from _of_values(problem, (out[rows] - truth[rows]) / sigma[rows] ** 2, rows)


def _of_values(
    problem: Problem, error: Array, rows: tuple[Array, ...]
) -> Iterator[tuple[Any, ...]]:
    """Yield the mean of values, single values of each row's KV head, and a constant.

    error: of the rows, over its variance [R, Dv].
    """
    token, kv_head, request = rows[0], rows[1] // problem.group, problem.request_of[rows[0]]
    found = {name: np.zeros(error.shape) for name in ("mean", "first", "own", "key")}
    pairs = np.unique(np.stack([request, kv_head], 1), axis=0).tolist()
    key = _key_of(problem, error, [(*p, (request == p[0]) & (kv_head == p[1])) for p in pairs])
    for b, head in pairs:
        v, some = sheets.keys_of(problem, "v", head, b), (request == b) & (kv_head == head)
        if len(v):
            found["mean"][some], found["first"][some] = v.mean(0), v[0]
            found["key"][some] = v[min(key, len(v) - 1)]
            found["own"][some] = v[np.maximum(problem.n_keys[token[some]] - 1, 0)]
    for name, words in (
        ("mean", _MEAN),
        ("first", "the value of the first key"),
        ("own", "the value of the row's last key"),
        ("key", f"the value of key {key}"),
    ):
        yield words, found[name], 0.0
    yield "a constant", np.ones(error.shape), 0.0


def _key_of(problem: Problem, error: Array, pairs: list[tuple[int, int, Array]]) -> int:
    """Return the key whose value is most like all errors. pairs: request, KV head, rows."""
    along = np.zeros(int(problem.kv_lens.max(initial=1)))
    for i in np.unique(np.linspace(0, len(pairs) - 1, _PAIRS).astype(int)).tolist():
        b, head, some = pairs[i]
        v = sheets.keys_of(problem, "v", head, b)
        size = np.maximum(np.sqrt((v**2).sum(1)), 1e-300)
        along[: len(v)] += v @ error[some].sum(0) / size
    return int(np.abs(along).argmax())


def _sum_of(
    words: str,
    given: Array,
    right: Array,
    other: Array,
    variance: Array,
    noise: Array,
    store: Array,
) -> Match:
    """Return the sum a right + b other that fits best."""
    weight = 1 / np.maximum(variance, 1e-300)
    sides = np.array([[(x * y * weight).sum() for x in (right, other)] for y in (right, other)])
    try:
        a, b = np.linalg.solve(
            sides, np.array([(x * given * weight).sum() for x in (right, other)])
        )
    except np.linalg.LinAlgError:
        return Match("", "", np.inf, np.nan)
    a, b = (
        next((x for x in _ROUND_ONES if abs(number - x) <= _ROUND * abs(x)), float(number))
        for number in (a, b)
    )
    alone = (right * given * weight).sum() / max(sides[0, 0], 1e-300)
    left, without = (
        _rms(given - x * right - y * other, np.maximum(x**2 * variance + y**2 * noise, store))
        for x, y in ((a, b), (alone, 0.0))
    )
    if not left * _SMALLER_BY <= without:
        return Match("", "", np.inf, np.nan)
    if abs(a) < _NONE:  # another row in place of the output is no sum
        name = f"{words} in place of the output"
        name += ": keys left out, all others" * ("value of" in words)
        return Match(
            name,
            f"times {b:.4g}" * (b != 1),
            np.inf if "output" in words else left,
            np.nan,
            like_scale=True,
        )
    own = f"; the right output times {a:.4g}" * (a != 1)
    like_scale = words == _MEAN  # to first order, a scale that is a little off adds it
    where = f"times {b:.4g}{own}"
    return Match(f"{words} is added", where, left, np.nan, like_scale=like_scale)
