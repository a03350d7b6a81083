"""What may happen to K or V on the way to a product: sources, orders, values, channels.

Each function yields (name, where, change, cost). change(sheet, which) returns the tensor [L, D] as
it was read, or None if that is not possible. The name has a {} for that of the tensor.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from labkernels import formats
from labkernels.numerics import rounding
from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet, keys_of

Change: TypeAlias = tuple[str, str, Callable[..., Any], float]

_OTHERS = 8  # heads or requests that are tried
_TILES = (4, 8, 16, 32, 64, 128)
_OFFSETS = (*range(1, 17), 20, 24, 32, 40, 48, 64, 96, 128, 256)
_KEPT = 2**21  # most elements of keys that are kept changed
_ORDER, _OTHER_KEYS = "{} read in another order", "{} read from other keys"


def sources(sheet: Sheet) -> Iterator[Change]:
    """Yield zeros, other heads, other requests and the other tensor."""
    yield "{} read as 0", "", lambda s, w: np.zeros_like(s.keys(w)), 0.5
    problem = sheet.problem
    n, batch = problem.kv_heads, problem.batch
    for step in range(1, min(n, _OTHERS)):
        where = f"KV head h reads KV head (h + {step}) % {n}"
        yield (
            "{} of another head",
            where,
            lambda s, w, d=step: s.keys(w, (s.kv_head + d) % n),
            1.0,
        )
    for head in range(min(n, _OTHERS) if n > 2 else 0):
        yield "{} of another head", f"KV head {head}", lambda s, w, h=head: s.keys(w, h), 1.5
    if n > 1:
        yield "{} is the mean of all KV heads'", "", _mean_of_heads, 1.5
    for step in range(1, min(batch, _OTHERS)):
        where = f"request b reads request (b + {step}) % {batch}"
        yield "{} of another request", where, lambda s, w, d=step: _of_request(s, w, d), 1.0
    for request in range(min(batch, _OTHERS) if batch > 2 else 0):
        where = f"request {request}"
        yield "{} of another request", where, lambda s, w, r=request: _of_one(s, w, r), 1.5
    width = sheet.keys("k").shape[1]
    for said, along, step in (
        *((f"a row stride {d:+d} channels off", d, 0) for d in (8, -8, 16, -16, 4, -4)),
        *((f"an address {d:+d} elements off", 0, d) for d in (width // 2, -(width // 2), 8, -8)),
    ):
        yield "{} read with " + said, "", lambda s, w, a=along, d=step: _elements(s, w, a, d), 1.5
    if batch > 1:
        for step in (sign * d for d in (*_TILES, 1, 2, 3) for sign in (1, -1)):
            where = f"token t of all requests, one after the other, reads token t {step:+d}"
            name = "{} read at an offset, across requests"
            yield name, where, lambda s, w, d=step: _across(s, w, d), 1.5
    n_k, n_v = sheet.k.shape[1], sheet.v.shape[1]
    if n_k > n_v and isinstance(sheet.channels, slice):
        said = "{0} is {1}: {1} read for {0}"
        yield said, "its first channels", lambda s, w: s.k[:, :n_v] if w == "v" else None, 1.0
    if sheet.k.shape == sheet.v.shape and isinstance(sheet.channels, slice):
        yield "{0} is {1}: {1} read for {0}", "", _other, 1.0


def _mean_of_heads(sheet: Sheet, which: str) -> Array:
    each = [sheet.keys(which, head) for head in range(sheet.problem.kv_heads)]
    return sheet.once((which, "mean of heads"), lambda: np.mean(each, axis=0))


def _elements(sheet: Sheet, which: str, along: int, step: int) -> Array:
    """Return keys whose elements are some places off, by more in each key."""
    whole = keys_of(sheet.problem, which, sheet.kv_head, sheet.request)
    at = np.arange(whole.size).reshape(whole.shape) + along * np.arange(len(whole))[:, None] + step
    x = whole.ravel()[at % whole.size]
    return x[:, sheet.channels] if which == "v" else x


def _across(sheet: Sheet, which: str, step: int) -> Array:
    """Return keys at an offset in a cache that holds the requests one after the other."""
    found = sheet.once(
        (which, "all requests", sheet.kv_head),
        lambda: np.concatenate([sheet.keys(which, request=r) for r in range(sheet.problem.batch)]),
    )
    first = int(sheet.problem.kv_lens[: sheet.request].sum())
    return found[(first + step + np.arange(sheet.kv_len)) % len(found)]


def _of_request(sheet: Sheet, which: str, step: int) -> Array:
    return _of_one(sheet, which, (sheet.request + step) % sheet.problem.batch)


def _of_one(sheet: Sheet, which: str, request: int) -> Array:
    own, other = sheet.keys(which), sheet.keys(which, request=request)[: sheet.kv_len]
    return np.concatenate([other, own[len(other) :]])


def _other(sheet: Sheet, which: str) -> Array:
    return sheet.v if which == "k" else sheet.k


def orders(sheet: Sheet) -> Iterator[Change]:
    """Yield keys that are read by another index."""
    for step in (sign * d for d in _OFFSETS for sign in (1, -1) if d < sheet.kv_len):
        tile = abs(step) >= 8
        name = "{} read at an offset" + (", as of the tile before or behind" if tile else "")
        cost = 1.0 if abs(step) in (1, *_TILES) else 1.5
        yield (
            name,
            f"key j reads key j {step:+d}",
            _at(lambda n, d=step: _inside(np.arange(n) + d)),
            cost,
        )
    for size in _TILES:
        if size <= sheet.kv_len:
            yield from _orders_within(sheet, size)
            yield from _others_within(sheet, size)
    pairs = "keys swapped in pairs, as far as both are there"
    yield _ORDER, pairs, _at(lambda n: _inside(np.arange(n) ^ 1)), 1.5
    yield _ORDER, "in reverse", _at(lambda n: np.arange(n)[::-1]), 1.0
    for words, index in (
        ("the first key", lambda n: np.zeros(n, int)),
        ("the last key", lambda n: np.full(n, n - 1)),
        ("key j reads key j / 2", lambda n: np.arange(n) // 2),
        ("key j reads key 2 j % L", lambda n: 2 * np.arange(n) % n),
    ):
        yield _OTHER_KEYS, words, _at(index), 1.5


def _orders_within(sheet: Sheet, size: int) -> Iterator[Change]:
    """Yield tiles whose keys have another order, or pages of another size."""
    rules: dict[str, Callable[..., Any]] = {
        "in reverse": lambda at, n: n - 1 - at,
        "halves swapped": lambda at, n: (at + n // 2) % n,
        "pairs swapped": lambda at, n: at ^ 1,
        "even ones, then odd ones": lambda at, n: np.where(at < n // 2, 2 * at, 2 * at - n + 1),
        "halves interleaved": lambda at, n: np.where(at % 2 == 0, at // 2, at // 2 + n // 2),
    }
    for rows in (4, 8, 16):
        if rows < size // 2:
            rules[f"transposed as {rows} x {size // rows}"] = lambda at, n, r=rows: (
                at % r * (n // r) + at // r
            )
    for words, rule in rules.items():
        yield _ORDER, f"{words} within each {size}", _at(_within(size, rule)), 1.5
    for words, stride in ((f"{size} keys as {size // 2}", size // 2), ("", 2 * size)):
        said = words or f"{size} keys as {2 * size}"
        yield (
            "{} read from other keys, as pages of " + said,
            "beyond the end from the first keys on",
            _at(lambda n, s=size, t=stride: (np.arange(n) // s * t + np.arange(n) % s) % n),
            1.5,
        )


def _others_within(sheet: Sheet, size: int) -> Iterator[Change]:
    """Yield tiles that have some keys twice and others not at all, or tiles exchanged."""
    again = {
        "the first of the tile": lambda at, n: 0 * at,
        "the last of the tile": lambda at, n: 0 * at + n - 1,
        "the first half twice": lambda at, n: at % (n // 2),
        "the second half twice": lambda at, n: at % (n // 2) + n // 2,
        "each second key twice": lambda at, n: at // 2 * 2,
    }
    for words, rule in again.items():
        yield _OTHER_KEYS, f"{words} of {size}", _at(_within(size, rule)), 1.5
        if sheet.kv_len % size:
            where = f"{words} of {size}, of the last tile too, as far as it goes"
            yield _OTHER_KEYS, where, _at(_to_the_end(size, rule)), 1.5
    yield (
        _OTHER_KEYS,
        f"key j reads key j % {size}",
        _at(lambda n, s=size: np.arange(n) % s),
        1.5,
    )
    if sheet.kv_len % size:
        yield (
            _ORDER,
            f"tiles of {size // 2} swapped in pairs, as far as both keys are there",
            _at(lambda n, s=size // 2: _inside(np.arange(n) ^ s)),
            1.5,
        )


def _at(index: Callable[..., Any]) -> Callable[..., Any]:
    return lambda sheet, which: sheet.keys(which)[index(sheet.kv_len)]


def _inside(index: Array) -> Array:
    at = np.arange(len(index))
    return np.where((index >= 0) & (index < len(index)), index, at)


def _within(size: int, rule: Callable[..., Any]) -> Callable[..., Any]:
    def index(n: int) -> Array:
        key = np.arange(n)
        return np.where(key < n // size * size, key // size * size + rule(key % size, size), key)

    return index


def _to_the_end(size: int, rule: Callable[..., Any]) -> Callable[..., Any]:
    def index(n: int) -> Array:
        key = np.arange(n)
        return np.minimum(key // size * size + rule(key % size, size), n - 1)

    return index


def values(sheet: Sheet) -> Iterator[Change]:
    """Yield other numbers at the right place: signs, means, lengths, formats."""

    def of(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda s, w: f(s.keys(w))

    yield "{} with the wrong sign", "", of(np.negative), 1.0
    yield "{} without its sign", "its absolute value", of(np.abs), 1.0
    yield "{} without its negative values", "as after relu", of(lambda x: np.maximum(x, 0)), 1.0
    yield (
        "{} less its mean",
        "that over the keys, of each channel",
        of(lambda x: x - x.mean(0)),
        1.5,
    )
    yield (
        "{} less its mean",
        "that over the channels, of each key",
        of(lambda x: x - x.mean(1, keepdims=True)),
        1.5,
    )
    for size in (16, 32, 64, 128):
        if size < sheet.kv_len:
            where = f"that of each {size} keys, of each channel"
            yield "{} less its mean", where, of(lambda x, n=size: x - _mean_of_tiles(x, n)), 1.5
    for whose, axis in (("key", 1), ("channel", 0)):
        for words, sign in (("not taken off", 1), ("taken off twice", -1)):
            yield (
                "{} with its zero point " + words,
                f"the middle of each {whose}'s least and largest number",
                of(lambda x, a=axis, s=sign: x + s * _middle(x, a)),
                1.5,
            )
    yield "{} is the mean of all keys'", "", of(lambda x: 0 * x + x.mean(0)), 1.5
    yield (
        "{} divided by its length",
        "of each key",
        of(lambda x: x / np.maximum(np.sqrt((x**2).sum(1, keepdims=True)), 1e-30)),
        1.5,
    )
    yield (
        "{} divided by its root mean square",
        "of each key",
        of(lambda x: x / np.maximum(np.sqrt((x**2).mean(1, keepdims=True)), 1e-30)),
        1.5,
    )
    for size in (2, *_TILES):
        yield (
            "{} is a mean of several keys'",
            f"of each {size} keys",
            of(lambda x, n=size: _pooled(x, n)),
            1.5,
        )
    narrow = formats.named(sheet.p_format.removesuffix("x2")).unit_roundoff
    for fmt in ("bf16", "fp16", "e4m3", "e5m2"):
        if formats.named(fmt).unit_roundoff > narrow:
            yield "{} in " + fmt, "", of(lambda x, f=fmt: rounding.round_to(x, f)), 1.5


def _of_tiles(x: Array, size: int, *, channels: bool) -> Array:
    starts = np.arange(0, len(x), size)
    most = np.maximum.reduceat(np.abs(x), starts).repeat(size, 0)[: len(x)]
    return most if channels else most.max(1, keepdims=True)


SIZES: dict[str, Callable[..., Any]] = {
    "key": lambda x: np.abs(x).max(1, keepdims=True),
    "head": lambda x: np.abs(x).max(),
    "channel": lambda x: np.abs(x).max(0, keepdims=True),
    **{
        f"tile of {n} keys" + ", channel by channel" * each: (
            lambda x, n=n, each=each: _of_tiles(x, n, channels=each)
        )
        for n in (16, 32, 64, 128)
        for each in (False, True)
    },
}
"""Largest absolute value that a scale is made of, by what has a scale of its own."""


def _mean_of_tiles(x: Array, size: int) -> Array:
    starts = np.arange(0, len(x), size)
    count = np.diff(starts, append=len(x))
    return (np.add.reduceat(x, starts) / count[:, None]).repeat(count, 0)


def _middle(x: Array, axis: int) -> Array:
    return (x.max(axis, keepdims=True) + x.min(axis, keepdims=True)) / 2


def _pooled(x: Array, size: int) -> Array:
    n = len(x) // size * size
    mean = x[:n].reshape(-1, size, x.shape[1]).mean(1)
    return np.concatenate([mean.repeat(size, 0), x[n:]])


def channels(sheet: Sheet, width: int) -> Iterator[Change]:
    """Yield channels in another order."""
    at = np.arange(width)
    rules = {"in reverse": at[::-1], "halves swapped": np.roll(at, width // 2)}
    for step in (1, 2, 4, 8, 16, 32):
        if step < width // 2:
            rules[f"channel c is channel c + {step}"] = (at + step) % width
            rules[f"channel c is channel c - {step}"] = (at - step) % width
        if width % (2 * step) == 0:
            rules[f"channel c is channel c xor {step}"] = at ^ step
            rules[f"channel c is channel c without bit {step}"] = at & ~step
    for parts in (2, 4, 8, 16, 32):
        if width % parts == 0 and parts < width:
            rules[f"{parts} parts interleaved"] = at.reshape(parts, -1).T.ravel()
    for words, index in rules.items():
        yield (
            "{} read with its channels mixed up",
            words,
            lambda s, w, i=index: s.keys(w)[:, i] if s.keys(w).shape[1] == len(i) else None,
            1.5,
        )


def swizzled(sheet: Sheet, which: str) -> Iterator[Change]:
    """Yield keys whose chunks of channels lie as by a swizzle too many or too few."""
    width = (sheet.problem.k_pool if which == "k" else sheet.problem.v_pool).shape[-1]
    for chunk in (4, 8, 16):
        for period, repeats in ((2, 1), (4, 1), (8, 1), (16, 1), (4, 2), (2, 4)):
            if width < chunk * period:
                continue
            yield (
                "{} read with another swizzle of its channels",
                f"chunk c of {chunk} channels is c xor (key / {repeats}) % {period}",
                lambda s, w, c=chunk, n=period, r=repeats: _swizzled(s, w, c, n, r),
                2.0,
            )


def _swizzled(sheet: Sheet, which: str, chunk: int, period: int, repeats: int) -> Array:
    whole = keys_of(sheet.problem, which, sheet.kv_head, sheet.request)
    x = _exchanged(whole, chunk, period, repeats)
    return x[:, sheet.channels] if which == "v" else x


def _exchanged(x: Array, chunk: int, period: int, repeats: int) -> Array:
    """Return x with chunks of channels exchanged by key number, in lines of `period` chunks."""
    key, at = np.arange(len(x))[:, None] // repeats % period, np.arange(x.shape[1])[None]
    to = (at // chunk ^ key) * chunk + at % chunk
    whole = x.shape[1] // (chunk * period) * chunk * period
    return np.take_along_axis(x, np.where(at < whole, to, at), 1)


def parts_of_channels(width: int) -> Iterator[tuple[str, Array]]:
    """Yield words for some channels, and which they are: halves, fragments, single channels."""
    at = np.arange(width)
    for size in (width // 2, width // 4, 16, 8, 4):
        if 1 < size < width and width % size == 0:
            for first in range(0, width, size):
                yield f"channels {first} to {first + size - 1}", at // size == first // size
    for residue in (0, 1):
        yield ("every second channel", "the odd channels")[residue], at % 2 == residue
    for one in range(width):
        yield f"channel {one}", at == one


def in_some_channels(sheet: Sheet) -> Iterator[tuple[str, str, Callable[..., Any], Array]]:
    """Yield (name, where, change, some): the keys [L, D] that K has in the channels `some`.

    They are 0, negated, doubled, or of another head or key.
    """
    ways: list[tuple[str, Callable[..., Any]]] = [
        ("left out", lambda s, w: np.zeros_like(s.k)),
        ("with the wrong sign", lambda s, w: -s.k),
        ("without their sign", lambda s, w: np.abs(s.k)),
        ("read from the key before", _at(lambda n: np.clip(np.arange(n) - 1, 0, n - 1))),
        ("read from the next key", _at(lambda n: np.clip(np.arange(n) + 1, 0, n - 1))),
        ("counted twice", lambda s, w: 2 * s.k),
    ]
    if sheet.problem.kv_heads > 1:
        ways.append(
            ("of another head", lambda s, w: s.keys(w, (s.kv_head + 1) % s.problem.kv_heads))
        )
    if sheet.problem.batch > 1:
        ways.append(("of another request", lambda s, w: _of_request(s, w, 1)))
    for said, some in parts_of_channels(sheet.k.shape[1]):
        for name, way in ways:

            def change(s: Sheet, n: str = name, f: Callable[..., Any] = way) -> np.ndarray:
                if s.k.size > _KEPT:
                    return f(s, "k")
                return s.once(("k in some channels", n, s.kv_head), lambda: f(s, "k"))

            yield "channels of {} " + name, said + "; 0" * (name == "left out"), change, some
