"""Scores of other operands: the query of any other row, factors on channels, an offset of Q."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis import words
from labkernels.numerics.verdict.diagnosis.structure import mixtures
from labkernels.numerics.verdict.diagnosis.structure.gathered import Block, equations_of
from labkernels.numerics.verdict.diagnosis.structure.linear import LEFT, SMALLER_BY, too_many
from labkernels.numerics.verdict.diagnosis.structure.weights import Found
from labkernels.units import LOG2_E

_STEPS = 20  # most steps of a descent
_MOST = 2**27  # most products per step of a descent
_NEARLY = 0.02  # largest distance of a factor from a whole number
_OFTEN = 0.9  # least share of the rows for which a query is found
_ROWS = 6  # most rows of a block


def of_queries(blocks: list[Block], was: float) -> Iterator[Found]:
    """Find each row's query among those of near tokens, of other heads and of other samples."""
    rules: Counter[Any] = Counter()
    squares, rows, told = [], 0, []
    for block in blocks:
        sheet, problem = block.sheet, block.sheet.problem
        if problem.variant is not None:
            return
        for row in np.unique(np.linspace(0, len(sheet.tokens) - 1, _ROWS).astype(int)).tolist():
            rows += 1
            place = int(sheet.tokens[row]), int(sheet.heads[row])
            names, others = mixtures.candidates(problem, problem.q_here, place)
            q = others.T.astype(np.float64) * (problem.scale * LOG2_E)
            s = np.where(sheet.hidden[row], -np.inf, q @ sheet.k.T)
            p = np.exp2(s - s.max(1, keepdims=True))
            z = (p @ sheet.v / p.sum(1, keepdims=True) - sheet.out[row]) / block.sigma[row]
            miss = np.where(np.isfinite(z).all(1), (z**2).mean(1), np.inf)
            i = int(miss.argmin())
            if miss[i] <= LEFT**2 and names[i] != "its own":
                rules[names[i]] += 1
                squares.append(miss[i])
                told.append(f"{problem.row_name(*place)} has that of {names[i]}")
    if not rules or len(squares) < _OFTEN * rows:
        return
    rule, count = rules.most_common(1)[0]
    where = f"each row has that of {rule}" if count >= _OFTEN * rows else "; ".join(told[:3])
    rms = float(np.sqrt(np.mean(squares)))
    if rms * SMALLER_BY <= was:
        yield Found("Q of another row", where, rms)


def of_channels(blocks: list[Block], was: float) -> Iterator[Found]:
    """Fit a factor for each channel of the products q k."""

    def shapes(block: Block) -> Array:
        return block.sheet.q[:, None] * block.sheet.k[None]

    n = blocks[0].sheet.k.shape[1]
    found = descended(blocks, shapes, n, was)
    if found is None:
        return
    change, rms = found
    for whole, name in (
        (-1, "channels of Q or K left out"),
        (1, "channels of Q or K counted twice"),
        (-2, "channels of Q or K with the wrong sign"),
    ):
        some = np.abs(change - whole) <= _NEARLY
        if some.any() and (some | (np.abs(change) <= _NEARLY)).all():
            yield Found(name, words.of("channel", n)(np.flatnonzero(some)), rms)
            return
    told = ", ".join(f"{1 + x:.3g}" for x in change[:6])
    yield Found("channels of Q or K by a factor for each", f"times {told}, ...", rms, vague=True)


def of_offsets(blocks: list[Block], was: float) -> Iterator[Found]:
    """Fit a vector that is added to every query: of all rows, of a sample, of a KV head."""
    n = blocks[0].sheet.k.shape[1]
    for what, label in (
        ("", lambda block: 0),
        (" of each sample", lambda block: block.sheet.request),
        (" of each KV head", lambda block: block.sheet.kv_head),
    ):
        parts: dict[object, list[Block]] = {}
        for block in blocks:
            parts.setdefault(label(block), []).append(block)
        if what and len(parts) == 1:
            continue
        tried = [descended(some, _of_keys, n, was) for some in parts.values()]
        each = [found for found in tried if found is not None]
        if len(each) == len(tried):
            rms = max(found[1] for found in each)
            first = ", ".join(f"{x / LOG2_E:.3g}" for x in each[0][0][:4])
            yield Found(f"an offset of Q for each channel{what}", f"{first}, ...", rms)
            return


def _of_keys(block: Block) -> Array:
    k = block.sheet.k * block.sheet.problem.scale
    return np.broadcast_to(k, (len(block.sheet.q), *k.shape))


def descended(
    blocks: list[Block], shapes: Callable[..., Any], n: int, was: float
) -> tuple[Array, float] | None:
    """Return numbers x for which scores + shapes x explain the rows, and the rms; else None."""
    equations = sum(block.sheet.out.size for block in blocks)
    products = equations * n * max(block.sheet.kv_len for block in blocks)
    if too_many(n, equations_of(blocks)) or products > _MOST:
        return None
    if blocks[0].sheet.problem.variant is not None:
        return None
    each = [shapes(block) for block in blocks]
    x, damping = np.zeros(n), 1e-3
    before, square, side = _sides(blocks, each, x)
    for _ in range(_STEPS):
        if before <= 1.2 * equations:
            break
        step = np.linalg.lstsq(
            square + damping * np.diag(np.diag(square) + 1e-30), side, rcond=None
        )[0]
        after, *sides = _sides(blocks, each, x + step)
        if after < before:
            gone = after > 0.99 * before
            x, before, (square, side), damping = x + step, after, sides, damping / 10
            if gone:
                break
        else:
            damping *= 10
            if damping > 1e6:
                break
    rms = float(np.sqrt(before / max(equations - n, 1)))
    return (x, rms) if rms <= LEFT and rms * SMALLER_BY <= was else None


def _sides(blocks: list[Block], each: list[Array], x: Array) -> tuple[float, Array, Array]:
    """Return sum z^2 of the rows for numbers x, and the normal equations of the next step."""
    total, square, side = 0.0, np.zeros((len(x), len(x))), np.zeros(len(x))
    for block, shape in zip(blocks, each, strict=True):
        sheet = block.sheet
        s = np.where(sheet.hidden, -np.inf, sheet.raw + shape @ x)
        p = np.exp2(s - s.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        o = p @ sheet.v
        z = (sheet.out - o) / block.sigma
        weighted = p[..., None] * shape  # [R, L, K]
        changes = np.einsum("rlk,ld->rkd", weighted, sheet.v, optimize=True)
        changes -= weighted.sum(1)[..., None] * o[:, None]
        changes = changes * np.log(2)  # scores are in log2 units
        changes = (changes / block.sigma[:, None]).swapaxes(1, 2).reshape(-1, len(x))
        total += float((z**2).sum())
        square += changes.T @ changes
        side += changes.T @ z.ravel()
    return (total if np.isfinite(total) else np.inf), square, side


ALL = (of_queries, of_channels, of_offsets)
