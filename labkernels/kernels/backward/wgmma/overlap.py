"""What the launches of backward_wgmma do for each other's heads, so that they overlap.

Blocks start in the order of their list. What a block awaits is done by blocks that started before
it, so that no block waits for one that cannot start.
"""

from dataclasses import dataclass

import numpy as np

from labkernels.kernels.backward.kernel import ROW_PADDING, BackwardTile
from labkernels.kernels.backward.schedule import BackwardSchedule, steps_of_keys
from labkernels.kernels.packed_gqa.schedule import Lengths

# So many times the blocks that run together lie between a block that clears dq_accum and the first
# block that adds there: then the latter does not wait.
AHEAD = 1.25
AWAITS = 3  # a column: the field of BackwardWork


@dataclass(frozen=True, eq=False)
class Overlap:
    """The blocks of each launch, and the tiles for which the blocks of keys clear dq_accum.

    Shapes: int32 [n, 4], the fields of BackwardWork; first_cleared [blocks of keys + 1]. A block
    of keys awaits cleared tiles, a block of `after` the blocks of keys; in `before`, a tile that
    awaits is cleared by others.
    """

    before: np.ndarray
    keys: np.ndarray
    after: np.ndarray
    cleared: np.ndarray
    first_cleared: np.ndarray


def no_overlap(made: BackwardSchedule) -> Overlap:
    """Return lists by which each launch does what its kernel is there for, and no more."""
    none = np.zeros((0, 4), np.int32)
    return Overlap(made.padded, made.keys, made.padded, none, np.zeros(1, np.int32))


def overlap(
    made: BackwardSchedule,
    lengths: Lengths,
    tile: BackwardTile,
    *,
    kv_heads: int,
    group: int,
    causal: bool,
    adders: int,
    together: int,
) -> Overlap:
    """Return lists of launches that overlap.

    adders: counts per block of keys. together: blocks that run at the same time.
    """
    keys, padded = made.keys.copy(), made.padded
    heads = len(lengths.q) * kv_heads
    head_of_block = keys[:, 0] * kv_heads + keys[:, 2]
    head_of_tile = padded[:, 0] * kv_heads + padded[:, 2] // group
    blocks, tiles = (np.bincount(each, minlength=heads) for each in (head_of_block, head_of_tile))

    first = np.full(heads, len(keys))
    np.minimum.at(first, head_of_block, np.arange(len(keys)))
    taken, at = _cleared(first, tiles, _room(keys, lengths, tile, causal, len(padded)), together)
    keys[:, AWAITS] = np.where(taken, tiles, 0)[head_of_block]
    before, after = padded.copy(), padded.copy()
    before[:, AWAITS] = taken[head_of_tile]
    after[:, AWAITS] = adders * blocks[head_of_tile]
    # the heads whose blocks end first come first
    last = np.zeros(heads, np.int64)
    np.maximum.at(last, head_of_block, np.arange(len(keys)))
    after = after[np.argsort(last[head_of_tile], kind="stable")]
    mine = taken[head_of_tile]
    cleared = padded[mine][np.argsort(first[head_of_tile[mine]], kind="stable")]
    first_cleared = np.searchsorted(at, np.arange(len(keys) + 1)).astype(np.int32)
    return Overlap(*map(np.ascontiguousarray, (before, keys, after, cleared, first_cleared)))


def _room(
    keys: np.ndarray, lengths: Lengths, tile: BackwardTile, causal: bool, tiles: int
) -> np.ndarray:
    """Return how many tiles the blocks up to each one clear, in proportion to their steps."""
    if not len(keys):
        return np.zeros(0)
    first_tile = np.cumsum(-(-lengths.kv // tile.keys)) - -(-lengths.kv // tile.keys)
    steps = np.concatenate(steps_of_keys(lengths, tile, causal))[first_tile[keys[:, 0]] + keys[:, 1]]
    return np.cumsum(steps) * (tiles / max(1, steps.sum()))


def _cleared(
    first: np.ndarray, tiles: np.ndarray, room: np.ndarray, together: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the heads for which blocks clear dq_accum, and which block clears each of their tiles.

    Earlier heads come first, each a while before its first block.
    """
    ahead, n, at = 1 + int(AHEAD * together), 0, []
    taken = np.zeros(len(first), bool)
    for head in np.argsort(first, kind="stable"):
        by = np.searchsorted(room, np.arange(n + 1, n + tiles[head] + 1))
        if tiles[head] and first[head] < len(room) and by[-1] + ahead <= first[head]:
            taken[head] = True
            at.append(by)
            n += tiles[head]
    return taken, np.concatenate(at) if at else np.zeros(0, np.int64)
