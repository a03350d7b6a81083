"""Random mistakes as data: an edit of one step of attention, its keys, its rows, and a seed.

A list of bugs shows how well that list is known. A new seed brings a mistake that nobody has seen.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from labkernels.defects import (
    INDEX_K,
    INDEX_OUT,
    INDEX_V,
    MASK,
    MERGE,
    SCORES,
    STORE,
    VALUES,
    WEIGHTS,
)
from labkernels.measure.mistakes.attention import (
    Work,
    attend,
    distances,
    masked,
    parts,
    right_output,
)

TILES = (8, 16, 32, 64)
KEYS = ("all keys", "keys from a place on", "one tile", "odd tiles", "every fourth key")
ROWS = ("all rows", "odd heads", "late queries", "the last request")


@dataclass(frozen=True)
class Edit:
    """An edit: its class in labkernels.defects, and where(work, keys, number) returns the output.

    numbers: the least and the largest number, of which a seed draws one; evenly, or by its log.
    """

    kind: str
    make: Callable[[Work, torch.Tensor, float], torch.Tensor]
    numbers: tuple[float, float] = (0.0, 0.0)
    log: bool = False


@dataclass(frozen=True)
class Mistake:
    """One drawn mistake: the name of an edit and its number, which keys, which rows, and the seed.

    place, tile: where the keys begin, as a share of all, and the size of a tile.
    """

    edit: str
    number: float
    keys: str
    rows: str
    place: float
    tile: int
    seed: int

    @property
    def kind(self) -> str:
        """The class of the mistake."""
        return EDITS[self.edit].kind

    @property
    def words(self) -> str:
        """The mistake in words."""
        number = f" {self.number:.3g}" if EDITS[self.edit].numbers[1] else ""
        where = f", tiles of {self.tile}" if "tile" in self.keys or "tile" in self.edit else ""
        return f"{self.edit}{number}, {self.keys}{where}, {self.rows}"

    def keys_of(self, n: int) -> torch.Tensor:
        """Return True for the keys of the mistake: [n]."""
        key, first = torch.arange(n), int(self.place * n)
        return {
            "all keys": key >= 0,
            "keys from a place on": key >= first,
            "one tile": key // self.tile == first // self.tile,
            "odd tiles": key // self.tile % 2 == 1,
            "every fourth key": key % 4 == first % 4,
        }[self.keys]

    def output(self, w: Work) -> torch.Tensor:
        """Return the output of a kernel with this mistake."""
        bad = EDITS[self.edit].make(w, self.keys_of(w.s.shape[-1]), self.number)
        b, h, m = bad.shape[:3]
        where = {
            "all rows": torch.ones(b, h, m, dtype=torch.bool),
            "odd heads": (torch.arange(h) % 2 == 1)[:, None].expand(b, h, m),
            "late queries": (torch.arange(m) >= m // 2).expand(b, h, m),
            "the last request": (torch.arange(b) == b - 1)[:, None, None].expand(b, h, m),
        }[self.rows]
        return torch.where(where[..., None], bad, right_output(w))


def mistake(seed: int) -> Mistake:
    """Return the mistake of a seed; successive seeds take the edits in turn.

    >>> mistake(7) == mistake(7), mistake(7).kind == mistake(7 + len(EDITS)).kind
    (True, True)
    """
    rng = np.random.default_rng([seed, 44])
    name = list(EDITS)[seed % len(EDITS)]
    least, most = EDITS[name].numbers
    log = EDITS[name].log
    number = np.exp(rng.uniform(np.log(least), np.log(most))) if log else rng.uniform(least, most)
    keys, rows, tile = (x[int(rng.integers(len(x)))] for x in (KEYS, ROWS, TILES))
    if EDITS[name].kind in (MERGE, STORE, INDEX_OUT):
        keys = KEYS[0]  # the edit is of whole rows
    return Mistake(name, float(number), keys, rows, float(rng.uniform(0.1, 0.9)), tile, seed)


def _read(operand: str, change: Callable) -> Callable:
    """Return an edit of K or V: change(work, K or V, number) is read at the keys."""

    def make(w: Work, keys, number: float):
        x = w.k if operand == "k" else w.v
        x = torch.where(keys[:, None], change(w, x, number), x)
        scores = w.scores(x) if operand == "k" else w.s
        return _attend(w, scores, w.v if operand == "k" else x)

    return make


def _attend(w: Work, s, v=None, weights=None):
    return attend(s, w.v if v is None else v, w.call.q.dtype, weights)


def _scored(change: Callable) -> Callable:
    """Return an edit of the scores: change(work, number) takes their place at the keys."""

    def make(w: Work, keys, number: float):
        return _attend(w, masked(torch.where(keys, change(w, number), w.s), w.hidden))

    return make


def _in_one_sum(of_o: bool) -> Callable:
    """Return an edit that multiplies the weights of the keys in o, or in l, by a number."""

    def make(w: Work, keys, number: float):
        p = torch.exp(w.s - w.s.amax(-1, keepdim=True))
        by = torch.where(keys, number, 1.0)
        o, l = (p * by, p) if of_o else (p, p * by)
        l = l.sum(-1, keepdim=True)
        return (o @ w.v / torch.where(l == 0, 1.0, l)).to(w.call.q.dtype)

    return make


def _merged(w: Work, keys, number: float):
    """Merge splits of 32 keys whose maxima count by another power than 1."""
    m, l, o = parts(w, 32)
    m = m.clamp(min=-1e4)
    by = torch.exp(number * (m - m.amax(0)))
    return ((by * o).sum(0) / (by * l).sum(0)).to(w.call.q.dtype)


def _stored(change: Callable) -> Callable:
    def make(w: Work, keys, number: float):
        return change(right_output(w).double(), number).to(w.call.q.dtype)

    return make


def _e4m3(w: Work, x, number: float):
    return x.float().to(torch.float8_e4m3fn).double()


_FACTORS = (0.002, 1.0)
EDITS: dict[str, Edit] = {
    "K of another head": Edit(INDEX_K, _read("k", lambda w, x, a: x.roll(w.call.group, 1))),
    "V of another head": Edit(INDEX_V, _read("v", lambda w, x, a: x.roll(w.call.group, 1))),
    "K of another request": Edit(INDEX_K, _read("k", lambda w, x, a: x.roll(1, 0))),
    "V of another request": Edit(INDEX_V, _read("v", lambda w, x, a: x.roll(1, 0))),
    "K shifted by": Edit(INDEX_K, _read("k", lambda w, x, a: x.roll(int(a), 2)), (1, 40)),
    "V shifted by": Edit(INDEX_V, _read("v", lambda w, x, a: x.roll(int(a), 2)), (1, 40)),
    "K in e4m3": Edit(SCORES, _read("k", _e4m3)),
    "V in e4m3": Edit(VALUES, _read("v", _e4m3)),
    "K times 1 +": Edit(SCORES, _read("k", lambda w, x, a: x * (1 + a)), _FACTORS, log=True),
    "V times 1 +": Edit(VALUES, _read("v", lambda w, x, a: x * (1 + a)), _FACTORS, log=True),
    "scores plus": Edit(SCORES, _scored(lambda w, a: w.s + a), (0.01, 3.0), log=True),
    "scores at most": Edit(SCORES, _scored(lambda w, a: w.s.clamp(max=a)), (0.5, 2.5)),
    "slope of": Edit(SCORES, _scored(lambda w, a: w.s - a * distances(w.s)), (1e-4, 0.3), log=True),
    "a cap of": Edit(SCORES, _scored(lambda w, a: a * torch.tanh(w.s / a)), (1.0, 50.0), log=True),
    "keys left out": Edit(MASK, lambda w, keys, a: _attend(w, _without(w, keys))),
    "a window of": Edit(
        MASK, lambda w, keys, a: _attend(w, _without(w, keys & (distances(w.s) >= a))), (1, 64)
    ),
    "keys counted twice": Edit(
        MASK, lambda w, keys, a: _attend(w, w.s, weights=1.0 + keys.double())
    ),
    "o's weights times": Edit(WEIGHTS, _in_one_sum(True), (0.0, 2.0)),
    "l's weights times": Edit(WEIGHTS, _in_one_sum(False), (0.0, 2.0)),
    "splits merged by a power of": Edit(MERGE, _merged, (0.0, 2.0)),
    "the output of another head": Edit(INDEX_OUT, _stored(lambda out, a: out.roll(1, 1))),
    "the output of another row": Edit(INDEX_OUT, _stored(lambda out, a: out.roll(1, 2))),
    "the output times 1 +": Edit(STORE, _stored(lambda out, a: out * (1 + a)), _FACTORS, log=True),
    "the output at most": Edit(STORE, _stored(lambda out, a: out.clamp(-a, a)), (0.05, 2.0)),
}


def _without(w: Work, keys):
    """Return the scores without some keys, but of rows that would see none."""
    left = masked(w.s, keys)
    return torch.where((left == -torch.inf).all(-1, keepdim=True), w.s, left)
