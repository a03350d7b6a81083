"""Bugs of numbers: rotations, scales, formats of few bits, their scales and zero points."""

import math

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.thirteenth.frame import (
    K_READ,
    ROTATION,
    SCALE,
    K,
    V,
    cast,
    of_k,
    of_sums,
    of_v,
    turned,
    whole,
)
from labkernels.measure.strangers.wrong import Work, keys_of, places, scored

_BITS = r"(in(?! another)|through|rounded)"


def _queries(w: Work):
    return places(w)[0][:, 0]


def _both(change) -> Bug:
    """Return a bug in Q and K: change(tensor, places of its rows) returns each."""
    return scored(lambda w: w.scores(change(w.q, _queries(w)), change(w.k, keys_of(w))))


def _new_not_turned(w: Work, k):
    new = keys_of(w) >= w.k.shape[2] - w.q.shape[2]
    return torch.where(new[:, None], turned(k, -keys_of(w)), k)


def _rest_turned(x, at):
    """Turn the second half of the channels, which a partial rotation leaves alone."""
    half = x.shape[-1] // 2
    return torch.cat([x[..., :half], turned(x[..., half:], at)], -1)


def _rounded_away(frequency):
    return frequency.to(torch.bfloat16).double() - frequency


def _amax(x, *axes: int):
    return x.abs().amax(axes, keepdim=True)


def _of_next_block(w: Work, k, block: int = 32):
    """The scale of each block of keys is that of the next one."""
    sizes = torch.cat([_amax(part, 2, 3).expand(part.shape) for part in k.split(block, 2)], 2)
    at = (keys_of(w) + block).clamp(max=k.shape[2] - 1)
    return k * sizes[:, :, at] / sizes


def _of_channel_before(w: Work, v):
    size = _amax(v, 2)
    return v * size.roll(1, -1) / size


def _nibbles(w: Work, k):
    """Two numbers of one byte change places."""
    return whole(k, 2, lambda x: x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2))


def _without_zero_points(w: Work, k):
    return k - k.amin(-1, keepdim=True)


def _tile_means(w: Work, k, tile: int = 40):
    if k.shape[2] <= tile:
        return k
    return torch.cat([part - part.mean(2, keepdim=True) for part in k.split(tile, 2)], 2)


def _mxfp4(k):
    """Blocks of 16 channels have 4 bits a number and a scale that is a power of two."""
    part = k.unflatten(-1, (-1, 16))
    scale = torch.exp2(torch.floor(torch.log2(_amax(part, -1).clamp(min=2.0**-20))) - 2)
    levels = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6]).double()
    near = ((part / scale).abs()[..., None] - levels).abs().argmin(-1)
    return (levels[near] * part.sign() * scale).flatten(-2)


def _e4m3(x):
    return x.float().to(torch.float8_e4m3fn)


def _schraudolph(w: Work):
    """Exp by writing the exponent into the bits of a float, whose mantissa is then linear."""
    x = (w.s - w.s.amax(-1, keepdim=True)) * math.log2(math.e)
    x = x.clamp(min=-100.0)
    p = torch.exp2(x.floor()) * (1 + x - x.floor())
    p = p.masked_fill(w.s == -math.inf, 0.0)
    return (cast(w, p) @ w.v / p.sum(-1, keepdim=True)).to(w.call.q.dtype)


def _of_p(change) -> Bug:
    """Return a bug in the format of P: change(P) returns it for the product with V."""
    return of_sums(lambda w, p, used: (change(p) @ w.v, p.sum(-1, keepdim=True)))


WRONG: dict[str, tuple[Bug, str]] = {
    "new keys not turned": (of_k(_new_not_turned), ROTATION),
    "channels past a partial rotation turned, too": (_both(_rest_turned), ROTATION),
    "keys turned by their place in a chunk of 64": (
        of_k(lambda w, k: turned(k, keys_of(w) % 64 - keys_of(w))),
        ROTATION,
    ),
    "frequencies of a rotation in bf16": (
        _both(lambda x, at: turned(x, at, wrong=_rounded_away)),
        ROTATION,
    ),
    "the factor of a long context twice": (
        scored(lambda w: w.s * (0.1 * math.log(8) + 1) ** 2),
        SCALE,
    ),
    "a scale of the channels without rotation": (
        scored(lambda w: w.s * (192 / 128) ** 0.5),
        SCALE,
    ),
    "e4m3 with another bias: K twice as large": (of_k(lambda w, k: 2 * k), SCALE),
    "K's scales of blocks a block late": (
        of_k(_of_next_block),
        rf"keys by a factor|{K} (by|divided|with)",
    ),
    "V's scales of channels a channel off": (
        of_v(_of_channel_before),
        rf"factor for each|{V} (by|with|through)",
    ),
    "the two nibbles of K's bytes exchanged": (
        of_k(_nibbles),
        rf"{K_READ}|channels of Q or K|Q read",
    ),
    "zero points of K left out": (
        of_k(_without_zero_points),
        rf"{K} (with|less)|zero point",
    ),
    "means of K's tiles taken off": (of_k(_tile_means), rf"{K} (less|with)"),
    "K in four bits with powers of two": (
        of_k(lambda w, k: whole(k, 16, _mxfp4)),
        rf"{K} {_BITS}",
    ),
    "queries clipped by an old calibration": (
        scored(lambda w: w.scores(q=w.q.clamp(-1.25, 1.25))),
        r"\bQ (clipped|through|in)",
    ),
    "bits of V in e4m3 read as e5m2": (
        of_v(lambda w, v: _e4m3(v).view(torch.float8_e5m2).double()),
        rf"{V} (read as|through)",
    ),
    "exp by the bits of a float": (_schraudolph, r"\bexp|weights are"),
    "P cut to seven bits": (
        _of_p(lambda p: torch.floor(127 * p) / 127),
        r"\bP (in|truncated|through|rounded)",
    ),
}
"""Name: the bug, and a pattern that a right name for it matches."""
