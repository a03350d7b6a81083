"""Edits that only round more than the formats need."""

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from labkernels import defects, formats
from labkernels.numerics import rounding
from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.match import Edit
from labkernels.numerics.verdict.diagnosis.program import Block, Terms, Trial
from labkernels.units import LOG2_E

_SIXTEEN = ("bf16", "fp16")
_FORMATS = (*_SIXTEEN, "tf32", "e4m3", "e5m2")
_LARGEST = {"e4m3": 448.0, "e5m2": 57344.0, "int8": 127.0, "int4": 7.0}
_AXES: dict[str, int | tuple[int, int]] = {"head": (0, 1), "key": 1, "channel": 0}


def of_scores(block: Block) -> Iterator[Trial]:
    """Yield scores and scaled queries in 16 bits, in the units in which kernels store them."""
    scale = block.problem.scale
    units = {"Q K": scale * LOG2_E, "scale Q K": LOG2_E, "log2 units": 1.0}
    for fmt, (words, unit) in itertools.product((*_SIXTEEN, "e5m2"), units.items()):
        scores = lambda s, f=fmt, u=unit: s.by_scores(rounding.round_to(s.raw / u, f) * u)
        yield _of("scores", scores, f"rounded, as {words}, to", fmt)
        query = lambda s, f=fmt, u=unit: s.by_load(q=rounding.round_to(s.q / u, f) * u)
        yield _of("Q", query, f"rounded, in {words}, to", fmt)


def of_weights(block: Block) -> Iterator[Trial]:
    """Yield P and the denominator in fewer bits."""
    for fmt in _FORMATS:
        if not formats.coarser(fmt, block.case.p_format):
            continue
        to = lambda x, f=fmt: rounding.round_to(x, f)
        above = lambda s, t=to: s.by_weights(t(s.w), below=s.w)
        yield _of("P", above, "rounded to", fmt)
        both = lambda s, t=to: s.by_weights(t(s.w))
        yield _of("P", both, "rounded, in the denominator too, to", fmt)
        normal = lambda s, t=to: Terms(t(s.w / s.sums) * s.sums, s.w, s.v, s.sink)
        yield _of("P", normal, "normalised and rounded to", fmt)
    for fmt in _SIXTEEN:
        total = lambda s, f=fmt: s.truth * s.sums / rounding.round_to(s.sums, f)
        yield _of("denominator", total, "rounded to", fmt)
        weights = lambda s, f=fmt: s.by_weights(s.w, below=rounding.round_to(s.w, f))
        yield _of("denominator", weights, "of weights rounded to", fmt)


def of_operands(block: Block) -> Iterator[Trial]:
    """Yield Q, K and V in fewer bits, with and without scales."""
    ways: list[tuple[str, Callable[[Array], Array]]] = [
        (fmt, lambda x, f=fmt: rounding.round_to(x, f))
        for fmt in _FORMATS
        if formats.coarser(fmt, block.case.p_format)
    ]
    for fmt, (each, axis) in itertools.product(_LARGEST, _AXES.items()):
        with_scale = lambda x, f=fmt, a=axis: _scaled(x, f, a)
        ways.append((f"{fmt} with a scale for each {each}", with_scale))
    unit = block.problem.scale * LOG2_E
    for words, to in ways:
        k = lambda s, t=to: s.by_load(k=t(s.k))
        v = lambda s, t=to: s.by_load(v=t(s.v))
        both = lambda s, t=to: s.by_load(k=t(s.k), v=t(s.v))
        all_three = lambda s, t=to: s.by_load(t(s.q / unit) * unit, t(s.k), t(s.v))
        q_and_k = lambda s, t=to: s.by_load(t(s.q / unit) * unit, t(s.k))
        tried = {"K": k, "V": v, "K and V": both, "Q and K": q_and_k, "Q, K and V": all_three}
        yield from (_of(operand, of, "rounded to", words) for operand, of in tried.items())


def _of(operand: str, of: Callable[[Block], Terms | Array], words: str, fmt: str) -> Trial:
    edit = Edit(operand, words, (fmt,))
    return Trial(defects.LESS_EXACT, edit, of, 1.5, precision=True)


def _scaled(x: Array, fmt: str, axis: int | tuple[int, int]) -> np.ndarray:
    """Return x in a format, with a scale for each group."""
    step = np.maximum(np.abs(x).max(axis, keepdims=True), 1e-30) / _LARGEST[fmt]
    y = x / step
    return (np.rint(y) if fmt.startswith("int") else rounding.round_to(y, fmt)) * step
