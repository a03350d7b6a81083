"""Rows that are sums of other rows' outputs with any factors; the terms are found one by one."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from labkernels.numerics import rounding
from labkernels.numerics.arrays import Array
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict.diagnosis.structure.linear import LEFT, SMALLER_BY
from labkernels.numerics.verdict.diagnosis.structure.weights import Found
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import directions, keys_of

_ROWS = 64  # rows that are examined
_AMONG = 512  # rows that may be in a sum
_TERMS = 3
_OFTEN = 0.8  # least share of the rows for which a rule holds
_SHARE = 0.5  # most terms for each direction of the values: more would explain any row
_NONE = 0.003  # a factor below this counts as 0


def of_rows(
    problem: Problem, out: Array, truth: Array, sigma: Array, bad: Array, fmt: str
) -> Iterator[Found]:
    """Yield a name if outputs are sums of other rows' outputs. Shapes: bad [total_q, Hq], bool."""
    rows = np.argwhere(bad)
    rows = rows[np.unique(np.linspace(0, len(rows) - 1, _ROWS).astype(int))]
    if not len(rows) or truth.shape[-1] < 16:
        return
    found = [_of_row(problem, out, truth, sigma, tuple(row), fmt) for row in rows.tolist()]
    wrong = [x for x in found if x is not None]
    if not _is_evidence(problem, sigma, rows, wrong):
        return
    if len(wrong) < _OFTEN * len(rows):
        return
    rules = Counter(rule for rule, _, _ in wrong)
    rule, count = rules.most_common(1)[0]
    if count < _OFTEN * len(wrong) or not rule:
        return
    rms = float(np.sqrt(np.mean([r**2 for x, _, r in wrong if x == rule])))
    factors = [f for x, f, _ in wrong if x == rule]
    low, high = np.min(factors, 0), np.max(factors, 0)
    told = [
        f"{a:.3g}" if abs(b - a) <= 0.01 * abs(a) else f"{a:.3g} to {b:.3g}"
        for a, b in zip(low, high, strict=True)
    ]
    others = [words for words in rule if words != "its own"]
    if not others:
        return
    pairs = ", ".join(f"{words} times {x}" for words, x in zip(rule, told, strict=True))
    if "its own" in rule:
        yield Found(f"the output of {' and of '.join(others)} is added", pairs, rms)
    elif len(rule) > 1:
        yield Found(f"another row's output: a sum of {' and '.join(others)}", pairs, rms)
    else:
        yield Found("another row's output", f"that of {pairs}", rms)


def _is_evidence(problem: Problem, sigma: Array, rows: Array, found: list[Any]) -> bool:
    """Return whether the values have more directions than sums of so many rows explain."""
    terms = max((len(rule) for rule, _, _ in found), default=0)
    row = tuple(rows[len(rows) // 2].tolist())
    v = keys_of(problem, "v", row[1] // problem.group, int(problem.request_of[row[0]]))
    each = np.full(len(v), 1 / max(len(v), 1))
    return terms <= _SHARE * directions(each, v - v.mean(0), sigma[row])


def _of_row(
    problem: Problem, out: Array, truth: Array, sigma: Array, row: tuple[int, int], fmt: str
) -> tuple[tuple[str, ...], list[float], float] | None:
    """Return the rows of which a row is a sum, their factors, and the rms of z that is left."""
    given = out[row]
    spread = np.maximum(sigma[row], rounding.quantum(given, fmt) / 12**0.5)
    names, columns = candidates(problem, truth, row)
    sides, right = columns / spread[:, None], given / spread
    size = np.sqrt((sides**2).sum(0))
    size[size == 0] = np.inf
    chosen: list[int] = []
    left, factors = right, right[:0]
    was = float(np.sqrt((((given - truth[row]) / spread) ** 2).mean()))
    for _ in range(_TERMS):
        gain = np.abs(sides.T @ left) / size
        gain[chosen] = -1
        chosen.append(int(gain.argmax()))
        factors = np.linalg.lstsq(sides[:, chosen], right, rcond=None)[0]
        left = right - sides[:, chosen] @ factors
        # what is left includes the rounding errors of the other rows
        rms = float(np.sqrt((left**2).sum() / max(len(left) - len(chosen), 1)))
        if rms <= LEFT:
            break
    if rms > LEFT or rms * SMALLER_BY > was:
        return None
    big = [i for i in range(len(chosen)) if abs(factors[i]) > _NONE]
    order = sorted(big, key=lambda i: names[chosen[i]])
    return tuple(names[chosen[i]] for i in order), [float(factors[i]) for i in order], rms


def candidates(problem: Problem, values: Array, row: tuple[int, int]) -> tuple[list[str], Array]:
    """Return the names of C rows near a row, and their values of [total_q, Hq, X]: [X, C]."""
    token, head = row
    request = int(problem.request_of[token])
    first, last = (int(x) for x in problem.q_ends[request : request + 2])
    heads = values.shape[1]
    places = {"its own": (token, head)}
    for step in range(1, heads):
        name = f"head {step:+d}" if step <= heads // 2 else f"head {step - heads:+d}"
        places[name] = token, (head + step) % heads
    for other in range(max(first, token - 64), min(last, token + 65)):
        if other != token:
            places[f"query {other - token:+d}"] = other, head
    if (np.diff(problem.q_ends) == last - first).all():
        for step in range(1, min(problem.batch, 64)):
            at = (token + step * (last - first)) % len(values)
            places[f"sample {step:+d}"] = at, head
    names = list(places)[:_AMONG]
    return names, np.stack([values[places[name]] for name in names], 1)
