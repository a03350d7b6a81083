"""Outputs that are right but in the wrong place: channels, heads, queries, requests, layouts."""

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict.diagnosis.one_row import Match

_LEFT = 1.5  # rms of z that may be left, as in whole_kernel
_SMALLER_BY = 3.0
_ROWS = 48  # rows that are looked up among all rows
_LISTED = 4  # rows that are named one by one
_AMONG = 2**15  # most rows among which rows are looked up
_OFTEN = 0.9  # share of the rows that a rule must explain: some rows may look like others
_PLACES = (1, 2, 4, 8, 16, 32, 64)  # by which elements may be off
_OF_ANOTHER = "another row's output"


def of_output(problem: Problem, out: Array, truth: Array, sigma: Array, bad: Array) -> list[Match]:
    """Return names if channels or rows hold those of others. Shapes: bad [total_q, Hq], bool."""
    rows = np.argwhere(bad)
    if not len(rows):
        return []
    place = tuple(rows.T)
    with np.errstate(invalid="ignore", divide="ignore"):
        z = (out[place] - truth[place]) / sigma[place]
    was = float(np.sqrt((z**2).mean()))
    return (
        _laid_out(problem, out, truth, sigma, was)
        or _channels(out[place], truth[place], sigma[place], was)
        or _rows(problem, out, truth, sigma, rows, was)
        or _elements(problem, out, truth, sigma, bad, was)
    )


def _misfit(out: Array, given: Array, sigma: Array) -> float:
    """Return the rms of z, with sigma of the place from which the elements came."""
    with np.errstate(invalid="ignore", divide="ignore"):
        z = np.where(out == given, 0.0, (out - given) / sigma)
    return float(np.sqrt((z**2).mean()))


def _kept(name: str, where: str, left: float, was: float) -> list[Match]:
    return [Match(name, where, left, was)] if left <= _LEFT and left * _SMALLER_BY <= was else []


def _laid_out(problem: Problem, out: Array, truth: Array, sigma: Array, was: float) -> list[Match]:
    """Return a name if [B, S, H, D] is taken for [B, H, S, D], or the other way round."""
    heads = out.shape[1]
    if heads == 1 or not (np.diff(problem.q_ends) > 1).any():
        return []
    for where, back in (
        ("[B, S, H, D] for [B, H, S, D]", True),
        ("[B, H, S, D] for [B, S, H, D]", False),
    ):
        given, spread = np.empty_like(truth), np.empty_like(sigma)
        for first, last in zip(problem.q_ends[:-1], problem.q_ends[1:], strict=True):
            for target, source in ((given, truth), (spread, sigma)):
                part = source[first:last]
                if back:  # memory is [H, S, D], read as [S, H, D]
                    target[first:last] = part.swapaxes(0, 1).reshape(part.shape)
                else:  # memory is [S, H, D], read as [H, S, D]
                    swapped = part.reshape(heads, last - first, part.shape[-1])
                    target[first:last] = swapped.swapaxes(0, 1)
        found = _kept("out in another layout", where, _misfit(out, given, spread), was)
        if found:
            return found
    return []


def _channels(out: Array, truth: Array, sigma: Array, was: float) -> list[Match]:
    """Return a name if channels hold those of others. Shapes: [R, Dv] each, of the wrong rows."""
    n = out.shape[-1]
    inverse = 1 / np.maximum(sigma, 1e-300) ** 2
    # sum over rows of ((out_c - truth_d) / sigma_d)^2 for all pairs c, d
    squares = (out**2).T @ inverse - 2 * out.T @ (truth * inverse) + (truth**2 * inverse).sum(0)
    source = squares.argmin(1)
    moved = np.flatnonzero(source != np.arange(n))
    left = float(np.sqrt(max(squares.min(1).mean() / len(out), 0.0)))
    if len(out) * n < 4 or not len(moved):
        return []
    return _kept("channels mixed up", _words("channel", source, moved), left, was)


def _words(what: str, source: Array, moved: Array) -> str:
    n = len(source)
    index = np.arange(n)
    step = int((source[0] - 0) % n)
    if (source == (index + step) % n).all():
        return f"{what} c holds {what} (c + {step}) % {n}"
    if (source == n - 1 - index).all():
        return f"{what}s in reverse"
    for k in (2, 4, 8, 16, 32, 64):
        if n % k == 0:
            if (source == index.reshape(k, -1).T.ravel()).all():
                return f"{k} parts interleaved: {what} c holds {what} c % {k} * {n // k} + c // {k}"
            if (source == index ^ k).all():
                return f"{what} c holds {what} c xor {k}"
    first = int(moved[0])
    return f"{what} {first} holds {what} {int(source[first])}; {len(moved)} of {n} moved"


def _rows(
    problem: Problem, out: Array, truth: Array, sigma: Array, rows: Array, was: float
) -> list[Match]:
    """Return a name if rows hold the output of other rows."""
    chosen = rows[np.unique(np.linspace(0, len(rows) - 1, _ROWS).astype(int))]
    flat, spread = truth.reshape(-1, truth.shape[-1]), sigma.reshape(-1, sigma.shape[-1])
    if len(flat) > _AMONG or len(chosen) < 2:
        return []
    inverse = 1 / np.maximum(spread, 1e-300) ** 2
    mine = out[tuple(chosen.T)]
    squares = mine**2 @ inverse.T - 2 * mine @ (flat * inverse).T + (flat**2 * inverse).sum(1)
    source = squares.argmin(1)
    left = np.sqrt(np.maximum(squares.min(1), 0) / flat.shape[-1])
    heads, request_of = truth.shape[1], problem.request_of
    token, head = np.divmod(source, heads)
    own = request_of[chosen[:, 0]], chosen[:, 0] - problem.q_ends[request_of[chosen[:, 0]]]
    other = request_of[token], token - problem.q_ends[request_of[token]]
    good = left <= _LEFT
    if good.mean() < _OFTEN:
        return []
    name = _OF_ANOTHER
    kv_head, other_kv_head = chosen[:, 1] // problem.group, head // problem.group
    sees, other_sees = problem.n_keys[chosen[:, 0]], problem.n_keys[token]
    same = (own[0] == other[0]) & (kv_head == other_kv_head)
    if same[good].all():  # rows of the same keys differ in Q alone, and those of the same V in P
        seen = (sees == other_sees)[good].all()
        name += ", or Q of another row" if seen else ", or weights are those of another row"
    steps = {
        "sample": (other[0] - own[0])[good] % problem.batch,
        "head": (head - chosen[:, 1])[good] % heads,
    }
    queries = np.diff(problem.q_ends)
    if (queries == queries[0]).all():
        steps["query"] = (other[1] - own[1])[good] % queries[0]
    words = []
    for what, step in steps.items():
        values, counts = np.unique(step, return_counts=True)
        if counts.max() < _OFTEN * counts.sum():
            reverse = (head + chosen[:, 1])[good] if what == "head" else None
            if reverse is not None and (reverse == reverse[0]).mean() >= _OFTEN:
                words.append("heads in reverse")
                continue
            return [
                Match(
                    name,
                    f"first {problem.row_name(*chosen[0].tolist())} holds that of "
                    f"{problem.row_name(int(token[0]), int(head[0]))}",
                    float(np.sqrt((left**2).mean())),
                    was,
                )
            ]
        if int(values[counts.argmax()]):
            words.append(f"{what} + {int(values[counts.argmax()])}")
    where = "each row holds that of " + ", ".join(words)
    if len(rows) <= _LISTED:
        where = "; ".join(
            f"{problem.row_name(*row)} holds that of {problem.row_name(int(t), int(h))}"
            for row, t, h in zip(chosen.tolist(), token, head, strict=True)
        )
    return [Match(name, where, float(np.sqrt((left[good] ** 2).mean())), was)]


def _elements(
    problem: Problem, out: Array, truth: Array, sigma: Array, bad: Array, was: float
) -> list[Match]:
    """Return a name if all elements lie a few places off in memory, across channels and rows."""
    asked = np.diff(problem.q_ends)
    layouts = {"[tokens, heads, channels]": truth.shape}
    if (asked == asked[0]).all():
        layouts["[requests, heads, tokens, channels]"] = (len(asked), asked[0], *truth.shape[1:])
    for words, shape in layouts.items():
        mine, right, spread = (x.reshape(shape) for x in (out, truth, sigma))
        some = bad.reshape(shape[:-1])
        if len(shape) == 4:
            mine, right, spread = (x.swapaxes(1, 2) for x in (mine, right, spread))
            some = some.swapaxes(1, 2)
        for step in (x for d in _PLACES if d < truth.shape[-1] for x in (d, -d)):
            moved = (np.roll(x.ravel(), step).reshape(x.shape)[some] for x in (right, spread))
            where = f"{step:+d} elements, in memory of {words}"
            found = _kept("out stored some elements off", where, _misfit(mine[some], *moved), was)
            if found:
                return found
    return []
