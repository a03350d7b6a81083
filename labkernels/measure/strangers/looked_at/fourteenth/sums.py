"""Bugs of the softmax and its sums: rescales, denominators, few bits of P, approximate exp2."""

import math

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.fourteenth import words
from labkernels.measure.strangers.looked_at.fourteenth.frame import (
    Tile,
    cast,
    hiding,
    keys,
    looped,
    summed,
    unmasked,
)
from labkernels.measure.strangers.wrong import Work, attend, scored


def _base(w: Work, tile: Tile):
    alpha = tile.alpha ** math.log(2)
    return tile.l * alpha + tile.sum, tile.o * alpha + tile.p @ tile.v


def _lagging(w: Work, tile: Tile):
    alpha = torch.where(tile.moved < 1, torch.ones_like(tile.alpha), tile.alpha)
    return tile.l * alpha + tile.sum, tile.o * alpha + tile.p @ tile.v


def _l_after_sum(w: Work, tile: Tile):
    return (tile.l + tile.sum) * torch.where(tile.l > 0, tile.alpha, 1.0), tile.right()[1]


def _peeled(w: Work, tile: Tile):
    l, o = tile.right()
    return l, tile.o + tile.p @ tile.v if tile.number == 1 else o


def _cut(x):
    """Cut numbers in float64 to the 8 bits of bf16, towards zero."""
    return (x.float().contiguous().view(torch.int32) & -65536).view(torch.float32).double()


def _o_cut(w: Work, tile: Tile):
    l, o = tile.right()
    return l, _cut(o)


def _tile_before(w: Work, p, size: int = 32):
    """The product with V takes the weights of the tile before; the first tile has zeros."""
    late = torch.nn.functional.pad(p, (size, 0))[..., : p.shape[-1]]
    if p.shape[-1] <= size:
        late = p
    return late @ w.v, p.sum(-1, keepdim=True)


def _not_cleared(w: Work, p):
    o = p @ w.v
    before = o.roll(1, 1)
    before[:, 0] = 0
    return o + before, p.sum(-1, keepdim=True)


def _one_at_first(w: Work, p):
    """The denominator starts with one, at the maximum of the first tile of 32 keys."""
    first = torch.exp(w.s[..., :32].amax(-1, keepdim=True) - w.s.amax(-1, keepdim=True))
    return cast(w, p) @ w.v, p.sum(-1, keepdim=True) + first


def _half_of_a_quad(w: Work, p):
    some = (keys(w) // 2 % 4 < 2).double()
    l = (p * some).sum(-1, keepdim=True)
    return cast(w, p) @ w.v, torch.where(l == 0, p.sum(-1, keepdim=True), l)


def _power_of_two(p, change):
    """Return 2^x, with change(fraction of x) for its power, where p = 2^x is not 0."""
    x = torch.log2(p.clamp(min=1e-300))
    whole = torch.floor(x)
    return torch.where(p == 0, p, torch.exp2(whole) * change(x - whole))


def _table(w: Work, p):
    used = _power_of_two(p, lambda x: torch.exp2(torch.floor(8 * x) / 8))
    return used @ w.v, used.sum(-1, keepdim=True)


def _chord(w: Work, p):
    """The sum takes exp2, and the product a chord through its powers of two."""
    return _power_of_two(p, lambda x: 1 + x) @ w.v, p.sum(-1, keepdim=True)


def _four_octaves(w: Work, p):
    used = torch.where(p == 0, p, p.clamp(min=2.0**-4))
    return used @ w.v, used.sum(-1, keepdim=True)


def _bf16_sum(w: Work, p):
    """Each of eight lanes adds its keys in bf16, one after the other."""
    lanes = torch.nn.functional.pad(p, (0, -p.shape[-1] % 8)).unflatten(-1, (-1, 8))
    l = torch.zeros_like(lanes[..., 0, :])
    for i in range(lanes.shape[-2]):
        l = (l + lanes[..., i, :]).bfloat16().double()
    return cast(w, p) @ w.v, l.sum(-1, keepdim=True)


def _sum_of_all(w: Work, p):
    hidden = torch.exp(unmasked(w) - w.s.amax(-1, keepdim=True))
    return cast(w, p) @ w.v, hidden.sum(-1, keepdim=True)


def _tiles_centred(w: Work):
    """The mean key of each tile of 32 is taken off the keys of that tile."""
    k = w.k.clone()
    for first in range(0, k.shape[2], 32):
        tile = slice(first, first + 32)
        k[:, :, tile] -= k[:, :, tile].mean(2, keepdim=True)
    return w.scores(k=k)


def _without_the_mean(w: Work):
    v = w.v - w.v.mean(2, keepdim=True)
    return attend(w.s, v, w.call.q.dtype)


def _below_the_first_24(w: Work):
    n = w.s.shape[-1]
    return w.s < torch.topk(w.s, min(24, n), -1).values[..., -1:]


WRONG: dict[str, tuple[Bug, str]] = {
    "sums rescaled by a power of two of a natural difference": (looped(32, _base), words.RESCALE),
    "moves of the maximum below one not followed by o and l": (
        looped(24, _lagging),
        words.SMALL_MOVES,
    ),
    "denominator rescaled after the tile's sum was added": (looped(16, _l_after_sum), words.SUM),
    "o not rescaled at the second tile, which was peeled off": (looped(16, _peeled), words.O_SCALE),
    "o cut to bf16 after each tile of 8": (looped(8, _o_cut), words.O_ROUNDED),
    "weights of the tile before with this tile's V": (summed(_tile_before), words.V_TILE),
    "o not cleared after the head before": (summed(_not_cleared), words.NOT_CLEARED),
    "denominator starts at one": (summed(_one_at_first), words.MORE),
    "denominator of two lanes of four": (summed(_half_of_a_quad), words.MISSING),
    "exp2 by a table of eight steps": (summed(_table), words.STEPS),
    "exp2 by a chord for the product, exact for the sum": (summed(_chord), words.CHORD),
    "exp2 over four octaves": (summed(_four_octaves), words.CLAMPED),
    "denominator added up in bf16, key by key": (summed(_bf16_sum), words.FEW_BITS),
    "denominator of the scores before the mask": (summed(_sum_of_all), words.MORE),
    "mean key of each tile taken off": (scored(_tiles_centred), words.CENTRED_K),
    "mean of V taken off for good": (_without_the_mean, words.CENTRED_V),
    "the 24 largest scores alone": (hiding(_below_the_first_24), words.LARGEST),
}
