"""Roundings that a whole kernel should not make: formats, accumulators.

Each function yields one_rule.Mistakes.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from labkernels import formats
from labkernels.numerics import rounding
from labkernels.numerics.arrays import ZERO, Array, to_numpy
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet
from labkernels.units import LOG2_E

_PAGES = {"page of 16 keys": 16, "page of 32 keys": 32, "page of 64 keys": 64}
_STEPS = (*(2.0**-k for k in range(9)), 0.2, 0.1, 0.05, 0.02, 0.01)
_FORMATS = ("e4m3", "e5m2", "bf16", "fp16", "tf32")


def scores(sheets: list[Sheet]) -> Iterator[Mistake]:
    """Scores, or scaled queries, are rounded to 16 bits."""
    scale_log2 = sheets[0].problem.scale * LOG2_E
    scale, to = sheets[0].problem.scale, rounding.round_to
    narrow = "bf16" if _is_of(sheets[0].problem.q, "bf16") else "fp16"
    for fmt in ("bf16", "fp16"):
        for words, unit in (
            ("q k", 1 / scale_log2),
            ("scale q k", 1 / LOG2_E),
            ("log2 units", 1.0),
        ):
            yield Mistake(
                f"scores rounded to {fmt}",
                f"as {words}",
                lambda sheet, f=fmt, u=unit: sheet.attend(sheet.masked(to(sheet.raw * u, f) / u)),
                precision=True,
            )
        yield Mistake(
            f"scores rounded to {fmt}",
            "as q k, and again once scaled",
            lambda sheet, f=fmt: sheet.attend(
                sheet.masked(to(to(sheet.raw / scale_log2, f) * scale, f) * LOG2_E)
            ),
            precision=True,
        )
        yield Mistake(
            f"scores and P rounded to {fmt}",
            "eager, every operation rounded",
            lambda sheet, f=fmt: _eager(sheet, f, scale, scale_log2),
            precision=True,
        )
    for words, factor in (("scale", scale), ("scale log2(e)", scale_log2)):
        yield Mistake(
            f"q rounded to {narrow} once scaled",
            words,
            lambda sheet, x=factor: sheet.attend(
                sheet.scores_of(to(sheet.q / scale_log2 * x, narrow) * (scale_log2 / x), sheet.k)
            ),
            precision=True,
        )


def operands(sheets: list[Sheet]) -> Iterator[Mistake]:
    """Q, K, V or P are rounded to fewer bits than the policy says."""
    scale_log2, to = sheets[0].problem.scale * LOG2_E, rounding.round_to
    given = formats.named(sheets[0].p_format.removesuffix("x2")).unit_roundoff
    for fmt in _FORMATS:
        if formats.named(fmt).unit_roundoff <= given:
            continue

        def cut(x: Array, fmt: str = fmt) -> Array:
            return to(x, fmt)

        yield Mistake(
            f"K and V in {fmt}",
            "",
            lambda sheet, c=cut: sheet.attend(sheet.scores_of(sheet.q, c(sheet.k)), c(sheet.v)),
            precision=True,
        )
        yield Mistake(
            f"V in {fmt}",
            "",
            lambda sheet, c=cut: sheet.attend(sheet.scores, c(sheet.v)),
            precision=True,
        )
        yield Mistake(
            f"K in {fmt}",
            "",
            lambda sheet, c=cut: sheet.attend(sheet.scores_of(sheet.q, c(sheet.k))),
            precision=True,
        )
        yield Mistake(
            f"Q and K in {fmt}",
            "",
            lambda sheet, c=cut: sheet.attend(
                sheet.scores_of(c(sheet.q / scale_log2) * scale_log2, c(sheet.k))
            ),
            precision=True,
        )
        yield Mistake(
            f"Q in {fmt}",
            "",
            lambda sheet, c=cut: sheet.attend(
                sheet.scores_of(c(sheet.q / scale_log2) * scale_log2, sheet.k)
            ),
            precision=True,
        )
        for words, block in (("against the row's maximum", 1 << 30), ("blocks of 64", 64)):
            for kind in ("unrounded", "rounded"):
                yield Mistake(
                    f"P in {fmt}",
                    f"{words}, divided by the sum of {kind} P",
                    lambda sheet, f=fmt, b=block, k=kind: _coarse_p(sheet, f, b, k),
                    precision=True,
                )


def scaled_operands(sheets: list[Sheet]) -> Iterator[Mistake]:
    """Q, K or V have 8 or 4 bits and scales: one for all, or per head, token, channel or page."""
    overall: dict[str, float] = {}

    def largest(x: Array, which: str, of: str) -> Any:
        if of == "tensor":
            if which not in overall:
                overall[which] = sheets[0].largest(which)
            return overall[which]
        if of in _PAGES:
            return _of_pages(np.abs(x).max(1, keepdims=True), _PAGES[of])
        axis = {"head": None, "token": 1, "channel": 0}[of]
        return np.abs(x).max(axis, keepdims=True)

    def outputs(sheet: Sheet, kind: str, of: str, what: str) -> Array:
        scores, q, k, v = sheet.scores, sheet.q, sheet.k, sheet.v
        if "Q" in what:
            unit = sheet.problem.scale * LOG2_E
            plain = (q / unit).astype(np.float32).astype(np.float64)  # exactly Q, to keep its ties
            q = unit * _scaled(plain, _largest_of_q(sheet, of) / unit, kind)
        if "K" in what:
            k = _scaled(k, largest(k, "k", of), kind)
        if "Q" in what or "K" in what:
            scores = sheet.scores_of(q, k)
        if "V" in what:
            v = _scaled(v, largest(v, "v", of), kind)
        return sheet.attend(scores, v)

    for kind in ("int8", "e4m3", "e5m2", "int4"):
        for of in ("tensor", "head", "token", "channel", *_PAGES):
            for what in ("K and V", "K", "V", "Q", "Q and K", "Q, K and V")[
                : 3 if of in _PAGES else 6
            ]:
                yield Mistake(
                    f"{what} in {kind}",
                    f"one scale for each {of}" if of != "tensor" else "one scale for all",
                    lambda sheet, k=kind, o=of, w=what: outputs(sheet, k, o, w),
                    precision=True,
                )


def _of_pages(largest: Array, size: int) -> Array:
    """Return the largest of each page, for each of its keys. Shapes: [L, 1]."""
    starts = np.arange(0, len(largest), size)
    return np.maximum.reduceat(largest, starts).repeat(size, 0)[: len(largest)]


def _largest_of_q(sheet: Sheet, of: str) -> Array:
    """Return the largest |q| in log2 units: of all, by head of a request, by row or by channel."""
    problem, unit = sheet.problem, sheet.problem.scale * LOG2_E
    if of == "token":
        return np.abs(sheet.q).max(1, keepdims=True)
    tokens = slice(*(int(end) for end in problem.q_ends[sheet.request : sheet.request + 2]))
    own = problem.q if of == "tensor" else problem.q[tokens]
    size = np.abs(to_numpy(own).astype(np.float64)) * unit
    if of == "tensor":
        return size.max()
    if of == "head":
        return size.max((0, 2))[sheet.heads][:, None]
    return size.max(0)[sheet.heads]


def _scaled(x: Array, largest: Array, kind: str) -> Array:
    """Return x as multiples of a step, by which `largest` is the format's largest number."""
    whole = kind.startswith("int")
    most = 2.0 ** (int(kind[3:]) - 1) - 1 if whole else formats.named(kind).max
    step = np.where(largest > 0, largest, 1.0) / most
    with np.errstate(over="ignore"):
        parts = (x / step).astype(np.float32).astype(np.float64)  # kernels divide in fp32
    return step * (np.rint(parts) if whole else rounding.round_to(parts, kind))


def _is_of(tensor: Array, fmt: str) -> bool:
    return bool(rounding.is_representable(to_numpy(tensor[:1]), fmt).all())


def _eager(sheet: Sheet, fmt: str, scale: float, scale_log2: float) -> Array | None:
    if sheet.has_sink:
        return None
    raw = rounding.round_to(sheet.raw / scale_log2, fmt)
    scores = rounding.round_to(raw * scale, fmt) * LOG2_E
    p = np.exp2(sheet.masked(scores) - sheet.masked(scores).max(1, keepdims=True))
    return rounding.round_to(p / p.sum(1, keepdims=True), fmt) @ sheet.v


def _coarse_p(sheet: Sheet, fmt: str, block: int, kind: str) -> Array | None:
    if sheet.has_sink:
        return None
    m, scores = sheet.scores.max(1, keepdims=True), sheet.scores
    tops = np.concatenate(
        [
            np.repeat(
                scores[:, i : i + block].max(1, keepdims=True), min(block, scores.shape[1] - i), 1
            )
            for i in range(0, scores.shape[1], block)
        ],
        1,
    )
    tops = np.maximum.accumulate(tops, 1)
    with np.errstate(invalid="ignore"):
        p = np.where(np.isinf(scores), 0.0, np.exp2(scores - np.where(np.isinf(tops), m, tops)))
    back = np.exp2(np.where(np.isinf(tops), m, tops) - m)
    used = rounding.round_to(p, fmt) * back
    total = (used if kind == "rounded" else p * back).sum(1, keepdims=True)
    return used @ sheet.v / total


def accumulators(sheets: list[Sheet]) -> Iterator[Mistake]:
    """The accumulator of o has 16 bits."""
    for fmt in ("bf16", "fp16"):
        for block in (4, 8, 16, 32, 64, 128):
            yield Mistake(
                f"o accumulated in {fmt}",
                f"rounded after every {block} keys",
                lambda sheet, f=fmt, b=block: accumulated(sheet, f, b),
                precision=True,
                control=lambda sheet, b=block: accumulated(sheet, None, b),
            )


def accumulated(
    sheet: Sheet,
    fmt: str | None,
    tile: int,
    what: str = "o",
    moves: bool = True,
    *,
    cut: bool = False,
) -> Array | None:
    """Return the rows with the roundings of P, and of o or l after each tile unless fmt is None.

    moves: weights are relative to the running maximum, else to the row's. cut: sums are cut toward
    0, not rounded.
    """
    to = _cut if cut else rounding.round_to
    if sheet.has_sink:
        return None
    scores, p_format = sheet.scores, sheet.p_format
    m = np.full((len(scores), 1), -np.inf) if moves else scores.max(1, keepdims=True)
    o, l = np.zeros_like(sheet.out), np.zeros((len(scores), 1))
    for first in range(0, scores.shape[1], tile):
        s = scores[:, first : first + tile]
        top = np.maximum(m, s.max(1, keepdims=True))
        top = np.where(np.isfinite(top), top, 0.0)  # a row may see no key of the first tiles
        p, rescale = np.exp2(s - top), np.exp2(m - top)
        used = p if p_format.endswith("x2") else rounding.round_to(p, p_format)
        l = l * rescale + p.sum(1, keepdims=True)
        o = o * rescale + used @ sheet.v[first : first + tile]
        if fmt and what == "o":
            o = to(o, fmt)
        elif fmt:
            l = to(l, fmt)
        m = top
    return o / np.where(l > 0, l, 1.0)


def _cut(x: Array, fmt: str) -> np.ndarray:
    step = rounding.quantum(x, fmt)
    return np.trunc(x / step) * step


def sums(sheets: list[Sheet]) -> Iterator[Mistake]:
    """The denominator or the products q k are added up in 16 bits, or scores have 8 bits."""
    for fmt in ("bf16", "fp16"):
        for block in (1, 8, 16, 32, 64, 128):
            yield Mistake(
                f"l accumulated in {fmt}",
                f"rounded after every {block} keys",
                lambda sheet, f=fmt, b=block: _summed(sheet, f, b),
                precision=True,
            )
        for channels in (8, 16, 32):
            yield Mistake(
                f"scores accumulated in {fmt}",
                f"rounded after every {channels} channels",
                lambda sheet, f=fmt, c=channels: _by_channels(sheet, f, c),
                precision=True,
            )
    for fmt in ("e4m3", "e5m2"):
        for words, unit in (("scale q k", 1 / LOG2_E), ("log2 units", 1.0)):
            yield Mistake(
                f"scores rounded to {fmt}",
                f"as {words}",
                lambda sheet, f=fmt, u=unit: sheet.attend(
                    sheet.masked(rounding.round_to(sheet.raw * u, f) / u)
                ),
                precision=True,
            )


def _summed(sheet: Sheet, fmt: str, block: int) -> Array | None:
    if sheet.has_sink:
        return None
    scores = sheet.scores
    m, l = np.full((len(scores), 1), -np.inf), np.zeros((len(scores), 1))
    for first in range(0, scores.shape[1], block):
        s = scores[:, first : first + block]
        top = np.maximum(m, s.max(1, keepdims=True))
        l = rounding.round_to(l * np.exp2(m - top) + np.exp2(s - top).sum(1, keepdims=True), fmt)
        m = top
    return sheet.weights @ sheet.v / l


def _by_channels(sheet: Sheet, fmt: str, channels: int) -> Array:
    unit = sheet.problem.scale * LOG2_E
    q, total = sheet.q / unit, ZERO
    for first in range(0, q.shape[1], channels):
        some = slice(first, first + channels)
        total = rounding.round_to(total + q[:, some] @ sheet.k[:, some].T, fmt)
    return sheet.attend(sheet.masked(sheet.shaped(total * unit)))


def steps(sheets: list[Sheet]) -> Iterator[Mistake]:
    """Q, K or V are rounded to multiples of a fixed step, as integers with a fixed scale are."""
    unit = sheets[0].problem.scale * LOG2_E

    def outputs(sheet: Sheet, what: str, step: float) -> Array:
        def cut(x: Array) -> Array:
            return step * np.rint(x / step)

        q = unit * cut(sheet.q / unit) if "Q" in what else sheet.q
        k = cut(sheet.k) if "K" in what else sheet.k
        v = cut(sheet.v) if "V" in what else sheet.v
        changed = "Q" in what or "K" in what
        return sheet.attend(sheet.scores_of(q, k) if changed else sheet.scores, v)

    for what in ("Q", "K", "V", "Q and K", "K and V"):
        for step in _STEPS:
            yield Mistake(
                f"{what} in fixed steps",
                f"of {step:g}",
                lambda sheet, w=what, x=step: outputs(sheet, w, x),
                precision=True,
            )


ALL = (scores, operands, accumulators, scaled_operands)
LATER = (sums, steps)
