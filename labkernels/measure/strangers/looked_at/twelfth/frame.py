"""What the bugs of the twelfth set share: a loop over tiles, parts of the keys, words of names."""

import math
from collections.abc import Callable
from types import SimpleNamespace

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.wrong import Work, keys_of, right_output

# Words of right names. A name that blames K and V is no right name for a bug of V alone, nor is one
# that says that something is left out for something that is there, but wrong.
LOST = "(?:key|page|split|tile).* left out|missing"
TWICE = "(?:key|page|split|tile|K and V).* (?:twice|again)"
PAGES = f"keys read|K and V read|wrong page|{LOST}|{TWICE}"
V_READ = r"(?<!and )\bV (?:read|of the key|with|from)|the value of"
K_READ = r"(?<!and )\bK (?:read|of the key|with|from)"
V_SCALE = r"(?<!and )\bV (?:by|with|read with|.*factor|.*scale)"
K_SCALE = r"(?<!and )\bK (?:by|with|read with|divided|.*factor|.*scale|.*step)|keys by a factor"
V_IN, K_IN = r"(?<!and )\bV in (?!another)", r"(?<!and )\bK in (?!another)"
MASK = r"mask(?! left out)|hidden"
MERGE = "splits|merge of"
SUM = r"denominator|factor for each|(?<!and )\bl\b"


def shift(m):
    """Return m, with 0 for the maximum of no keys."""
    return m.masked_fill(m == -math.inf, 0.0)


def cast(w: Work, p):
    """Return weights in the format of the inputs; those of fp32 stay as they are."""
    return p if w.call.q.dtype == torch.float32 else p.to(w.call.q.dtype).double()


def put(w: Work, o, l) -> torch.Tensor:
    """Return o / l in the output's format, and 0 where l is 0."""
    return (o / l.masked_fill(l == 0, 1.0)).to(w.call.q.dtype)


def tiles(n: int, size: int) -> list[slice]:
    """Return the tiles of n keys."""
    return [slice(first, min(first + size, n)) for first in range(0, n, size)]


def parts(n: int, count: int) -> list[slice]:
    """Return n keys in at most `count` parts of one length; the last may be shorter."""
    return tiles(n, -(-n // count))


def raw(w: Work):
    """Return the scores before cap, slopes and mask."""
    return w.q @ w.k.mT * w.call.scale


def weights(w: Work):
    """Return the weights of the keys relative to the largest."""
    return torch.exp(w.s - shift(w.s.amax(-1, keepdim=True)))


Hook = Callable[[SimpleNamespace], None]


def walk(w: Work, size: int, before: Hook | None = None, during=None, after=None):
    """Return o and l of an online softmax; a hook changes the state t of a step.

    before: the tile has been read. during: weights p, their rounded form, and factors of the old
    o and l are known. after: o and l hold the tile. Shapes: s, p [B, Hq, M, keys].
    """
    rows = w.s.shape[:3]
    cut = tiles(w.s.shape[-1], size)
    none = torch.full((*rows, 1), -math.inf, dtype=torch.float64)
    t = SimpleNamespace(
        w=w, m=none, l=0 * shift(none), o=0 * shift(none) * w.v[:, :, :1], end=len(cut)
    )
    for i, keys in enumerate(cut):
        t.i, t.s, t.v, t.old, t.was = i, w.s[..., keys], w.v[:, :, keys], t.m, t.l
        if before:
            before(t)
        t.m = torch.maximum(t.old, t.s.amax(-1, keepdim=True))
        t.p = torch.exp(t.s - shift(t.m))
        t.used = cast(w, t.p)
        t.keep_o = t.keep_l = torch.exp(t.old - shift(t.m))
        if during:
            during(t)
        t.l = t.l * t.keep_l + t.p.sum(-1, keepdim=True)
        t.o = t.o * t.keep_o + t.used @ t.v
        if after:
            after(t)
    return t.o, t.l


def walked(size: int, **hooks) -> Bug:
    """Return a bug in the loop over tiles; one that changes nothing gives the right output."""

    def bug(w: Work):
        found, clean = walk(w, size, **hooks), walk(w, size)
        same = all(x.equal(y) for x, y in zip(found, clean, strict=True))
        return right_output(w) if same else put(w, *found)

    return bug


def states(w: Work, cut: list[slice]):
    """Return the log-sum-exps and the outputs of parts of the keys: [parts, B, Hq, M, 1 or Dv]."""
    lse = torch.stack([torch.logsumexp(w.s[..., keys], -1, keepdim=True) for keys in cut])
    some = zip(lse, cut, strict=True)
    return lse, torch.stack([torch.exp(w.s[..., i] - shift(own)) @ w.v[:, :, i] for own, i in some])


def shares(lse):
    """Return the right weights of parts, relative to the largest."""
    return torch.exp(lse - lse.amax(0))


def joined(count: int, change: Callable) -> Bug:
    """Return a bug in the merge of parts: change(w, lse, part) returns weights and outputs."""

    def bug(w: Work):
        lse, part = states(w, parts(w.s.shape[-1], count))
        weights, found = change(w, lse, part)
        if weights.equal(shares(lse)) and found.equal(part):
            return right_output(w)
        return put(w, (weights * found).sum(0), weights.sum(0))

    return bug


def where_keys(w: Work, of: Callable, x, y):
    """Return x [B, Hq, L, D] for the keys whose numbers `of` takes, else y."""
    return torch.where(of(keys_of(w))[:, None], x, y)
