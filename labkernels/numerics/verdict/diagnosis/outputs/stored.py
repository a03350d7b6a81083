"""Outputs that are a function of the right ones, or are those of other rows in some channels."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics import rounding
from labkernels.numerics.arrays import Array
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict.diagnosis.one_row import Match
from labkernels.numerics.verdict.diagnosis.outputs import softmax_numbers
from labkernels.numerics.verdict.diagnosis.structure import mixtures

_LEFT = 1.5  # rms of z that may be left, as in whole_kernel
_SMALLER_BY = 3.0
_ROWS = 48
_STEPS = (*(2.0**-k for k in range(13)), 0.1, 0.05, 0.01, 0.005, 0.001)
_DISTINCT = 4  # least different values
_MULTIPLES = 3  # least different multiples of a step: numbers near 0 are multiples of any
_OTHER_FORMAT = {"bf16": "fp16", "fp16": "bf16"}
_CLIPPED = 0.8  # share of the elements that a clip may change: a constant is no clip
_OFTEN = 0.6  # share of the elements that a step must change: others are multiples by chance


def of_output(
    problem: Problem,
    out: Array,
    truth: Array,
    sigma: Array,
    bad: Array,
    fmt: str,
    channels: Array | None = None,
) -> list[Match]:
    """Return what made wrong outputs of right ones, in all channels or in `channels`.

    Shapes: bad [total_q, Hq], bool; channels [n].
    """
    some = np.arange(out.shape[-1]) if channels is None else channels
    rows = np.argwhere(bad)
    rows = rows[np.unique(np.linspace(0, len(rows) - 1, _ROWS).astype(int))] if len(rows) else rows
    place = tuple(rows.T)
    given, right, spread = (x[place][:, some] for x in (out, truth, sigma))
    if given.size < 8:
        return []
    store = rounding.quantum(given, fmt) / 12**0.5
    spread = np.maximum(spread, store)
    was = _rms(given, right, spread)
    # a constant is a multiple of many steps, and within many limits
    constant = len(np.unique(given)) < _DISTINCT
    tried = iter(()) if constant else _functions(given, right, spread)
    if not constant and fmt in _OTHER_FORMAT:
        tried = itertools.chain([_of_bits(given, right, sigma[place][:, some], fmt)], tried)
    if not constant:
        tried = itertools.chain(tried, _of_clips(problem, rows, given, right, spread))
    if channels is not None:
        moved = _of_rows(problem, truth, rows, some, given, spread)
        numbers = _of_softmax(problem, rows, given, store)
        every = itertools.chain(moved, numbers, tried)
        return [_named(*found, was) for found in every if _good(found[2], was)][:1]
    return [_named(*found, was) for found in tried if _good(found[2], was)][:1]


def _rms(given: Array, right: Array, spread: Array) -> float:
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        z = np.where(given == right, 0.0, (given - right) / spread)
    rms = float(np.sqrt((z**2).mean()))
    return rms if np.isfinite(rms) else np.inf


def _good(left: float, was: float) -> bool:
    return left <= _LEFT and left * _SMALLER_BY <= was


def _named(name: str, where: str, left: float, was: float) -> Match:
    return Match(name, where, left, was, name.startswith("out was rounded"))


def _of_bits(given: Array, right: Array, sigma: Array, fmt: str) -> tuple[str, str, float]:
    """Return how well the bits of the outputs, taken for the other 16-bit format, fit."""
    other = _OTHER_FORMAT[fmt]
    meant = rounding.from_bits(rounding.to_bits(given, fmt), other).astype(np.float64)
    spread = np.maximum(sigma, rounding.quantum(right, other) / 12**0.5)
    name = "out has the bits of the other 16-bit format"
    return name, f"{other} was stored, read as {fmt}", _rms(meant, right, spread)


def _functions(given: Array, right: Array, spread: Array) -> Iterator[tuple[str, str, float]]:
    plain: dict[str, tuple[str, Callable[[Array], Any]]] = {
        "out with the wrong sign, or V with the wrong sign": ("", np.negative),
        "out without its sign": ("its absolute value", np.abs),
        "out without its negative values": ("as after relu", lambda x: np.maximum(x, 0)),
        "out without its positive values": ("", lambda x: np.minimum(x, 0)),
        "out divided by its length": (
            "that of each row",
            lambda x: x / np.maximum(np.sqrt((x**2).sum(1, keepdims=True)), 1e-30),
        ),
        "out divided by its root mean square": (
            "that of each row",
            lambda x: x / np.maximum(np.sqrt((x**2).mean(1, keepdims=True)), 1e-30),
        ),
        "out squared": ("", np.square),
    }
    for name, (where, function) in plain.items():
        yield name, where, _rms(given, function(right), spread)
    high, low = float(given.max()), float(given.min())
    for name, where, limits in (
        ("out clipped", f"at {high:.4g} and its negative", (-high, high)),
        ("out clipped", f"at {high:.4g} from above", (-np.inf, high)),
        ("out clipped", f"at {low:.4g} from below", (low, np.inf)),
    ):
        clipped = np.clip(right, *limits)
        if (clipped != right).mean() <= _CLIPPED:
            yield name, where, _rms(given, clipped, spread)
    for step in _STEPS:
        off = np.abs(given - np.rint(given / step) * step)
        if (off > spread).any() or step < 4 * np.median(spread):
            continue
        if len(np.unique(np.rint(given / step))) < _MULTIPLES:
            continue
        changed = (np.abs(right - np.rint(right / step) * step) > spread).mean()
        if changed < _OFTEN:
            continue
        # the right value may lie at a border between two steps
        for words, low, high in (
            ("to the nearest", -step / 2, step / 2),
            ("down", 0.0, step),
            ("toward 0", 0.0, step),
        ):
            error = (right - given) * (np.sign(right) if words == "toward 0" else 1.0)
            beyond = np.maximum(np.maximum(error - high, low - error), 0.0) / spread
            left = float(np.sqrt((beyond**2).mean()))
            yield "out was rounded to steps", f"of {step:.4g}, {words}", left


def _of_clips(
    problem: Problem, rows: Array, given: Array, right: Array, spread: Array
) -> Iterator[tuple[str, str, float]]:
    """Yield clips at limits that heads, requests or both have of their own.

    The limit of a group is its largest output, which several outputs must have.
    """
    request, head = problem.request_of[rows[:, 0]], rows[:, 1]
    every = request * problem.q.shape[1] + head
    for words, group in (("head", head), ("request", request), ("head of a request", every)):
        _, label = np.unique(group, return_inverse=True)
        limit = np.zeros(label.max() + 1)
        np.maximum.at(limit, label, np.abs(given).max(1))
        most = limit[label][:, None]
        cut = np.abs(right) > most + spread
        if cut.sum() > 2 * len(limit) and cut.mean() <= _CLIPPED:
            where = f"at the largest output of each {words}, and its negative"
            yield "out clipped", where, _rms(given, np.clip(right, -most, most), spread)


def _of_softmax(
    problem: Problem, rows: Array, given: Array, store: Array
) -> Iterator[tuple[str, str, float]]:
    """Yield numbers of a row's softmax that some channels hold."""
    numbers, error = softmax_numbers.of_rows(problem, rows)
    for name, each in numbers.items():
        spread = np.hypot(store, error[:, None] * np.maximum(np.abs(each), 1.0)[:, None])
        yield f"{name} in place of the output", "", _rms(given, each[:, None], spread)


def _of_rows(
    problem: Problem, truth: Array, rows: Array, some: Array, given: Array, spread: Array
) -> Iterator[tuple[str, str, float]]:
    """Yield what some channels hold: those of another row, a factor, or other channels."""
    each = [mixtures.candidates(problem, truth, (int(a), int(b))) for a, b in rows]
    if not given.any():
        yield "never written, or V read as 0", "they are 0", 0.0
        return
    names = [name for name in each[0][0] if all(name in other for other, _ in each)]
    for name in names:
        if name == "its own":
            continue
        other = np.stack([values[some, said.index(name)] for said, values in each])
        yield "another row's output", f"that of {name}", _rms(given, other, spread)
        size = (other**2 / spread**2).sum()
        own = np.stack([values[some, said.index("its own")] for said, values in each])
        factor = float(((given - own) * other / spread**2).sum() / max(size, 1e-300))
        yield (
            "another row's output is added",
            f"that of {name} times {factor:.4g}",
            _rms(given, own + factor * other, spread),
        )
    own = truth[tuple(rows.T)]
    factor = (given * own[:, some] / spread**2).sum() / max(
        (own[:, some] ** 2 / spread**2).sum(), 1e-300
    )
    yield (
        "the output by a factor",
        f"times {factor:.4g}",
        _rms(given, factor * own[:, some], np.maximum(abs(factor), 1e-3) * spread + 0.0)
        if abs(factor) > 1
        else _rms(given, factor * own[:, some], spread),
    )
    for step in range(1, own.shape[1]):
        moved = own[:, (some + step) % own.shape[1]]
        yield (
            "channels mixed up",
            f"channel c holds channel (c + {step}) % {own.shape[1]}",
            _rms(given, moved, spread),
        )
