"""Mistakes of a whole kernel, made in float64: one rule that all rows that went wrong share.

Each function yields Mistake(name, where, outputs); outputs(sheet) returns what the mistake would
make of the sheet's rows [R, Dv], or None if it does not apply. Mistakes with fewer choices come
first.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.truth.variant import VariantTensors
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet
from labkernels.units import LOG2_E

_CHUNKS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_MOST = 32  # heads or requests that are tried


@dataclass(frozen=True, eq=False)
class Mistake:
    """A mistake and its outputs.

    precision: the mistake rounds more than the format needs. vague: a fitted number that many
    mistakes could cause; known mistakes come before it. noise: variance [R, Dv] of the mistake's
    random part, which is added to sigma^2. cost: grows with the number of choices; cheap mistakes
    come first. settles: of one number that all rows share, although vague: the rms up to
    which it ends the search. like_scale, for_each: as in Match. control: the outputs of the same
    arithmetic without the mistake: what follows its roundings explains errors, too.
    """

    name: str
    where: str
    outputs: Callable[..., Array | None]
    precision: bool = False
    vague: bool = False
    noise: Callable[..., Array] | None = None
    cost: float = 0.0
    settles: float = 0.0
    like_scale: bool = False
    for_each: bool = False
    control: Callable[..., Array | None] | None = None


def heads(sheets: list[Sheet]) -> Iterator[Mistake]:
    """Keys or values are those of another KV head."""
    problem = sheets[0].problem
    n, group = problem.kv_heads, problem.group
    if n > 1 and group > 1:
        yield Mistake("GQA heads interleaved", f"query head h reads KV head h % {n}", _interleaved)
    rules: dict[str, Callable[..., Array]] = {}
    for step in range(1, min(n, _MOST)):
        rules[f"KV head h reads KV head (h + {step}) % {n}"] = lambda h, s=step: (h + s) % n
    for one in range(min(n, _MOST)):
        rules[f"all read KV head {one}"] = lambda h, one=one: one
    rules["KV heads in reverse"] = lambda h: n - 1 - h
    for where, of in rules.items():
        for what, of_k, of_v in (
            ("K and V", True, True),
            ("K", True, False),
            ("V", False, True),
        ):
            yield Mistake(
                f"{what} of another head",
                where,
                lambda sheet, of=of, a=of_k, b=of_v: _of_head(sheet, of(sheet.kv_head), a, b),
            )


def requests(sheets: list[Sheet]) -> Iterator[Mistake]:
    """Keys or values are those of another request."""
    n = sheets[0].problem.batch
    for step in range(1, min(n, _MOST)):
        for what in ("kv", "k", "v"):
            name = " and ".join(what.upper()) + " of another request"
            yield Mistake(
                name,
                f"request b reads request (b + {step}) % {n}",
                lambda sheet, step=step, what=what: _of_request(sheet, step, what),
            )


def _interleaved(sheet: Sheet) -> Array:
    out = np.empty_like(sheet.out)
    for head in np.unique(sheet.heads % sheet.problem.kv_heads):
        rows = sheet.heads % sheet.problem.kv_heads == head
        scores = sheet.scores_of(sheet.q, sheet.keys("k", int(head)))
        out[rows] = sheet.attend(scores, sheet.keys("v", int(head)))[rows]
    return out


def _of_head(sheet: Sheet, head: int, of_k: bool, of_v: bool) -> Array | None:
    if head == sheet.kv_head:
        return None
    scores = sheet.scores_of(sheet.q, sheet.keys("k", head)) if of_k else sheet.scores
    return sheet.attend(scores, sheet.keys("v", head) if of_v else sheet.v)


def _of_request(sheet: Sheet, step: int, what: str) -> Array | None:
    other = (sheet.request + step) % sheet.problem.batch
    length = int(sheet.problem.kv_lens[other])
    if length < sheet.kv_len:
        return None
    k, v = (sheet.keys(x, request=other)[: sheet.kv_len] for x in "kv")
    scores = sheet.scores_of(sheet.q, k) if "k" in what else sheet.scores
    return sheet.attend(scores, v if "v" in what else sheet.v)


def masks(sheets: list[Sheet]) -> Iterator[Mistake]:
    """The mask is another one than asked for."""
    causal = sheets[0].problem.causal

    def mask(see: Callable[..., Any]) -> Callable[..., Any]:
        def outputs(sheet: Sheet) -> Array:
            key = np.arange(sheet.kv_len)[None]
            scores = np.where(see(sheet, key), sheet.raw, -np.inf)
            return sheet.attend(scores)

        return outputs

    def first(sheet: Sheet) -> Array:
        return sheet.queries[:, None]

    if causal:
        yield Mistake("causal mask left out", "", mask(lambda sheet, key: key >= 0))
        yield Mistake(
            "causal mask aligned to the first key",
            "query i sees keys 0 to i",
            mask(lambda sheet, key: key <= first(sheet)),
        )
        # Where the last query alone goes wrong, its own key is also the last key.
        lone = all((sheet.places == sheet.kv_len - 1).all() for sheet in sheets)
        yield Mistake(
            "causal mask is strict" + ", or keys at the end left out" * lone,
            "a query does not see its own key",
            mask(lambda sheet, key: (key < sheet.places) | (key == 0) & (sheet.places == 0)),
        )
        yield Mistake(
            "keys that the mask hides",
            "a query sees one key more",
            mask(lambda sheet, key: key <= sheet.places + 1),
        )
        yield Mistake(
            "hidden keys take part with score 0",
            "",
            lambda sheet: sheet.attend(np.where(sheet.hidden, 0.0, sheet.raw)),
        )
    else:
        for where, last in (
            ("the last query sees all keys", lambda sheet: sheet.places),
            ("query i sees keys 0 to i", first),
        ):
            yield Mistake(
                "a causal mask that was not asked for",
                where,
                mask(lambda sheet, key, last=last: key <= last(sheet)),
            )


def chunks(sheets: list[Sheet]) -> Iterator[Mistake]:
    """A query sees the keys of its own chunk alone."""
    for size in _CHUNKS:
        if size < max(sheet.kv_len for sheet in sheets):
            yield Mistake(
                "keys left out, or splits left out: a row has the keys of one alone",
                f"all but those of the query's own chunk of {size}",
                lambda sheet, n=size: sheet.attend(
                    np.where(
                        np.arange(sheet.kv_len) // n == sheet.places // n, sheet.scores, -np.inf
                    )
                ),
            )


def scales(sheets: list[Sheet]) -> Iterator[Mistake]:
    """The scores have a wrong factor that a formula gives."""
    dim = sheets[0].problem.q.shape[-1]
    root = dim**0.5
    known = {
        "log2(e) left out": math.log(2),
        "log2(e) applied twice": LOG2_E,
        "scale left out": root,
        "scale applied twice": 1 / root,
        "1 / D for 1 / sqrt(D)": 1 / root,
        "twice as large": 2.0,
        "half as large": 0.5,
        "times sqrt(D) in place of 1 / sqrt(D)": float(dim),
    }
    for other in (32, 64, 96, 128, 192, 256, 512, 576):
        if other != dim:
            known[f"1 / sqrt({other}) for 1 / sqrt({dim})"] = (dim / other) ** 0.5
    for words, factor in known.items():
        yield Mistake(f"wrong scale: {words}", f"scores times {factor:.4g}", scaled(factor))


def scaled(factor: float) -> Callable[..., Any]:
    """Return outputs with scores times a factor."""
    return lambda sheet: sheet.attend(factor * sheet.scores)


def sums(sheets: list[Sheet]) -> Iterator[Mistake]:
    """The division by l is forgotten."""
    yield Mistake(
        "denominator left out",
        "the output is not normalised",
        lambda sheet: sheet.weights @ sheet.v,
    )


def layouts(sheets: list[Sheet]) -> Iterator[Mistake]:
    """K or V are read as if their dimensions had another order."""
    problem = sheets[0].problem
    if problem.kv_heads == 1:
        return
    words = {
        False: "[H, S, D] read where [S, H, D] lies",
        True: "[S, H, D] read where [H, S, D] lies",
    }
    for back, where in words.items():
        for what in ("kv", "k", "v"):
            yield Mistake(
                " and ".join(what.upper()) + " in another layout",
                where,
                lambda sheet, back=back, what=what: _laid_out(sheet, back, what),
            )


def _laid_out(sheet: Sheet, back: bool, what: str) -> Array:
    n, length = sheet.problem.kv_heads, sheet.kv_len
    found = {}
    for which in "kv":
        if which not in what:
            found[which] = sheet.k if which == "k" else sheet.v
            continue
        each = np.stack([sheet.keys(which, head) for head in range(n)])  # [H, S, D]
        if back:  # memory is [S, H, D], read as [H, S, D]
            found[which] = each.swapaxes(0, 1).reshape(each.shape)[sheet.kv_head]
        else:
            found[which] = each.reshape(length, n, -1)[:, sheet.kv_head]
    scores = sheet.scores_of(sheet.q, found["k"]) if "k" in what else sheet.scores
    return sheet.attend(scores, found["v"])


def tiles(sheets: list[Sheet]) -> Iterator[Mistake]:
    """Tiles of K or V are read transposed: square tiles, or tiles of all channels."""
    for size in (4, 8, 16, 32, 64):
        for which in "kv":
            shape = getattr(sheets[0], which).shape
            for where, change in (
                (f"squares of {size} x {size} transposed", _squares_turned),
                (f"[D, {size}] read where [{size}, D] lies", _tiles_turned),
            ):
                if size <= shape[0] and (change is _tiles_turned or shape[1] % size == 0):
                    yield Mistake(
                        f"{which.upper()} in another layout",
                        where,
                        lambda sheet, w=which, f=change, n=size: _changed(
                            sheet, w, f(getattr(sheet, w), n)
                        ),
                    )


def _changed(sheet: Sheet, which: str, values: Array) -> Array:
    if which == "v":
        return sheet.attend(sheet.scores, values)
    return sheet.attend(sheet.scores_of(sheet.q, values))


def _squares_turned(x: Array, size: int) -> Array:
    n, dim = len(x) // size * size, x.shape[1]
    whole = x[:n].reshape(n // size, size, dim // size, size).swapaxes(1, 3)
    return np.concatenate([whole.reshape(n, dim), x[n:]])


def _tiles_turned(x: Array, size: int) -> Array:
    n, dim = len(x) // size * size, x.shape[1]
    whole = x[:n].reshape(n // size, dim, size).swapaxes(1, 2)
    return np.concatenate([whole.reshape(n, dim), x[n:]])


def variants(sheets: list[Sheet]) -> Iterator[Mistake]:
    """A part of the variant that was asked for is left out."""
    variant = sheets[0].problem.variant
    if variant is None:
        return
    for name, field in (
        ("soft cap left out", "soft_cap"),
        ("ALiBi left out", "alibi"),
        ("window left out", "window_left"),
        ("custom mask left out", "mask"),
    ):
        if getattr(variant, field) is not None:
            left: VariantTensors = replace(variant, **{field: None})
            yield Mistake(name, "", lambda sheet, left=left: _lacking(sheet, left))
    if variant.sinks is not None:
        yield Mistake("sink left out", "", lambda sheet: sheet.attend(sheet.scores, sink=False))


def _lacking(sheet: Sheet, variant: VariantTensors) -> Array:
    problem = replace(sheet.problem, variant=variant)
    other = replace(sheet, problem=problem)
    return other.attend(other.scores)


ALL = (variants, masks, chunks, heads, scales, sums, requests, layouts)
LATER = (tiles,)
