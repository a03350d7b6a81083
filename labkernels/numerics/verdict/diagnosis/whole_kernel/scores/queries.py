"""Scores of wrong operands: another row's query, K and V swapped, bits read differently.

Also weights that lie in the places of others, as where a fragment of P is transposed.

Each function yields one_rule.Mistakes.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics import rounding
from labkernels.numerics.arrays import Array, to_numpy
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit, best
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet, queries_of

_MOST = 16
_FAR = tuple(sign * 2**k for k in range(7) for sign in (1, -1))  # elements of an offset


def queries(sheets: list[Sheet]) -> Iterator[Mistake]:
    """The query comes from another head, query or sample."""
    problem = sheets[0].problem
    heads, longest = problem.q.shape[1], int(np.diff(problem.q_ends).max())
    ways = {f"head h has that of head (h + {n}) % {heads}": (0, 0, n) for n in range(1, heads)}
    for n in range(1, min(longest, _MOST)):
        ways[f"query i has that of query i + {n}"] = 0, n, 0
        ways[f"query i has that of query i - {n}"] = 0, -n, 0
    for n in range(1, min(problem.batch, _MOST)):
        ways[f"sample b has that of sample (b + {n}) % {problem.batch}"] = n, 0, 0
    for where, steps in list(ways.items())[: 4 * _MOST]:
        yield Mistake("Q of another row", where, lambda sheet, s=steps: _of_row(sheet, *s))


def _of_row(sheet: Sheet, samples: int, queries_: int, heads: int) -> Array | None:
    problem, ends = sheet.problem, sheet.problem.q_ends
    request = (sheet.request + samples) % problem.batch
    first, count = int(ends[request]), int(ends[request + 1] - ends[request])
    if not count:
        return None
    token = (sheet.tokens - int(ends[sheet.request]) + queries_) % count + first
    q = queries_of(problem, token, (sheet.heads + heads) % problem.q.shape[1])
    return sheet.attend(sheet.masked(sheet.shaped(q @ sheet.k.T)))


def places(sheets: list[Sheet]) -> Iterator[Mistake]:
    """K stands where V should be, or V where K should be."""
    if sheets[0].k.shape[1] != sheets[0].v.shape[1]:
        return
    for name, k, v in (
        ("K and V exchanged", "v", "k"),
        ("K read for V", "k", "k"),
        ("V read for K", "v", "v"),
    ):
        yield Mistake(
            name,
            "",
            lambda sheet, k=k, v=v: sheet.attend(
                sheet.masked(sheet.shaped(sheet.q @ getattr(sheet, k).T)), getattr(sheet, v)
            ),
        )


def bits(sheets: list[Sheet]) -> Iterator[Mistake]:
    """The 16 bits of K or V are taken for the other format."""
    own = (
        "bf16"
        if rounding.is_representable(to_numpy(sheets[0].problem.k_pool[:1]), "bf16").all()
        else "fp16"
    )
    other = "fp16" if own == "bf16" else "bf16"
    for what in ("K and V", "K", "V"):
        yield Mistake(
            f"{what} read as {other}",
            f"bits of {own} taken for {other}",
            lambda sheet, w=what: _read(sheet, w, lambda x: _taken_for(x, own, other)),
        )


def rounded_bits(sheets: list[Sheet]) -> Iterator[Mistake]:
    """K or V are rounded to a 16-bit format, whose bits are taken for the other one."""
    for own, other in (("fp16", "bf16"), ("bf16", "fp16")):
        for what in ("K and V", "K", "V"):
            yield Mistake(
                f"{what} read as {other}",
                f"rounded to {own}, whose bits are taken for {other}",
                lambda sheet, w=what, a=own, b=other: _read(
                    sheet, w, lambda x: _taken_for(rounding.round_to(x, a), a, b)
                ),
                cost=0.5,
            )


def _taken_for(x: Array, own: str, other: str) -> Array | None:
    if not rounding.is_representable(x, own).all():
        return None
    return rounding.from_bits(rounding.to_bits(x, own), other).astype(np.float64)


def bytes_(sheets: list[Sheet]) -> Iterator[Mistake]:
    """K or V have 8 bits, and the bits of the one format are taken for the other."""
    for own, other in (("e4m3", "e5m2"), ("e5m2", "e4m3")):
        for what in ("K and V", "K", "V"):
            yield Mistake(
                f"{what} read as {other}",
                f"rounded to {own}, whose bits are taken for {other}",
                lambda sheet, w=what, a=own, b=other: _read(sheet, w, lambda x: _byte(x, a, b)),
            )


def _byte(x: Array, own: str, other: str) -> Array:
    """Return what the bytes of x, rounded to the one format, are in the other."""
    every = np.arange(256, dtype=np.uint8)
    meant, read = (rounding.from_bits(every, fmt).astype(np.float64) for fmt in (own, other))
    order = np.argsort(meant)  # NaN comes last, as it is what a value too large becomes
    known = meant[order[: int((~np.isnan(meant)).sum())]]
    found = read[order[np.minimum(np.searchsorted(known, rounding.round_to(x, own)), 255)]]
    return np.where(np.signbit(x), -np.abs(found), np.abs(found))


def squares(sheets: list[Sheet]) -> Iterator[Mistake]:
    """Weights are transposed in squares of queries and keys."""
    problem = sheets[0].problem
    if problem.variant is not None:
        return
    packed = [False] + [True] * (problem.group > 1)
    for size in (4, 8, 16):
        for rows in packed:
            for words in ("the sum of P is right", "and their sum too", "P was divided before"):
                of = ", of the heads of a group" * rows
                yield Mistake(
                    "P transposed: weights of other queries and keys",
                    f"in squares of {size} rows{of} and {size} keys; {words}",
                    lambda sheet, n=size, p=rows, w=words: _transposed(sheet, n, p, w),
                    cost=1.0,
                )


def _transposed(sheet: Sheet, size: int, packed: bool, words: str) -> Array | None:
    problem, ends = sheet.problem, sheet.problem.q_ends
    first, end = (int(ends[sheet.request + i]) for i in (0, 1))
    group = problem.group if packed else 1
    row = ((sheet.tokens - first) * group + sheet.heads % group)[:, None]
    key = np.arange(sheet.kv_len)[None]
    other, source = row // size * size + key % size, key // size * size + row % size
    there = (other < (end - first) * group) & (source < sheet.kv_len)
    if (end - first) * group < 2:
        return None
    token = np.where(there, other // group + first, first)
    head = sheet.kv_head * problem.group + other % group if packed else sheet.heads[:, None]
    heads = problem.q.shape[1]
    number, index = np.unique(token * heads + head, return_inverse=True)
    token, head = np.divmod(number, heads)
    s = queries_of(problem, token, head) @ sheet.k.T
    s = np.where(key < problem.n_keys[token][:, None], s, -np.inf)
    p = np.exp2(s - s.max(1, keepdims=True))
    divided = words == "P was divided before"
    p = p / p.sum(1, keepdims=True) if divided else p
    p = np.where(there, p[index.reshape(there.shape), np.where(there, source, 0)], 0.0)
    if divided:
        return p @ sheet.v
    l = p if words == "and their sum too" else sheet.weights
    return p @ sheet.v / l.sum(1, keepdims=True)


def offsets(sheets: list[Sheet]) -> Iterator[Mistake]:
    """K or V are read some elements before or behind their place, for one head or all."""
    many = sheets[0].problem.kv_heads > 1
    for step in _FAR:
        for lie, all_heads in (("[H, S, D]", False), ("[S, H, D]", True)):
            if all_heads and not many:
                continue
            for what in ("K and V", "K", "V"):
                yield Mistake(
                    f"{what} read some elements off",
                    f"{step:+d} elements, as {lie} lies",
                    lambda sheet, s=step, a=all_heads, w=what: _shifted(sheet, s, w, a),
                )


def _shifted(sheet: Sheet, step: int, what: str, all_heads: bool) -> Array:
    heads = range(sheet.problem.kv_heads) if all_heads else [sheet.kv_head]
    given = {}
    for which in "kv":
        if which.upper() not in what:
            continue
        each = np.stack([sheet.keys(which, head) for head in heads], 1)  # [S, H, D]
        moved = np.roll(each.ravel(), -step).reshape(each.shape)
        given[which] = moved[:, sheet.kv_head if all_heads else 0]
    return _attended(sheet, given)


def lengths(sheets: list[Sheet]) -> Iterator[Mistake]:
    """Rows of K or V are read with a wrong length; zeros lie behind the last element."""
    for more in (1, 2, 4, 8, 16, 32, -1, -2, -4, -8):
        for what in ("K and V", "K", "V"):
            yield Mistake(
                f"{what} read by another stride",
                f"rows of {more:+d} elements",
                lambda sheet, m=more, w=what: _read(sheet, w, lambda x: _by_stride(x, m)),
            )


def _by_stride(x: Array, more: int) -> Any:
    n, d = x.shape
    if d + more < 1:
        return None
    flat = np.concatenate([x.ravel(), np.zeros(n * max(more, 0))])
    return flat[np.arange(n)[:, None] * (d + more) + np.arange(d)]


def _read(sheet: Sheet, what: str, change: Callable[..., Any]) -> Any:
    given = {w: change(getattr(sheet, w)) for w in "kv" if w.upper() in what}
    return None if any(x is None for x in given.values()) else _attended(sheet, given)


def _attended(sheet: Sheet, given: dict[str, Any]) -> Array:
    scores = sheet.scores
    if "k" in given:
        scores = sheet.masked(sheet.shaped(sheet.q @ given["k"].T))
    return sheet.attend(scores, given.get("v"))


def means(sheets: list[Sheet]) -> Iterator[Mistake]:
    """Queries are shifted by a mean: of a tile of rows, of a request, of heads, of channels."""
    for words, change in _MEANS.items():
        for name, less in (("Q less its mean", True), ("Q is a mean", False)):

            def outputs(sheet: Sheet, f: Callable[..., Any] = change, s: bool = less) -> Array:
                q = sheet.q - f(sheet) if s else f(sheet) + 0 * sheet.q
                return sheet.attend(sheet.masked(sheet.shaped(q @ sheet.k.T)))

            yield Mistake(name, f"that {words}", outputs, cost=1.0)


def _of_tile(sheet: Sheet, size: int, packed: bool) -> Array:
    """Return the mean query of each row's tile: of tokens, or of the rows of a packed group."""
    problem, first = sheet.problem, int(sheet.problem.q_ends[sheet.request])
    count = int(problem.q_ends[sheet.request + 1]) - first
    row = sheet.packed_rows if packed else sheet.queries
    rows = count * problem.group if packed else count
    size = size or rows
    begin, found = row // size * size, np.empty_like(sheet.q)
    for start, head in {*zip(begin.tolist(), sheet.heads.tolist(), strict=True)}:
        of = np.arange(start, min(start + size, rows))
        tokens, heads = (of // problem.group, of % problem.group) if packed else (of, head)
        heads = sheet.kv_head * problem.group + heads if packed else np.full(len(of), head)
        mean = queries_of(problem, tokens + first, heads).mean(0)
        found[(begin == start) & (sheet.heads == head)] = mean
    return found


def _of_heads(sheet: Sheet, group: bool) -> Array:
    own = slice(sheet.kv_head * sheet.problem.group, (sheet.kv_head + 1) * sheet.problem.group)
    return queries_of(sheet.problem, sheet.tokens, own if group else slice(None)).mean(1)


_MEANS: dict[str, Callable[..., Any]] = {
    "over the channels": lambda sheet: sheet.q.mean(1, keepdims=True),
    "of all heads": lambda sheet: _of_heads(sheet, False),
    "of the heads of a group": lambda sheet: _of_heads(sheet, True),
    "of all queries of the request": lambda sheet: _of_tile(sheet, 0, False),
    **{
        f"of each {n} {'rows of packed heads' if packed else 'queries'}": (
            lambda sheet, n=n, p=packed: _of_tile(sheet, n, p)
        )
        for packed in (False, True)
        for n in (16, 32, 64, 128, 8, 4)
    },
}

ALL = (queries, places, bits, rounded_bits, bytes_, squares, offsets, lengths)


def of_means(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Return the mean that fits best; the function takes a misfit, as those of `fitted` do."""
    yield from best(misfit, list(means(sheets)))


LATE = (of_means,)
