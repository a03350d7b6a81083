"""Rotary embeddings by wrong places or frequencies: of keys, of queries, of both.

K or Q is turned on from its right place to a wrong one. Functions take sheets and a misfit, as
those of `fitted` do.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkernels.numerics import rounding
from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit, best, of_rows
from labkernels.numerics.verdict.diagnosis.whole_kernel.keys import some_keys
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet, part

_BASES = (1e4, 5e5, 1e6, 1e5)
_NEW_BASES = (
    *(x * 10.0**n for n in range(2, 8) for x in (1, 2, 5)),
    *(10.0, 50.0, 2.5e4, 4e4, 8e4, 1.5e5, 2.5e5, 8e6, 1e8),
)
_PAGES = (8, 16, 32, 64, 128, 256)
_FACTORS = (0.5, 0.25, 0.125, 0.75, 4.0, 8.0)
_ROUNDED = "frequencies rounded to "
_FAR = 512  # most places that queries may be off
_NUMBERS = 2**27  # numbers of K that are turned: with more, it would take seconds
_SCREENED = 2  # sheets of which one row each selects what is judged


@dataclass(frozen=True)
class Angles:
    """How far each pair of channels turns at a place: the base, the pairs, which channels turn."""

    base: float
    interleaved: bool = False
    share: float = 1.0
    kind: str = ""

    def turned(
        self, x: Array, places: Array, parts: tuple[bool, bool] = (True, True)
    ) -> np.ndarray:
        """Return x [n, D] turned by places [n], which need not be whole.

        parts: whether the part of the cosine and that of the sine are there.
        """
        n = int(x.shape[-1] * self.share) // 2 * 2
        half = n // 2
        angle = np.asarray(places, float)[:, None] * self.of(half)
        cos, sin = np.cos(angle) * parts[0], np.sin(angle) * parts[1]
        first, second = slice(half), slice(half, n)
        if self.interleaved:
            first, second = slice(0, n, 2), slice(1, n, 2)
        a, b, found = x[:, first], x[:, second], x.copy()
        found[:, first], found[:, second] = a * cos - b * sin, a * sin + b * cos
        return found

    def of(self, half: int) -> np.ndarray:
        """Return the angle of each pair per place. Shapes: [half]."""
        c = np.arange(half)
        if self.kind.startswith(_ROUNDED):
            return rounding.round_to(self.base ** -(c / half), self.kind.removeprefix(_ROUNDED))
        exponent = {
            "": c / half,
            "exponents that begin with the second": (c + 1) / half,
            "exponents up to 1": c / max(half - 1, 1),
            "frequencies in reverse": c[::-1] / half,
        }[self.kind]
        return self.base**-exponent

    @property
    def words(self) -> str:
        """Which rotation it is."""
        kind = f"{'interleaved pairs' if self.interleaved else 'halves'}, base {self.base:g}"
        return kind + f", {self.share:g} of the channels" * (self.share < 1)


def _angles(sheet: Sheet) -> Iterator[Angles]:
    for base, share, interleaved in itertools.product(_BASES, (1.0, 0.5), (False, True)):
        yield Angles(base, interleaved, share)


def _applies(sheets: list[Sheet]) -> bool:
    return sheets[0].problem.variant is None and sheets[0].k.shape[1] % 2 == 0


def _places(n: int) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield wrong places of keys or queries at the places x of n keys, with words."""
    for size in _PAGES:
        if size < n:
            yield f"x % {size}, that begins anew in each {size}", lambda x, n, s=size: x % s
            yield f"x / {size}, the number of its page", lambda x, n, s=size: x // s
            yield f"x - x % {size}, that of its page", lambda x, n, s=size: x // s * s
            yield f"min(x, {size})", lambda x, n, s=size: np.minimum(x, s)
    for factor in _FACTORS:
        yield f"{factor:g} x", lambda x, n, f=factor: f * x
    yield "0, not turned at all", lambda x, n: 0 * x
    yield "2 x, turned twice", lambda x, n: 2 * x
    yield "-x, turned back", lambda x, n: -x
    yield "L - 1 - x, from the end", lambda x, n: n - 1 - x
    yield "that of the last key", lambda x, n: 0 * x + n - 1
    for more in (1, -1):
        yield f"x {more:+d}", lambda x, n, d=more: x + d
        yield (
            f"2 x {more:+d}, turned twice, once from another first place",
            (lambda x, n, d=more: 2 * x + d),
        )


def _named(what: str, words: str) -> str:
    """Return the name of a wrong place."""
    again = "twice" in words
    return (
        f"RoPE applied once more, to {what} alone" if again else f"RoPE of {what} by wrong places"
    )


def _of_keys(sheets: list[Sheet]) -> Iterator[Mistake]:
    """Yield K turned to wrong places."""
    longest = max(sheet.kv_len for sheet in sheets)
    for angles in _angles(sheets[0]):
        for words, place in _places(longest):

            def outputs(sheet: Sheet, a: Angles = angles, of: Callable[..., Any] = place) -> Array:
                x = np.arange(sheet.kv_len)
                k = a.turned(sheet.k, of(x, sheet.kv_len) - x)
                return sheet.attend(sheet.masked(sheet.q @ k.T))

            where = f"key x is turned to the place {words}; {angles.words}"
            yield Mistake(_named("K", words), where, outputs, cost=1.0)


def _of_queries(sheets: list[Sheet]) -> Iterator[Mistake]:
    """Yield Q turned to wrong places, and by its head."""
    longest = max(sheet.kv_len for sheet in sheets)
    rules: list[tuple[str, Callable[..., Any]]] = [
        (words, lambda s, of=of: of(s.places[:, 0], s.kv_len)) for words, of in _places(longest)
    ]
    rules.append(("x and its head", lambda s: s.places[:, 0] + s.heads))
    rules.append(
        ("x and its head in the group", lambda s: s.places[:, 0] + s.heads % s.problem.group)
    )
    rules.append(("its row among packed heads", _packed))
    for angles in _angles(sheets[0]):
        for words, place in rules:

            def outputs(sheet: Sheet, a: Angles = angles, of: Callable[..., Any] = place) -> Array:
                q = a.turned(sheet.q, of(sheet) - sheet.places[:, 0])
                return sheet.attend(sheet.masked(q @ sheet.k.T))

            where = f"query x is turned to the place {words}; {angles.words}"
            yield Mistake(_named("Q", words), where, outputs, cost=1.0)


def _packed(sheet: Sheet) -> Array:
    first = int(sheet.places[0, 0] - sheet.queries[0])
    return first + sheet.packed_rows


def _of_both(sheets: list[Sheet]) -> Iterator[Mistake]:
    """Yield Q, K or both turned by other frequencies than those that they have."""
    kinds = (
        "exponents that begin with the second",
        "exponents up to 1",
        "frequencies in reverse",
        *(_ROUNDED + fmt for fmt in ("bf16", "fp16")),
    )
    for old in _angles(sheets[0]):
        others = [Angles(b, old.interleaved, old.share) for b in _NEW_BASES if b != old.base]
        others += [Angles(old.base, old.interleaved, old.share, kind) for kind in kinds]
        for new in others:
            words = f"{new.kind or f'base {new.base:g}'} for {old.words}"
            for what in ("Q and K", "K", "Q"):

                def outputs(sheet: Sheet, a: Angles = old, b: Angles = new, w: str = what) -> Array:
                    at, x = sheet.places[:, 0], np.arange(sheet.kv_len)
                    q, k = sheet.q, sheet.k
                    if "K" in w:
                        plain = sheet.once((a, "not turned"), lambda: a.turned(sheet.k, -x))
                        k = sheet.once((a, b), lambda: b.turned(plain, x))
                    if "Q" in w:
                        q = b.turned(a.turned(sheet.q, -at), at)
                    return sheet.attend(sheet.masked(q @ k.T))

                of = "another base" if new.base != old.base else "other frequencies"
                name = f"RoPE of {of}" if what == "Q and K" else f"RoPE of {what} by {of}"
                yield Mistake(name, words, outputs, cost=1.0)


def _of_rest(sheets: list[Sheet]) -> Iterator[Mistake]:
    """Yield Q and K whose channels past a partial rotation are turned, too."""
    width = sheets[0].k.shape[1]
    for base, share, interleaved in itertools.product(_BASES, (0.5, 0.25, 0.75), (False, True)):
        angles, first = Angles(base, interleaved), int(width * share) // 2 * 2

        def outputs(sheet: Sheet, a: Angles = angles, n: int = first) -> Array:
            at, x = sheet.places[:, 0], np.arange(sheet.kv_len)
            k = sheet.once((a, n), lambda: a.turned(sheet.k[:, n:], x))
            q = a.turned(sheet.q[:, n:], at)
            return sheet.attend(sheet.masked(sheet.q[:, :n] @ sheet.k[:, :n].T + q @ k.T))

        where = f"channels from {first} on, {angles.words}"
        yield Mistake("RoPE of channels past a partial rotation", where, outputs, cost=1.0)


def _of_halves(sheets: list[Sheet]) -> Iterator[Mistake]:
    """Yield Q, K or both turned without the part of the sine, or of the cosine."""
    for angles, what, kept in itertools.product(_angles(sheets[0]), ("Q", "K", "QK"), (0, 1)):

        def outputs(sheet: Sheet, a: Angles = angles, w: str = what, of: int = kept) -> Array:
            at, x = sheet.places[:, 0], np.arange(sheet.kv_len)
            q = a.turned(a.turned(sheet.q, -at), at, (of == 0, of == 1)) if "Q" in w else sheet.q
            k = a.turned(a.turned(sheet.k, -x), x, (of == 0, of == 1)) if "K" in w else sheet.k
            return sheet.attend(sheet.masked(q @ k.T))

        name = f"RoPE of {' and '.join(what)} without its {('sine', 'cosine')[kept]}"
        yield Mistake(name, angles.words, outputs, cost=1.0)


def of_rules(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Queries, keys, or keys of a part, have wrong places; or both have other frequencies."""
    if not _applies(sheets):
        return
    most = max(1, _NUMBERS // max(sheets[0].k.size, 1))
    of_keys = list(itertools.islice(_of_keys(sheets), most))
    both = itertools.chain(_of_rest(sheets), _of_halves(sheets), _of_both(sheets))
    of_both = list(itertools.islice(both, most))
    for tried in (of_keys, list(_of_queries(sheets)), of_both):

        def each(sheet: Sheet, row: int, tried: list[Mistake] = tried) -> Array:
            one = part(sheet, slice(row, row + 1))
            return np.concatenate([mistake.outputs(one) for mistake in tried])

        chosen = {i for _, _, i in of_rows(sheets[:_SCREENED], each, rows=1)}
        yield from best(misfit, [tried[i] for i in sorted(chosen)])
    yield from some_keys.of_mistakes(sheets, misfit, of_keys)


def of_distances(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Queries are some places off, each request by a number of its own."""
    if not _applies(sheets):
        return
    found: list[tuple[float, int, Angles]] = []
    most = max(1, _NUMBERS // max(sheets[0].k.size, 1))
    far = min(_FAR, most)
    steps = np.arange(-far, far + 1)
    for i, angles in enumerate(itertools.islice(_angles(sheets[0]), most)):
        found.append((_nearest(sheets[0], angles, steps)[0], i, angles))
    _, _, angles = min(found, key=lambda one: one[:2])
    off: dict[int, tuple[float, int]] = {}
    for sheet in sheets:
        miss, step = _nearest(sheet, angles, steps)
        if sheet.request not in off or miss < off[sheet.request][0]:
            off[sheet.request] = miss, step

    def outputs(sheet: Sheet) -> Array:
        step = np.full(len(sheet.q), off[sheet.request][1])
        return sheet.attend(sheet.masked(angles.turned(sheet.q, step) @ sheet.k.T))

    told = ", ".join(f"sample {request}: {step:+d}" for request, (_, step) in off.items())
    where = f"{angles.words}, queries by places: {told}"
    yield Mistake("RoPE some places off", where, outputs, cost=1.0)


def _nearest(sheet: Sheet, angles: Angles, steps: Array) -> tuple[float, int]:
    """Return the least mean z^2 of the worst row over steps of its query, and the step."""
    row = int((((sheet.out - sheet.truth) / sheet.sigma) ** 2).mean(1).argmax())
    q = angles.turned(np.repeat(sheet.q[[row]], len(steps), 0), steps)
    s = np.where(sheet.hidden[row], -np.inf, q @ sheet.k.T)
    p = np.exp2(s - s.max(1, keepdims=True))
    z = (p @ sheet.v / p.sum(1, keepdims=True) - sheet.out[row]) / sheet.sigma[row]
    miss = (z**2).mean(1)
    return float(miss.min()), int(steps[miss.argmin()])


ALL = (of_rules, of_distances)
