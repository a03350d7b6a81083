"""Bugs of a loop over tiles: stages, barriers, running maxima, sums, fragments in shared memory."""

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.eleventh.parts import (
    CHANNELS,
    DENOMINATOR,
    K_ALONE,
    LOST,
    RESCALE,
    V_ALONE,
    V_LAYOUT,
    V_MISSING,
    Tile,
    from_cache,
    in_whole,
    looped,
    weighed,
)
from labkernels.measure.strangers.wrong import Work, keys_of, masked, right_output, scored


def _last(tile: Tile) -> bool:
    return tile.number == tile.count - 1


def _no_last_sum(tile: Tile, w: Work):
    if _last(tile) and tile.number:
        tile.sum = 0.0


def _stale_v(tile: Tile, w: Work):
    """The last tile's product reads the V of the tile before."""
    if _last(tile) and tile.number:
        first = tile.keys.start - (tile.keys.stop - tile.keys.start)
        tile.v = w.v[:, :, first : first + tile.v.shape[2]]


def _with_stale_k(w: Work, size: int = 16):
    """Every fourth tile of K, from the fifth on, is the one four tiles before."""
    j = keys_of(w)
    number = j // size
    stale = (number % 4 == 0) & (number > 0)
    return w.scores(k=w.k[:, :, torch.where(stale, j - 4 * size, j)])


def _other_p(tile: Tile, w: Work):
    """Odd tiles multiply their V with the weights of the tile before."""
    if tile.number % 2 and tile.p.shape[-1] == tile.kept["p"].shape[-1]:
        tile.p = tile.kept["p"]
    else:
        tile.kept["p"] = tile.p


def _odd_o_kept(tile: Tile, w: Work):
    if tile.number % 2:
        tile.of_o = torch.ones_like(tile.of_o).where(tile.before > -torch.inf, 0.0)


def _factor_of_next_row(tile: Tile, w: Work):
    """o of even rows is rescaled by the factor of the row behind."""
    rows = torch.arange(tile.of_o.shape[2])
    tile.of_o = tile.of_o[:, :, (rows | 1).clamp(max=len(rows) - 1)]


def _l_late(tile: Tile, o, l):
    """l is rescaled after the tile was added to it, from the second tile on."""
    if not tile.number:
        return o, l
    return o, l - tile.sum + tile.sum * tile.of_l


def _power_of_two(tile: Tile, w: Work):
    factor = tile.of_o.clamp(min=1e-300)
    tile.of_o = torch.where(tile.of_o > 0, torch.exp2(torch.floor(torch.log2(factor))), 0.0)


def _small_moves(tile: Tile, w: Work):
    """o and l keep their scale where the maximum moves by less than 2."""
    small = (tile.m - tile.before < 2) & (tile.before > -torch.inf)
    tile.of_o, tile.of_l = (torch.where(small, 1.0, x) for x in (tile.of_o, tile.of_l))


def _large_moves_of_l(tile: Tile, w: Work):
    """l keeps its scale where the maximum moves far."""
    far = (tile.m - tile.before > 0.7) & (tile.before > -torch.inf)
    tile.of_l = torch.where(far, 1.0, tile.of_l)


def _half_of_rows(w: Work):
    """Rows 8 to 15 of 16, counted over heads and queries, do not see the last tile of 32 keys."""
    row = torch.arange(w.s.shape[1])[:, None] * w.s.shape[2] + torch.arange(w.s.shape[2])
    n = w.s.shape[-1]
    first = max(1, (n - 1) // 32 * 32)
    return masked(w.s, (row % 16 >= 8)[..., None] & (keys_of(w) >= first))


def _middle(w: Work, size: int = 32):
    n = w.s.shape[-1]
    middle = max(0, (n + size - 1) // size // 2)
    return (keys_of(w) // size == middle) if n > size else keys_of(w) == 0


def _swizzled(w: Work, x, mask: int = 7):
    """Chunks of 8 channels stand at their number, xor that of the row, and are read without it."""
    chunks = x.shape[3] // 8
    power = 2 ** (chunks.bit_length() - 1)
    number = torch.arange(power) ^ (keys_of(w)[:, None] % (mask + 1)) % power
    index = (number[..., None] * 8 + torch.arange(8)).flatten(1)
    head, tail = x[..., : power * 8], x[..., power * 8 :]
    return torch.cat([torch.take_along_dim(head, index[None, None], 3), tail], 3)


def _blocks_transposed(w: Work, x):
    """Blocks of 8 by 8 of keys and channels are transposed."""

    def block(x):
        return x.unflatten(-1, (-1, 8)).transpose(-1, -3).flatten(-2)

    return in_whole(x, 8, block)


def _elements_of_next_head(w: Work):
    """One element in 70 is that of the head behind, which another warp stored first."""
    out = right_output(w)
    late = torch.rand(out.shape, generator=torch.Generator().manual_seed(3)) < 1 / 70
    return torch.where(late, out.roll(-1, 1), out)


def _cleared_late(tile: Tile, w: Work):
    """o is cleared again before the third tile, l is not."""
    if tile.number == 2:
        tile.of_o = torch.zeros_like(tile.of_o)


WRONG: dict[str, tuple[Bug, str]] = {
    "V of the last tile read a stage early": (looped(32, _stale_v), V_ALONE),
    "a ring of four stages read a round late for K": (scored(_with_stale_k), K_ALONE),
    "weights of the tile before for odd tiles": (looped(24, _other_p), "another tile"),
    "o rescaled in even tiles alone": (looped(32, _odd_o_kept), RESCALE),
    "o rescaled by the factor of the row behind": (looped(16, _factor_of_next_row), RESCALE),
    "l rescaled after its tile": (looped(32, after=_l_late), f"l rescaled|l not|{DENOMINATOR}"),
    "o's factor as a power of two": (looped(32, _power_of_two), RESCALE),
    "no factor for moves below 2, of both sums": (
        looped(16, _small_moves),
        "small moves|o and l|not rescaled",
    ),
    "l keeps its scale in large moves": (
        looped(16, _large_moves_of_l),
        f"l not rescaled|l rescaled|{DENOMINATOR}",
    ),
    "half of the rows leave before the last tile": (scored(_half_of_rows), LOST),
    "the middle tile's product added twice": (
        weighed(lambda w, p, l: (torch.where(_middle(w), 2 * p, p), l)),
        "V counted twice|denominator with keys",
    ),
    "l without the last tile": (looped(32, _no_last_sum), f"keys missing in|{DENOMINATOR}"),
    "V's swizzle left out by the reader": (from_cache(v=_swizzled), f"{V_LAYOUT}|{CHANNELS}"),
    "V's blocks of 8 by 8 loaded without a transpose": (
        from_cache(v=_blocks_transposed),
        f"{V_LAYOUT}|{CHANNELS}|P transposed",
    ),
    "elements of the next head, stored without a barrier": (
        _elements_of_next_head,
        "sparse outliers|elements never written|another row",
    ),
    "o cleared again before the third tile": (looped(24, _cleared_late), V_MISSING),
}
"""Name: the bug, and a pattern that a right name for it matches."""
