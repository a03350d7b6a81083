"""Random mistakes: a stage of attention, what goes wrong in it, and for which keys and rows.

Detection on a fixed list of bugs shows how well that list is known. These mistakes are drawn from a
seed, so a new seed brings a mistake that nobody has seen, and new seeds measure how often names are
right.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from labkernels.measure.strangers.wrong import Work, attend, masked, places

_SIZES = (8, 16, 32, 64)


@dataclass(frozen=True)
class Composed:
    """A mistake in words, the pattern of a right name, and the bug itself."""

    words: str
    pattern: str
    bug: Callable[[Work], torch.Tensor]


def mistake(seed: int) -> Composed:
    """Return the mistake of a seed; successive seeds take the stages in turn."""
    rng = np.random.default_rng([seed, 16])
    stage = _STAGES[seed % len(_STAGES)]
    words, pattern, bug = stage(rng)
    words, of_rows = _rows_of(rng, words)
    return Composed(words, pattern, lambda w: of_rows(w, bug(w)))


def _one(rng, choices):
    return choices[int(rng.integers(len(choices)))]


def _keys(rng) -> tuple[str, Callable[[int], torch.Tensor]]:
    """Draw a set of keys: its name, and a function that returns True for its members of n keys."""
    kind, size = int(rng.integers(7)), _one(rng, _SIZES)
    part, residue = float(rng.uniform(0.2, 0.8)), int(rng.integers(4))
    return (
        ("all keys", lambda n: torch.ones(n, dtype=torch.bool)),
        (f"keys from {part:.2f} L on", lambda n: torch.arange(n) >= int(part * n)),
        (f"keys below {part:.2f} L", lambda n: torch.arange(n) < int(part * n)),
        (f"a tile of {size}", lambda n: torch.arange(n) // size == int(part * n) // size),
        (f"odd tiles of {size}", lambda n: torch.arange(n) // size % 2 == 1),
        (f"keys {residue} mod 4", lambda n: torch.arange(n) % 4 == residue),
        (f"the last tile of {size}", lambda n: torch.arange(n) // size == (n - 1) // size),
    )[kind]


def _rows_of(rng, words: str):
    """Draw which heads or query tokens the mistake is limited to, apart from a run's own part."""
    kind = int(rng.integers(6))

    def of_rows(w: Work, bad):
        good = attend(w.s, w.v, w.call.q.dtype)
        head = torch.arange(good.shape[1])[:, None]
        query = torch.arange(good.shape[2])[None]
        if kind == 1:
            where = (head % 2 == 1).expand(good.shape[1:3])
        elif kind == 2:
            where = (query // 16 % 2 == 0).expand(good.shape[1:3])
        else:
            return bad
        return torch.where(where[None, ..., None], bad, good)

    return words + (
        "; odd heads" if kind == 1 else "; even query tiles" if kind == 2 else ""
    ), of_rows


def _tile_order(rng) -> tuple[str, Callable[[int], torch.Tensor]]:
    size, kind = _one(rng, _SIZES), int(rng.integers(6))
    step = int(rng.integers(1, 40)) * _one(rng, (-1, 1))
    turned = torch.from_numpy(rng.permutation(size))

    def within(n, place):
        key = torch.arange(n)
        moved = key // size * size + place(key % size)
        return torch.where(key < n // size * size, moved, key)

    return (
        (f"{step:+d} keys off", lambda n: (torch.arange(n) + step) % n),
        (f"reversed in {size}", lambda n: within(n, lambda a: size - 1 - a)),
        (f"halves of {size} swapped", lambda n: within(n, lambda a: (a + size // 2) % size)),
        (f"{size} in a random order", lambda n: within(n, lambda a: turned[a])),
        (f"first key of each {size}", lambda n: within(n, lambda a: 0 * a)),
        (
            f"the tile of {size} before",
            lambda n: (
                (torch.arange(n) - size).clamp(min=0) + (torch.arange(n) < size) * torch.arange(n)
            ),
        ),
    )[kind]


def _operand(rng):
    """Draw a mistake in the reads of K, V or both, at some keys."""
    which = _one(rng, ("K", "V", "K and V"))
    said, of = _keys(rng)
    kind = int(rng.integers(6))
    order, index = _tile_order(rng)
    factor = float(rng.choice([0.5, 2.0, -1.0, 0.125, float(rng.uniform(0.3, 2.5))]))
    of_k = which.startswith("K")
    both = which == "K and V"
    any_key = "(keys|K and V|K, or V|V, or K|page)" if both else which
    words, pattern, change = (
        ("zero", rf"{any_key}.*(read as 0|0)", lambda w, x: 0 * x),
        ("of the next head", rf"{any_key} .*head", lambda w, x: x.roll(-w.call.group, 1)),
        ("of the next request", rf"{any_key} .*request", lambda w, x: x.roll(-1, 0)),
        (
            order,
            rf"{any_key}.*(order|other keys|elsewhere|offset|again|twice|block|key )",
            lambda w, x: x[:, :, index(x.shape[2])],
        ),
        (
            f"times {factor:.4g}",
            rf"{any_key}.*(factor|times|scale|sign)|scale",
            lambda w, x: factor * x,
        ),
        (
            "in e4m3",
            rf"{any_key}.* e4m3|{any_key} in",
            lambda w, x: x.to(torch.float8_e4m3fn).double(),
        ),
    )[kind]
    if of_k and not both and kind == 3:
        pattern += "|V.*(order|offset)"
    if which == "V" and kind == 4 and said == "all keys":
        pattern += "|common mode|factor"

    def bug(w: Work):
        if (kind == 2 and w.k.shape[0] == 1) or (kind == 1 and w.call.k.shape[1] == 1):
            return attend(w.s, w.v, w.call.q.dtype)
        some = of(w.k.shape[2])[:, None]
        k = torch.where(some, change(w, w.k), w.k) if of_k else w.k
        v = torch.where(some, change(w, w.v), w.v) if "V" in which else w.v
        return attend(w.scores(k=k), v, w.call.q.dtype)

    return f"{which} {words}, {said}", pattern, bug


def _scores(rng):
    """Draw a mistake in the scores: a factor, a bias, another function or another mask."""
    said, of = _keys(rng)
    kind = int(rng.integers(8))
    factor = float(rng.choice([math.log(2), 1 / math.log(2), 0.5, 2**0.5, rng.uniform(0.4, 2.2)]))
    step, bias = int(rng.integers(1, 30)), float(rng.uniform(-3, 3))
    cap, top = float(rng.choice([1, 2, 5, 10, 20])), float(rng.uniform(0.5, 2.5))
    slope = float(rng.uniform(0.01, 0.3))

    def plain(w):
        return w.q @ w.k.mT * w.call.scale

    def apart(w):
        query, key = places(w)
        return (query - key).double()

    words, pattern, change = (
        (f"times {factor:.4g}", "scale|score.*(times|factor)", lambda w: w.s * factor),
        (f"plus {bias:.3g}", "bias|factor|weights", lambda w: w.s + bias),
        (
            f"{slope:.3g} per key of distance",
            "ALiBi|bias|distance",
            lambda w: w.s - slope * apart(w),
        ),
        (f"capped at {cap:g}", "cap|function|clamp", lambda w: cap * torch.tanh(w.s / cap)),
        (f"at most {top:.3g}", "clamp|cap|function", lambda w: w.s.clamp(max=top)),
        (f"window of {step}", "window|left out|mask", lambda w: masked(w.s, apart(w) >= step)),
        ("hidden ones seen", "mask|hid", plain),
        ("in bf16", "scores.*rounded|rounded", lambda w: w.s.bfloat16().double()),
    )[kind]

    def bug(w: Work):
        some = of(w.k.shape[2])
        s = torch.where(some, torch.where(w.hidden & (kind != 6), -math.inf, change(w)), w.s)
        return attend(s, w.v, w.call.q.dtype)

    return f"scores {words}, {said}", pattern, bug


def _weights(rng):
    """Draw a factor on the weights of some keys: in both sums, in o alone or in l alone."""
    said, of = _keys(rng)
    while said == "all keys":
        said, of = _keys(rng)
    kind, factor = int(rng.integers(3)), float(rng.choice([0.0, 0.0, 2.0, 0.5]))
    what = {0.0: "left out", 2.0: "twice", 0.5: "halved"}[factor]
    pattern = (
        {
            0.0: "left out|window|missing|page|split|mask",
            2.0: "twice|again",
            0.5: "factor|weigh|bias|times",
        }[factor],
        {0.0: "V read as 0|V .*0", 2.0: "V .*twice|twice|V by a factor", 0.5: "V .*(factor|times)"}[
            factor
        ],
        "denominator",
    )[kind]

    def bug(w: Work):
        p = torch.exp(w.s - w.s.amax(-1, keepdim=True))
        by = torch.where(of(p.shape[-1]), factor, 1.0)
        o, l = (p * by if kind != 2 else p), (p * by if kind != 1 else p)
        l = l.sum(-1, keepdim=True)
        return (o @ w.v / torch.where(l == 0, 1.0, l)).to(w.call.q.dtype)

    return f"weights {what} in {('both sums', 'o', 'l')[kind]}, {said}", pattern, bug


def _sums(rng):
    """Draw a mistake in the running rescale of some tiles, or in the merge of partial results."""
    size, kind = _one(rng, _SIZES), int(rng.integers(5))

    def bug(w: Work):
        m, l, o = _tiles(w, size)
        top = m.amax(0)
        right = torch.exp(m - top)
        t = torch.arange(len(m)).reshape(-1, 1, 1, 1, 1)
        seen = torch.cummax(m, 0).values
        of_o, of_l = (
            (torch.exp(m - seen), right),
            (right, torch.exp(m - seen)),
            (torch.where(t % 2 == 1, torch.exp(m - seen), right),) * 2,
            (1 / l.clamp(min=1e-300) * (l > 0),) * 2,
            (right**2, right**2),
        )[kind]
        return ((of_o * o).sum(0) / (of_l * l).sum(0)).to(w.call.q.dtype)

    words, pattern = (
        ("o not rescaled", "o .*rescale|rescale"),
        ("l not rescaled", "l .*rescale|rescale|denominator"),
        ("odd tiles not rescaled", "rescale|merge|split"),
        ("tiles merged unweighted", "merge|weight|split"),
        ("tiles rescaled twice", "rescale|merge|split|weigh"),
    )[kind]
    return f"{words}, tiles of {size}", pattern, bug


def _tiles(w: Work, size: int):
    found = []
    for first in range(0, w.s.shape[-1], size):
        s, v = w.s[..., first : first + size], w.v[:, :, first : first + size]
        m = s.amax(-1, keepdim=True).clamp(min=-1e4)
        p = torch.exp(s - m)
        found.append((m, p.sum(-1, keepdim=True), p @ v))
    return (torch.stack(x) for x in zip(*found, strict=True))


def _queries(rng):
    """Draw a mistake in the queries: another head's, clipped, or wrong in some channels."""
    kind, size = int(rng.integers(5)), _one(rng, (8, 16))
    first, factor = int(rng.integers(2)) * size, float(rng.uniform(0.2, 1.8))
    top = float(rng.uniform(0.7, 1.5))

    def some(w, there):
        c = torch.arange(w.q.shape[-1])
        return torch.where((c >= first) & (c < first + size), there, w.q)

    words, pattern, change = (
        ("of the next head", "Q of another|quer", lambda w: w.q.roll(-1, 1)),
        ("channels zero", "channel", lambda w: some(w, 0 * w.q)),
        ("channels of the next head", "Q of another|channel", lambda w: some(w, w.q.roll(-1, 1))),
        (f"clipped at {top:.3g}", "clip|clamp", lambda w: w.q.clamp(-top, top)),
        (f"channels times {factor:.3g}", "channel", lambda w: some(w, factor * w.q)),
    )[kind]
    return (
        f"q {words} ({first} to {first + size - 1})",
        pattern,
        lambda w: attend(w.scores(q=change(w)), w.v, w.call.q.dtype),
    )


def _store(rng):
    """Draw a mistake in the output: another row's, zero, a factor, a sum, steps or lost signs."""
    kind, size = int(rng.integers(8)), _one(rng, (4, 8, 16))
    first = int(rng.integers(32 // size)) * size
    factor, all_of = float(rng.uniform(0.3, 1.7)), rng.random() < 0.5
    step = int(rng.integers(1, 3))

    def bug(w: Work):
        out = attend(w.s, w.v, w.call.q.dtype).double()
        c = torch.arange(out.shape[-1])
        some = torch.ones_like(c, dtype=torch.bool) if all_of else (c >= first) & (c < first + size)
        other = (
            out.roll(-step, 1),
            out.roll(-step, 2),
            0 * out,
            factor * out,
            out + factor * out.roll(-step, 1),
            out.roll(-size, 3),
            torch.round(out * 128) / 128,
            out.abs(),
        )[kind]
        return torch.where(some, other, out).to(w.call.q.dtype)

    words, pattern = (
        ("that of another head", "another row|head"),
        ("that of another query", "another row|quer"),
        ("zero", "never written|0|zero|channels"),
        (f"times {factor:.3g}", "factor|common mode|times|denominator|normal"),
        ("with another head's added", "added|sum"),
        ("that of other channels", "channels"),
        ("in steps of 1/128", "steps|rounded"),
        ("without its sign", "sign|absolute"),
    )[kind]
    of = "all channels" if all_of else f"channels {first} to {first + size - 1}"
    return f"out {words}, {of}", pattern + ("" if all_of else "|channels"), bug


_STAGES = (
    _operand,
    _scores,
    _operand,
    _weights,
    _store,
    _operand,
    _sums,
    _scores,
    _queries,
    _weights,
)
