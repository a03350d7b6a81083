"""Which block of V each block of keys meets: a table of numbers with at most one 1 in each row.

A table is fitted between blocks of a size, or between keys within blocks, the same in all blocks.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.structure.gathered import Block, equations_of
from labkernels.numerics.verdict.diagnosis.structure.linear import (
    LEFT,
    Terms,
    fitted,
    left,
    too_many,
)
from labkernels.numerics.verdict.diagnosis.structure.weights import Found

_BETWEEN = (256, 128, 64, 48, 32, 24, 16, 12, 8, 4)
_WITHIN = (4, 8, 16, 32)
_PAGES, _PAGES_MOST = (16, 32, 64, 128), 24
_LISTED = 4
_NEARLY = 0.05  # largest relative distance of the numbers from those of a mean


def of_tables(blocks: list[Block], was: float) -> Iterator[Found]:
    """Yield a name if keys meet V, or K, of other blocks or keys than their own."""
    longest = max(block.sheet.kv_len for block in blocks)
    equations = equations_of(blocks)
    for kind in ("V", "K"):
        for size in _WITHIN:
            if size <= longest and not too_many(size * size, equations):
                yield from _of(blocks, was, size, size, kind, _within)
        for size in _BETWEEN:
            n = -(-longest // size)
            if n > 1 and not too_many(n * n, equations):
                yield from _of(blocks, was, size, n, kind, _between)
    yield from _of_pages(blocks, was)


def _of_pages(blocks: list[Block], was: float) -> Iterator[Found]:
    """Yield a name if each place of a block has K and V of another block, by a table of a request.

    Behind the last key lie zeros, which a block that is read early brings to the front.
    """
    requests = sorted({block.sheet.request for block in blocks})
    for size in _PAGES:
        told, squares, equations = [], 0.0, 0
        for request in requests:
            some = [block for block in blocks if block.sheet.request == request]
            n = -(-some[0].sheet.kv_len // size)
            if n < 2 or n > _PAGES_MOST or too_many(n * n, equations_of(some)):
                break
            terms = [_terms_of_pages(block, size, n) for block in some]
            table = _whole_table(terms, n, was)
            if table is None:
                break
            count = sum(part.out.size for part in terms)
            squares += left(terms, table.ravel()) ** 2 * count
            equations += count
            moved = np.flatnonzero(table.argmax(1) != np.arange(n))
            rule = _rule(table.argmax(1), "page")
            told.append(f"sample {request}: {rule}" if len(moved) else "")
        else:
            rms = float(np.sqrt(squares / max(equations, 1)))
            if rms <= LEFT and any(told):
                where = f"{'; '.join(filter(None, told[:3]))}, of {size} keys"
                yield Found("keys read from other pages", where, rms)
                return


def _whole_table(terms: list[Terms], n: int, was: float) -> Array | None:
    """Return the table of places and pages with one 1 in each row; None if there is none."""
    fit = fitted(terms, n * n, was)
    if fit is None or not fit.explains:
        return None
    table = np.where(fit.known, fit.whole, np.eye(n).ravel()).reshape(n, n)
    lone = np.isin(table, (0, 1)).all() and (table.sum(1) == 1).all()
    return table if lone and left(terms, table.ravel()) <= LEFT else None


def _terms_of_pages(block: Block, size: int, n: int) -> Terms:
    """Return sums of each page's weights and values at each place. Shapes: above [R, n n, Dv]."""
    more = n * size - block.sheet.kv_len
    top = block.sheet.scores.max(1, keepdims=True)
    zero = np.exp2(-top) / np.exp2(block.sheet.scores - top).sum(1, keepdims=True)
    p = np.concatenate([block.p, zero.repeat(more, 1)], 1).reshape(-1, n, size)
    v = np.pad(block.v, ((0, more), (0, 0))).reshape(n, size, -1)
    seen = np.pad(block.seen, ((0, 0), (0, more))).reshape(-1, n, size).astype(float)
    above = np.einsum("rba,rca,bad->rcbd", p, seen, v, optimize=True)
    below = np.einsum("rba,rca->rcb", p, seen)
    return block.terms(above.reshape(len(p), n * n, -1), below.reshape(len(p), -1))


def _of(
    blocks: list[Block], was: float, size: int, n: int, kind: str, tables: Callable[..., Any]
) -> Iterator[Found]:
    terms = [_terms(block, size, n, kind, tables) for block in blocks]
    fit = fitted(terms, n * n, was)
    if kind == "V" and tables is _within and (fit is None or not fit.explains):
        terms = [_terms(block, size, n, kind, tables, whole=True) for block in blocks]
        fit = fitted(terms, n * n, was)
    if fit is None or not fit.explains:
        return
    table, known = fit.whole.reshape(n, n), fit.known.reshape(n, n)
    own = np.eye(n)
    if known.all() and kind == "V" and np.abs(fit.x - 1 / n).max() <= _NEARLY / n:
        yield Found("V is a mean of several keys'", f"of each {size} keys", fit.rms)
        return
    table = np.where(known, table, own)
    if np.isnan(table).any():
        return
    rms = left(terms, table.ravel())
    if rms > 1.5:
        return
    sums = table.sum(1 if kind == "V" else 0)
    if not (np.isin(table, (0, 1)).all() and (sums <= 1).all()):
        return
    source = np.where(sums == 1, (table.argmax(1) if kind == "V" else table.argmax(0)), -1)
    name, where = _told(source, size, kind, tables is _within)
    if name == "V read in another order" and not any(b.sheet.hidden.any() for b in blocks):
        name += ", or K read in another order"  # without a mask they are the same
    yield Found(name, where, rms)


def _terms(
    block: Block, size: int, n: int, kind: str, tables: Callable[..., Any], *, whole: bool = False
) -> Terms:
    """Return sums of one block's weights with another's values. Shapes: above [R, n n, Dv].

    whole: the keys of a last, partial block have their own values.
    """
    if whole:
        return _of_whole_blocks(block, size, n, tables)
    length = block.sheet.kv_len
    more = -length % size
    p = np.where(block.seen, block.p, 0.0) if kind == "V" else block.p
    p = np.concatenate([p, np.zeros((len(p), more))], 1).reshape(len(p), -1, size)
    v = np.concatenate([block.v, np.zeros((more, block.v.shape[1]))]).reshape(
        -1, size, block.v.shape[1]
    )
    seen = np.concatenate([block.seen, np.zeros((len(p), more), bool)], 1).reshape(p.shape)
    above, below = tables(p, v, seen.astype(float), kind)
    short = n - p.shape[1] if tables is _between else 0
    if short:
        above = np.pad(above, ((0, 0), (0, short), (0, short), (0, 0)))
        below = np.pad(below, ((0, 0), (0, short), (0, short)))
    rows = len(p)
    return block.terms(
        above.reshape(rows, n * n, -1), below.reshape(rows, -1) if kind == "K" else None
    )


def _of_whole_blocks(block: Block, size: int, n: int, tables: Callable[..., Any]) -> Terms:
    """Return equations of V within whole blocks; the part of other keys is subtracted from rows."""
    last = block.sheet.kv_len // size * size
    p = np.where(block.seen, block.p, 0.0)
    rest = p[:, last:] @ block.v[last:]
    p, v = p[:, :last].reshape(len(p), -1, size), block.v[:last].reshape(-1, size, rest.shape[1])
    above, _ = tables(p, v, None, "V")
    return Terms(above.reshape(len(p), n * n, -1), None, block.sheet.out - rest, block.sigma)


def _between(p: Array, v: Array, seen: Array, kind: str) -> tuple[Any, ...]:
    if kind == "V":
        return np.einsum("rba,cad->rbcd", p, v), np.zeros((len(p), p.shape[1], p.shape[1]))
    whose = seen  # a hidden key stays hidden, whatever its score is
    above = np.einsum("rba,rca,cad->rbcd", p, whose, v, optimize=True)
    return above, np.einsum("rba,rca->rbc", p, whose)


def _within(p: Array, v: Array, seen: Array, kind: str) -> tuple[Array, Array]:
    if kind == "V":
        return np.einsum("rba,bcd->racd", p, v), np.zeros((len(p), p.shape[2], p.shape[2]))
    above = np.einsum("rba,rbc,bcd->racd", p, seen, v, optimize=True)
    return above, np.einsum("rba,rbc->rac", p, seen)


def _told(source: Array, size: int, kind: str, within: bool) -> tuple[str, str]:
    """Return the name and the rule of a table."""
    n, at = len(source), np.arange(len(source))
    moved = np.flatnonzero(source != at)
    what = "key" if within else "block" if size > 1 else "key"
    of = f"within each {size} keys" if within else f"of {size} keys"
    if (source[moved] < 0).all():
        name = f"{kind} read as 0"
        said = ", ".join(map(str, moved[:_LISTED].tolist()))
        return name, f"{what}s {of}: {said}" + ", ..." * (len(moved) > _LISTED)
    order = len(np.unique(source)) == n
    name = f"{kind} read in another order" if order else f"{kind} read from other keys"
    return name, f"{_rule(source, what)}, {of}"


def _rule(source: Array, what: str) -> str:
    n, at = len(source), np.arange(len(source))
    if (source == n - 1 - at).all():
        return f"{what}s in reverse"
    step = int(source[0])
    if (source == (at + step) % n).all():
        return f"{what} i reads {what} (i + {step}) % {n}"
    for bit in (1, 2, 4, 8, 16):
        if (source == at ^ bit).all():
            return f"{what} i reads {what} i xor {bit}"
    for step in range(-n + 1, n):
        if step and (source == np.clip(at + step, 0, n - 1)).all():
            return f"{what} i reads {what} i {step:+d}"
    for rows in range(2, n // 2 + 1):
        if n % rows == 0 and (source == at.reshape(rows, -1).T.ravel()).all():
            return f"{what}s transposed as {rows} x {n // rows}"
    moved = np.flatnonzero(source != at)
    said = [
        f"{what} {i} reads {'zeros' if source[i] < 0 else f'{what} {source[i]}'}"
        for i in moved[:_LISTED]
    ]
    return ", ".join(said) + f" and {len(moved) - _LISTED} more" * (len(moved) > _LISTED)
