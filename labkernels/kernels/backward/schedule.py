"""How a backward pass is cut into blocks, and in which order they start."""

import functools
from dataclasses import dataclass, field

import numpy as np
import torch

from labkernels.kernels.backward.kernel import ROW_PADDING, BackwardTile
from labkernels.kernels.packed_gqa.schedule import Lengths
from labkernels.variant import AttentionVariant

# Bytes per row that the blocks of a head share: of each channel of q, with dq_accum in fp32, and of
# dout.
Q_BYTES, DOUT_BYTES = 2 + 4, 2
# The share of the L2 cache for the rows of heads whose blocks start together. Each of the cache's
# two partitions may hold a copy of a row, and K, V and the gradients pass through the cache too.
L2_SHARE = 0.25
# A block with at most this fraction of the steps of the longest block starts last, whatever its
# head, so that the multiprocessors finish together.
SHORT_PART = 1 / 6
# Where the next launch takes the multiprocessors that are done (wgmma/overlap.py), a block with
# fewer steps than these does not start last.
SHORTEST_OF_OVERLAP = 8


KEPT = 64  # schedules that are kept, one for each set of lengths


@dataclass(frozen=True, eq=False)
class BackwardSchedule:
    """The blocks of each launch in launch order: int32 [blocks, 4], the fields of BackwardWork.

    keys: [request, key tile, KV head, 0]; rows: [request, row tile, query head, 0], of tile.q_rows;
    padded: as rows, of ROW_PADDING rows. padded_rows: of the workspace.
    """

    keys: np.ndarray
    rows: np.ndarray
    padded: np.ndarray
    padded_rows: int
    _copies: dict[tuple[int, torch.device], tuple[torch.Tensor, np.ndarray]] = field(
        default_factory=dict
    )

    def on(self, device: torch.device, work: np.ndarray) -> torch.Tensor:
        """Return a list on the kernels' device, to which it is copied once."""
        place = (id(work), device)  # the list is kept too, so that no other one takes its id
        if place not in self._copies:
            self._copies[place] = torch.from_numpy(work).to(device), work
        return self._copies[place][0]


def schedule(lengths: Lengths, tile: BackwardTile, **how) -> BackwardSchedule:
    """Cut a backward pass into blocks; see `_schedule`. The latest schedules are kept."""
    return _schedule(lengths.q.tobytes(), lengths.kv.tobytes(), tile, **how)


@functools.lru_cache(maxsize=KEPT)
def _schedule(
    q_lens: bytes,
    kv_lens: bytes,
    tile: BackwardTile,
    *,
    kv_heads: int,
    group: int,
    head_dims: tuple[int, int],
    variant: AttentionVariant,
    l2_bytes: int,
    last_keys_first: bool = False,
    overlaps: bool = False,
) -> BackwardSchedule:
    """Cut a backward pass into blocks.

    Among heads whose rows fit a share of the L2 cache together, blocks with the most steps start
    first; the short blocks of all heads start last. If a kernel's blocks wait for the blocks of
    later keys, the blocks of the last keys start first instead. head_dims: of q and of v. overlaps:
    whether the next launch takes the multiprocessors that are done.
    """
    lengths = Lengths(*(np.frombuffer(x, dtype=np.int64) for x in (q_lens, kv_lens)))
    row_bytes = head_dims[0] * Q_BYTES + head_dims[1] * DOUT_BYTES
    head_bytes = lengths.q * group * row_bytes
    steps = steps_of_keys(lengths, tile, variant)
    section_bytes = int(L2_SHARE * l2_bytes)
    shortest = SHORTEST_OF_OVERLAP if overlaps else 0
    how = {"last_first": last_keys_first, "shortest": shortest}
    keys = _blocks(steps, kv_heads, head_bytes, section_bytes, **how)
    steps = _steps_of_rows(lengths, tile, variant)
    rows = _blocks(steps, kv_heads * group, head_bytes // group, section_bytes)
    even = [np.ones(n, np.int64) for n in -(-lengths.q // ROW_PADDING)]
    padded = _blocks(even, kv_heads * group, head_bytes, 0)
    return BackwardSchedule(keys, rows, padded, padded_rows(lengths))


def padded_rows(lengths: Lengths) -> int:
    """Return rows of the workspace, in which each request begins at a multiple of ROW_PADDING."""
    total = int(lengths.q.sum()) + ROW_PADDING * len(lengths.q)
    return total // ROW_PADDING * ROW_PADDING


def steps_of_keys(
    lengths: Lengths, tile: BackwardTile, variant: AttentionVariant
) -> list[np.ndarray]:
    """Return the row tiles of a head that see each key tile, for each request."""
    found, right = [], 0 if variant.causal else variant.window_right
    for q_len, kv_len in zip(lengths.q, lengths.kv, strict=True):
        first_key, past = np.arange(-(-kv_len // tile.keys)) * tile.keys, kv_len - q_len
        first_row, end_row = 0 * first_key, q_len + 0 * first_key
        if right is not None:
            first_row = np.clip(first_key - past - right, 0, q_len)
        if variant.window_left is not None:
            end = np.minimum(first_key + tile.keys, kv_len) - past + variant.window_left
            end_row = np.clip(end, 0, q_len)
        steps = -(-end_row // tile.q_rows) - first_row // tile.q_rows
        found.append(np.where(first_row < end_row, steps, 0))
    return found


def _steps_of_rows(
    lengths: Lengths, tile: BackwardTile, variant: AttentionVariant
) -> list[np.ndarray]:
    """Return the key tiles that each row tile sees, for each request."""
    found = []
    for q_len, kv_len in zip(lengths.q, lengths.kv, strict=True):
        first_row = np.arange(-(-q_len // tile.q_rows)) * tile.q_rows
        end = variant.end(np.minimum(first_row + tile.q_rows, q_len) - 1, q_len, kv_len)
        begin = variant.begin(first_row, q_len, kv_len)
        found.append(np.clip(-(-end // tile.keys) - begin // tile.keys, 0, None))
    return found


def _blocks(
    steps: list[np.ndarray],
    heads: int,
    head_bytes: np.ndarray,
    section_bytes: int,
    last_first: bool = False,
    shortest: int = 0,
) -> np.ndarray:
    """Return the tiles of all heads, one section of heads after another, most steps first.

    The short tiles, of `shortest` steps at least, form a separate, last section. last_first: the
    last tiles of each section come first instead.
    """
    tiles = np.array([len(each) for each in steps])
    unit = np.repeat(np.arange(len(steps) * heads), np.repeat(tiles, heads))  # a request's head
    request, head = unit // heads, unit % heads
    first = np.cumsum(np.repeat(tiles, heads)) - np.repeat(tiles, heads)
    tile = np.arange(len(unit)) - first[unit]
    count = np.concatenate([np.tile(each, heads) for each in steps]) if len(unit) else unit
    before = np.cumsum(np.repeat(head_bytes, heads)) - np.repeat(head_bytes, heads)
    section = (before // max(1, section_bytes))[unit]
    if not last_first:
        short = (count >= shortest) & (count <= SHORT_PART * count.max(initial=0))
        section[short] = section.max(initial=0) + 1
    order = np.lexsort((tile, head, request, -tile if last_first else -count, section))
    work = np.stack([request, tile, head, 0 * tile], axis=1)[order]
    return np.ascontiguousarray(work, dtype=np.int32)
