"""What the launches of backward_wgmma do for each other's heads, so that they overlap.

Blocks start in the order of their list. A block waits only for what blocks do that started before
it, so that no block waits for one that cannot start.
"""

from dataclasses import dataclass

import numpy as np

from labkernels.kernels.backward.kernel import BackwardTile
from labkernels.kernels.backward.schedule import BackwardSchedule, steps_of_keys
from labkernels.kernels.packed_gqa.schedule import Lengths
from labkernels.variant import AttentionVariant

# Between a block that clears dq_accum and the first block that adds there lie so many times the
# blocks that run together: then the latter hardly waits.
AHEAD = 1.25
COUNTS_PER_HEAD = 2  # of a KV head of a request: tiles that are cleared, threads that have added
AWAITS = 3  # this column of a list is what a block awaits


@dataclass(frozen=True, eq=False)
class Overlap:
    """The blocks of each launch, and the tiles of dq_accum that blocks of keys clear.

    Shapes: int32 [n, 4], the fields of BackwardWork; first_cleared int32 [blocks of keys + 1].
    before: a tile that awaits 1 is cleared by blocks of keys. keys: a block awaits the cleared
    tiles of its head. after: a tile awaits the additions to its head. cleared: block i clears the
    tiles from first_cleared[i] to first_cleared[i + 1].
    """

    before: np.ndarray
    keys: np.ndarray
    after: np.ndarray
    cleared: np.ndarray
    first_cleared: np.ndarray


def separate(made: BackwardSchedule) -> Overlap:
    """Return lists of launches that do not overlap."""
    none = np.zeros((0, 4), np.int32)
    return Overlap(made.padded, made.keys, made.padded, none, np.zeros(1, np.int32))


def overlap(
    made: BackwardSchedule,
    lengths: Lengths,
    tile: BackwardTile,
    *,
    kv_heads: int,
    group: int,
    variant: AttentionVariant,
    adders: int,
    together: int,
) -> Overlap:
    """Return lists of launches that overlap.

    adders: threads of a block that say that they have added. together: blocks that run together.
    """
    keys, padded = made.keys.copy(), made.padded
    head_of_block = keys[:, 0] * kv_heads + keys[:, 2]
    head_of_tile = padded[:, 0] * kv_heads + padded[:, 2] // group
    heads, places = len(lengths.q) * kv_heads, np.arange(len(keys))
    first, last = np.full(heads, len(keys)), np.zeros(heads, np.int64)  # block of each head
    np.minimum.at(first, head_of_block, places)
    np.maximum.at(last, head_of_block, places)
    blocks, tiles = (np.bincount(each, minlength=heads) for each in (head_of_block, head_of_tile))

    room = _room(keys, lengths, tile, variant, len(padded))
    clears, clearing_block = _clearing(first, tiles, room, ahead=1 + int(AHEAD * together))
    keys[:, AWAITS] = np.where(clears, tiles, 0)[head_of_block]
    before, after = padded.copy(), padded.copy()
    before[:, AWAITS] = clears[head_of_tile]
    after[:, AWAITS] = adders * blocks[head_of_tile]
    after = after[np.argsort(last[head_of_tile], kind="stable")]  # as the heads end
    of_cleared = np.flatnonzero(clears[head_of_tile])
    of_cleared = of_cleared[np.argsort(first[head_of_tile[of_cleared]], kind="stable")]
    first_cleared = np.searchsorted(clearing_block, np.arange(len(keys) + 1)).astype(np.int32)
    return Overlap(before, keys, np.ascontiguousarray(after), padded[of_cleared], first_cleared)


def _room(
    keys: np.ndarray, lengths: Lengths, tile: BackwardTile, variant: AttentionVariant, tiles: int
) -> np.ndarray:
    """Return how many tiles the blocks up to each one may clear: as many per step everywhere."""
    if not len(keys):
        return np.zeros(0)
    of_request = -(-lengths.kv // tile.keys)
    place = (np.cumsum(of_request) - of_request)[keys[:, 0]] + keys[:, 1]
    steps = np.concatenate(steps_of_keys(lengths, tile, variant))[place]
    return np.cumsum(steps) * (tiles / max(1, steps.sum()))


def _clearing(
    first: np.ndarray, tiles: np.ndarray, room: np.ndarray, ahead: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return for which heads blocks of keys clear dq_accum, and which block clears each tile.

    Heads come in the order of their first blocks. A head is left to the launch before if its tiles
    would not be cleared `ahead` blocks before its first block.
    """
    clears, blocks, n = np.zeros(len(first), bool), [np.zeros(0, np.int64)], 0
    for head in np.argsort(first, kind="stable"):
        if tiles[head] == 0 or first[head] == len(room):
            continue
        of_tiles = np.searchsorted(room, np.arange(n, n + tiles[head]) + 1)
        if of_tiles[-1] + ahead <= first[head]:
            clears[head] = True
            blocks.append(of_tiles)
            n += tiles[head]
    return clears, np.concatenate(blocks)
