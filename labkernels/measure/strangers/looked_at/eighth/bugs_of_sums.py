"""Bugs of the eighth set in scores, weights, sums and formats.

Name: the bug, and a pattern (re.search, case sensitive) that a truthful name for it matches.
"""

import math
from collections.abc import Callable

import torch

from labkernels.measure.strangers.wrong import (
    Work,
    attend,
    keys_of,
    masked,
    merged,
    parts,
    scored,
    stored,
)

LOG2_E = math.log2(math.e)
_SCALE = r"\bscale\b|temperature"
_MERGE = r"merge|weights of splits|partial|unweighted|combine|\bsplit"
_DENOMINATOR = r"denominator|\bl\b|normalis|row sum"


def _p(s):
    m = s.amax(-1, keepdim=True)
    return torch.exp(s - m.masked_fill(m == -math.inf, 0.0))


def _as_stored(w: Work, p):
    return p if w.call.q.dtype == torch.float32 else p.to(w.call.q.dtype).double()


def _divided(w: Work, o, l):
    return (o / torch.where(l == 0, torch.ones_like(l), l)).to(w.call.q.dtype)


def _by_sum(change: Callable) -> Callable:
    """A bug in the denominator: change(work, weights, sum) gives it."""

    def bug(w: Work):
        p = _p(w.s)
        return _divided(w, _as_stored(w, p) @ w.v, change(w, p, p.sum(-1, keepdim=True)))

    return bug


def _by_weights(change: Callable) -> Callable:
    """A bug in the weights of both sums: change(work, weights) gives them."""

    def bug(w: Work):
        p = change(w, _p(w.s))
        return _divided(w, p @ w.v, p.sum(-1, keepdim=True))

    return bug


def _heads(w: Work):
    return torch.arange(w.s.shape[1])[:, None, None]


def _online(w: Work, size: int, rescale: Callable) -> torch.Tensor:
    """Tiles with a running maximum; rescale(old, new, tile) gives the factors of o and of l."""
    m = torch.full((*w.s.shape[:3], 1), -math.inf, dtype=torch.float64)
    l, o = torch.zeros_like(m), torch.zeros(*w.s.shape[:3], w.v.shape[-1], dtype=torch.float64)
    for tile, first in enumerate(range(0, w.s.shape[-1], size)):
        s = w.s[..., first : first + size]
        top = torch.maximum(m, s.amax(-1, keepdim=True))
        shift = top.masked_fill(top == -math.inf, 0.0)
        p = torch.exp(s - shift)
        of_o, of_l = rescale(m, shift, tile)
        l = l * of_l + p.sum(-1, keepdim=True)
        o = o * of_o + _as_stored(w, p) @ w.v[:, :, first : first + size]
        m = top
    return _divided(w, o, l)


def _base_2_in_the_rescale(w: Work):
    return _online(w, 32, lambda old, new, tile: (torch.exp2(old - new),) * 2)


def _o_lost_in_the_second_tile(w: Work):
    def rescale(old, new, tile):
        right = torch.exp(old - new)
        return (right * (tile != 1)), right

    return _online(w, 32, rescale)


def _first_tile_in_base_2(w: Work):
    return torch.where(keys_of(w) < 32, w.s * math.log(2), w.s)


def _odd_heads_hotter(w: Work):
    return torch.where(_heads(w) % 2 == 1, w.s * 2**0.5, w.s)


def _rounded_weights(dtype) -> Callable:
    def bug(w: Work):
        p = _p(w.s)
        return _divided(w, p.to(dtype).double() @ w.v, p.sum(-1, keepdim=True))

    return bug


def _in_steps(w: Work):
    p = _p(w.s)
    return _divided(w, torch.round(255 * p) / 255 @ w.v, p.sum(-1, keepdim=True))


def _saturated(w: Work, p, l):
    """A sum of weights up to 2^11 that stops at fp16's largest number."""
    return (l * 2**11).clamp(max=65504.0) / 2**11


def _sum_in_bf16(w: Work, p, l):
    total = torch.zeros_like(l)
    for key in range(p.shape[-1]):
        total = (total + p[..., key : key + 1]).to(torch.bfloat16).double()
    return total


def _reciprocal_in_8_bits(w: Work, p, l):
    return 1 / (1 / l).to(torch.bfloat16).double()


def _without_a_warp(w: Work, p, l):
    return (p * (keys_of(w) // 8 % 4 != 3)).sum(-1, keepdim=True)


def _maxima_of_halves(w: Work):
    """Keys of the upper half of each 32 have weights against the maximum of such keys."""
    upper = keys_of(w) % 32 >= 16
    tops = [masked(w.s, where).amax(-1, keepdim=True) for where in (upper, ~upper)]
    low, high = (t.masked_fill(t == -math.inf, 0.0) for t in tops)
    p = torch.exp(w.s - torch.where(upper, high, low))
    return _divided(w, _as_stored(w, p) @ w.v, p.sum(-1, keepdim=True))


def _powers_of_2(w: Work, p):
    return torch.where(p > 0, torch.exp2(torch.round(torch.log2(p.clamp(min=1e-30)))), p)


def _sum_of_splits(w: Work):
    """o and l of splits of 64 keys added up, each against its own maximum."""
    _, l, o = parts(w, 64)
    return _divided(w, o.sum(0), l.sum(0))


def _of_two_splits(m, l):
    first_two = (torch.arange(len(m)) < 2).view(-1, 1, 1, 1, 1)
    return torch.exp(m - m[:2].amax(0)).clamp(max=1e300) * l * first_two


def _second_split_twice(m, l):
    twice = 1.0 + (torch.arange(len(m)) == 1).view(-1, 1, 1, 1, 1)
    return torch.exp(m - m.amax(0)) * l * twice


def _squared(m, l):
    return (torch.exp(m - m.amax(0)) * l) ** 2


def _dropped_keys(w: Work, p):
    """A hash of the key's number drops one key in five for all rows, before the sum."""
    return p * ((keys_of(w) * 2654435761 % 2**32) >= 2**32 // 5)


def _sum_of_the_first_head(w: Work, p, l):
    return l[:, :1].expand_as(l)


def _mean_of_keys(w: Work):
    return _divided(w, _as_stored(w, _p(w.s)) @ w.v, torch.tensor(w.s.shape[-1] / 2.0))


def _laundered(w: Work, out):
    """Rows in which a product overflowed became NaN, and NaN became 0."""
    bad = (w.s.masked_fill(w.hidden, 0.0).abs().amax(-1) > 3.0)[..., None]
    return torch.where(bad, torch.zeros_like(out), out)


def _added(w: Work, out):
    return (out.double() + out.double().roll(1, 0)).to(out.dtype)


def _toward_zero(w: Work):
    exact = (torch.softmax(w.s, -1).nan_to_num() @ w.v).float()
    if w.call.q.dtype == torch.float32:
        return exact
    near = exact.to(w.call.q.dtype)
    away = near.double().abs() > exact.double().abs()
    bits = near.view(torch.int16)
    return torch.where(away, bits - 1, bits).view(w.call.q.dtype)


def _normed(w: Work):
    return w.scores(k=w.k / (w.k**2).mean(-1, keepdim=True).sqrt().clamp(min=1e-6))


WRONG = {
    "scale of a whole group": (scored(lambda w: w.s / math.sqrt(w.call.group)), _SCALE),
    "rescale by exp2 of natural maxima": (
        _base_2_in_the_rescale,
        r"rescal|log base|base 2|exp2|running max",
    ),
    "first tile without log2 e": (
        scored(_first_tile_in_base_2),
        rf"{_SCALE}|log2|base|scores.*(factor|times)",
    ),
    "scale of half the width in odd heads": (scored(_odd_heads_hotter), _SCALE),
    "scores in e5m2": (
        scored(lambda w: w.s.to(torch.float8_e5m2).double()),
        r"scores.*(e5m2|rounded|8 bits|steps)",
    ),
    "P in steps of 1/255": (
        _in_steps,
        r"\bP\b.*(steps|rounded|8 bits|int8)|weights.*steps",
    ),
    "P in bf16 for other formats": (
        _rounded_weights(torch.bfloat16),
        r"\bP\b.*(bf16|rounded|16 bits)",
    ),
    "sum of weights overflows": (
        _by_sum(_saturated),
        rf"{_DENOMINATOR}|overflow|saturat|factor",
    ),
    "sum of weights in bf16": (_by_sum(_sum_in_bf16), _DENOMINATOR),
    "reciprocal of the sum in bf16": (
        _by_sum(_reciprocal_in_8_bits),
        rf"{_DENOMINATOR}|factor|reciprocal",
    ),
    "sum without the last warp": (_by_sum(_without_a_warp), _DENOMINATOR),
    "first tile of o lost": (
        _o_lost_in_the_second_tile,
        r"rescal|\bV\b.*0|denominator|left out|\bo\b.*(lost|not)",
    ),
    "o and l of splits added": (_sum_of_splits, _MERGE + "|rescal"),
    "two splits merged of more": (merged(48, _of_two_splits), r"left out|" + _MERGE),
    "second split added twice": (merged(48, _second_split_twice), r"twice|again|" + _MERGE),
    "weights of splits squared": (merged(64, _squared), _MERGE),
    "maxima of half warps": (_maxima_of_halves, r"rescal|maxim|merge|weights? of|bias"),
    "weights as powers of 2": (_by_weights(_powers_of_2), r"\bexp|\bP\b|weights|power|steps"),
    "small weights flushed": (
        _by_weights(lambda w, p: torch.where(p < 2.0**-6, 0.0, p)),
        r"weights?\b|flush|\bP\b|small|clamp|threshold|exponents",
    ),
    "dropout of whole keys": (_by_weights(_dropped_keys), r"dropout|left out|skipped|missing"),
    "sum of the first head for all": (_by_sum(_sum_of_the_first_head), _DENOMINATOR),
    "1 in the sum for the maximum": (
        _by_sum(lambda w, p, l: l + 1.0),
        r"denominator|sink|padding",
    ),
    "divided by half the keys": (_mean_of_keys, r"denominator|normalis|divided|\bsum"),
    "NaN laundered to 0": (stored(_laundered), r"never written|\b0\b|zero|NaN"),
    "added to the row of another request": (stored(_added), r"added|sum|twice|factor|times|accum"),
    "out through bf16": (
        stored(lambda w, out: out.bfloat16().to(out.dtype)),
        r"out.*(bf16|rounded|steps)",
    ),
    "out cut toward zero": (lambda w: _toward_zero(w), r"out.*(cut|trunc|toward|rounded)|toward"),
    "norm of K applied again": (scored(_normed), r"norm|K divided|\bscale|length"),
    "signs of the scores lost": (scored(lambda w: masked(w.s.abs(), w.hidden)), r"sign|absolute"),
    "scores doubled beyond 1": (
        scored(lambda w: torch.where(w.s > 1, 2 * w.s - 1, w.s)),
        r"scores?\b.*(function|factor|times|beyond|slope)|function",
    ),
    "weights of odd keys by the key before": (
        lambda w: attend(
            w.s[..., keys_of(w) // 2 * 2].masked_fill(w.hidden, -math.inf), w.v, w.call.q.dtype
        ),
        r"\bK\b.*(key|read|twice|order|again)|scores of another|keys read|weights? of",
    ),
}
"""Name: the bug, and a pattern that a right name for it matches."""
