"""Bugs of the tenth set in loops over tiles: maxima, sums, rescales, stages and warps."""

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.tenth.tiles import (
    DIVISOR,
    FACTOR,
    K_KEYS,
    KEYS,
    LOST,
    MERGE,
    RESCALE,
    TWICE,
    V_KEYS,
    divided,
    finite,
    heads,
    online,
    rows,
    softmax_parts,
    swapped_pairs,
    used,
)
from labkernels.measure.strangers.wrong import Work, attend, keys_of, keys_read, read, scored

_TILE = 32


def _of_pair(alpha):
    """The factor of the even row for both rows of a pair, the heads of a token side by side."""
    flat = rows(alpha)
    index = torch.arange(flat.shape[1]) // 2 * 2
    return heads(flat[:, index], alpha)


def _lazy(step, threshold: float = 1.0):
    """No rescale of a row whose maximum moved less than a threshold."""
    return torch.where(step.move < threshold, torch.ones_like(step.alpha), step.alpha)


def _skipped_last(step):
    """No rescale before the last tile."""
    last = step.i == step.count - 1 and step.i > 0
    return torch.ones_like(step.alpha) if last else step.alpha


def _voted(step):
    """A rescale only if all heads' maxima moved, as by a vote of the wrong kind."""
    moved = (step.move > 0).all(1, keepdim=True)
    return torch.where(moved | (step.alpha == 0), step.alpha, torch.ones_like(step.alpha))


def _after(step, o):
    """A rescale that also takes the tile just added."""
    return o * torch.where(step.alpha == 0, torch.ones_like(step.alpha), step.alpha)


def _tile_weights(w: Work, late):
    """P of the tile before where `late` says so, for the columns [L] of a tile."""
    p, l, _ = softmax_parts(w)
    before = torch.nn.functional.pad(p, (_TILE, 0))[..., : p.shape[-1]]
    return divided(w, used(torch.where(late, before, p), w) @ w.v, l)


def _all_late(w: Work):
    return _tile_weights(w, keys_of(w) >= _TILE)


def _half_late(w: Work):
    key = keys_of(w)
    return _tile_weights(w, (key >= _TILE) & (key % _TILE < _TILE // 2))


def _stale_k(w: Work):
    """K of the tile before in every third tile."""
    key = keys_of(w)
    return w.scores(k=read(w.k, torch.where(key // _TILE % 3 == 1, key - _TILE, key)))


def _overwritten_v(w: Work):
    """V of the tile two later, whose copy came before its stage was free."""
    key = keys_of(w)
    later = key + 2 * _TILE
    return attend(
        w.s,
        read(w.v, torch.where((key // _TILE == 0) & (later < len(key)), later, key)),
        w.call.q.dtype,
    )


def _same_stage_twice(w: Work):
    """A phase bit that does not flip: odd tiles are those before them, K and V."""
    key = keys_of(w)
    return torch.where(key // _TILE % 2 == 1, key - _TILE, key)


def _lanes(w: Work, keep, count: int):
    """Sums of lanes, with keys in turn, each with its own maximum; keep says how they are added."""
    key = keys_of(w)
    found = [softmax_parts(w, w.s.masked_fill(key % count != i, -torch.inf)) for i in range(count)]
    top = finite(torch.stack([m for _, _, m in found]).amax(0))
    l, o = 0.0, 0.0
    for i, (p, of_lane, m) in enumerate(found):
        for_l, for_o = keep(i, torch.exp(m - top))
        l, o = l + for_l * of_lane, o + for_o * (used(p, w) @ w.v)
    return divided(w, o, l)


def _sum_of(w: Work, kept):
    """A denominator from the keys [L] that are kept, and an output from all."""
    p, l, _ = softmax_parts(w)
    some = (p * kept).sum(-1, keepdim=True)
    return divided(w, used(p, w) @ w.v, torch.where(some > 0, some, l))


def _output_of(w: Work, kept):
    """An output from the keys [L] that are kept, and a denominator from all."""
    p, l, _ = softmax_parts(w)
    return divided(w, used(p * kept, w) @ w.v, l)


def _tail_of_zeros(w: Work, size: int = 64):
    """Columns past the last key with the score 0 in the sum of weights."""
    p, l, m = softmax_parts(w)
    rest = -w.s.shape[-1] % size
    return divided(w, used(p, w) @ w.v, l + rest * torch.exp(-finite(m)))


def _neighbours_sum(w: Work):
    """The sum of the row beside it, the heads of a token side by side."""
    p, l, _ = softmax_parts(w)
    flat = rows(l)
    return divided(w, used(p, w) @ w.v, heads(flat[:, swapped_pairs(flat.shape[1])], l))


def _neighbours_maximum(w: Work):
    """The maximum of the row beside it in P, its own in the sum."""
    p, l, m = softmax_parts(w)
    flat = rows(m)
    other = heads(flat[:, swapped_pairs(flat.shape[1])], m)
    p = torch.exp((w.s - finite(other)).clamp(max=9.0))
    return divided(w, used(p, w) @ w.v, l)


def _not_cleared(w: Work, of_o: bool):
    """The sum, or the output, of the head before as the start."""
    p, l, _ = softmax_parts(w)
    o = used(p, w) @ w.v
    before = (o if of_o else l).roll(1, 1).clone()
    before[:, 0] = 0
    return divided(w, o + before, l) if of_o else divided(w, o, l + before)


def _without_step(w: Work, factor: float):
    """The second step of 16 channels in Q K times a factor: 0 if left out, 2 if done twice."""
    q = w.q.clone()
    q[..., 16:32] *= factor
    return w.scores(q=q)


def _tile_twice(w: Work):
    """The last tile once in the loop, and once more after it."""
    n = len(keys_of(w))
    last = (n - 1) // _TILE * _TILE
    return attend(w.s, w.v, w.call.q.dtype, weights=1.0 + (keys_of(w) >= last).double())


def _maximum_of_tile(w: Work):
    """Each tile with its own maximum, and no rescale of anything."""
    l, o = 0.0, 0.0
    for first in range(0, w.s.shape[-1], _TILE):
        p, part, _ = softmax_parts(w, w.s[..., first : first + _TILE])
        l, o = l + part, o + used(p, w) @ w.v[:, :, first : first + _TILE]
    return divided(w, o, l)


def _clamped_exponents(w: Work):
    """Exponents no smaller than -4, as for a table: small weights are too large."""
    m = finite(w.s.amax(-1, keepdim=True))
    p = torch.exp((w.s - m).clamp(min=-4.0)).masked_fill(w.hidden, 0.0)
    return divided(w, used(p, w) @ w.v, p.sum(-1, keepdim=True))


def _sum_without_last_tile(w: Work):
    n = len(keys_of(w))
    return _sum_of(w, (keys_of(w) < (n - 1) // _TILE * _TILE).double())


_WEIGHTS = "weights are those of another tile|weights of another"
_PER_ROW = f"{DIVISOR}|factor for each"
WRONG: dict[str, tuple[Bug, str]] = {
    "P of the tile before": (_all_late, f"{_WEIGHTS}|{V_KEYS}"),
    "half of P of the tile before": (_half_late, f"{_WEIGHTS}|{V_KEYS}"),
    "a stale stage of K": (scored(_stale_k), K_KEYS),
    "a stage of V overwritten too early": (_overwritten_v, V_KEYS),
    "a phase bit that never flips": (keys_read(_same_stage_twice), f"{KEYS}|{TWICE}|{LOST}"),
    "no rescale before the last tile": (online(_TILE, of_o=_skipped_last), RESCALE),
    "no rescale of o after moves below 1": (online(_TILE, of_o=_lazy), RESCALE),
    "no rescale of l after moves below 1": (
        online(_TILE, of_l=_lazy),
        f"l not rescaled|l rescaled|l accumulated|small moves|{DIVISOR}",
    ),
    "no rescale of either after moves below 1": (
        online(_TILE, of_o=_lazy, of_l=_lazy),
        f"rescaled|{RESCALE}",
    ),
    "a rescale of o only if all heads moved": (online(_TILE, of_o=_voted), RESCALE),
    "the rescale of the even row for a pair of rows": (
        online(16, of_o=lambda step: _of_pair(step.alpha)),
        RESCALE,
    ),
    "o rescaled twice": (online(_TILE, of_o=lambda step: step.alpha**2), RESCALE),
    "o rescaled after the product": (
        online(_TILE, of_o=lambda step: 1.0 + 0.0 * step.alpha, kept=_after),
        RESCALE,
    ),
    "l rescaled after the sum": (
        online(
            _TILE,
            adds=lambda step, sums: sums * torch.where(step.alpha == 0, 1.0, step.alpha),
        ),
        f"l not rescaled|l rescaled|l accumulated|{DIVISOR}",
    ),
    "tiles with their own maxima": (_maximum_of_tile, f"rescaled|{RESCALE}|{MERGE}"),
    "two lanes added without their maxima": (
        lambda w: _lanes(w, lambda i, f: (torch.ones_like(f), torch.ones_like(f)), 2),
        f"{MERGE}|{RESCALE}|o and l",
    ),
    "sums of four lanes added without their maxima": (
        lambda w: _lanes(w, lambda i, f: (torch.ones_like(f), f), 4),
        f"{MERGE}|{_PER_ROW}|l not",
    ),
    "one of four lanes missing in l": (
        lambda w: _sum_of(w, (keys_of(w) % 8 // 2 != 3).double()),
        FACTOR,
    ),
    "the last tile missing in l": (_sum_without_last_tile, FACTOR),
    "the keys of one warp missing in o": (
        lambda w: _output_of(w, (keys_of(w) // 16 % 4 != 1).double()),
        "V read as 0|V read some|V without|V by a factor",
    ),
    "columns past the end in l": (_tail_of_zeros, "padding|past the end|denominator with"),
    "the sum of the row beside it": (_neighbours_sum, _PER_ROW),
    "P with the maximum of the row beside it": (
        _neighbours_maximum,
        f"{FACTOR}|o rescaled",
    ),
    "o not cleared between heads": (
        lambda w: _not_cleared(w, of_o=True),
        "the output of|another row|not cleared|uninitialised|out with",
    ),
    "l not cleared between heads": (lambda w: _not_cleared(w, of_o=False), FACTOR),
    "one step of 16 channels left out": (scored(lambda w: _without_step(w, 0.0)), "channel"),
    "one step of 16 channels done twice": (scored(lambda w: _without_step(w, 2.0)), "channel"),
    "the last tile done twice": (_tile_twice, f"{TWICE}|keys by a factor|weights of keys"),
    "exponents no smaller than -4": (_clamped_exponents, "exponents clamped|scores clamped"),
}
"""Name: the bug, and a pattern that a right name for it matches."""
