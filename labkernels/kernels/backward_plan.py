"""How a backward pass is cut into blocks, and in which order they start."""

from dataclasses import dataclass

import numpy as np

from labkernels.kernels.prefill_plan import Lengths
from labkernels.kernels.spec import BackwardTile

ROW_PADDING = 128  # lab::row_padding
# Bytes of a row and channel that the blocks of a head share: q, dout, and dq_accum in fp32.
SHARED_BYTES = 2 + 2 + 4
# Blocks of at most this part of the longest one's steps start last of all, whatever their head: the
# multiprocessors then finish together.
SHORT_PART = 1 / 6


@dataclass(frozen=True)
class BackwardCut:
    """The blocks of each launch in launch order: int32 [blocks, 4], the fields of BackwardWork.

    keys: [request, key tile, KV head, 0]; rows: [request, row tile, query head, 0], of tile.q_rows;
    padded: as rows, of ROW_PADDING rows. padded_rows: of the workspace.
    """

    keys: np.ndarray
    rows: np.ndarray
    padded: np.ndarray
    padded_rows: int


def cut(
    lengths: Lengths,
    tile: BackwardTile,
    *,
    kv_heads: int,
    group: int,
    head_dim: int,
    causal: bool,
    l2_bytes: int,
    last_keys_first: bool = False,
) -> BackwardCut:
    """Cut a backward pass into blocks.

    Blocks of many steps start first, among the heads whose rows share half the L2 cache, and the
    short ones of all heads last; or those of the last keys, for a kernel whose blocks wait for
    those with later keys.
    """
    head_bytes = lengths.q * group * head_dim * SHARED_BYTES
    steps = _steps_of_keys(lengths, tile, causal)
    keys = _blocks(steps, kv_heads, head_bytes, l2_bytes // 2, last_first=last_keys_first)
    steps = _steps_of_rows(lengths, tile, causal)
    rows = _blocks(steps, kv_heads * group, head_bytes // group, l2_bytes // 2)
    even = [np.ones(n, np.int64) for n in -(-lengths.q // ROW_PADDING)]
    padded = _blocks(even, kv_heads * group, head_bytes, 0)
    return BackwardCut(keys, rows, padded, padded_rows(lengths))


def padded_rows(lengths: Lengths) -> int:
    """Rows of the workspace, in which each request begins at a multiple of ROW_PADDING."""
    total = int(lengths.q.sum()) + ROW_PADDING * len(lengths.q)
    return total // ROW_PADDING * ROW_PADDING


def _steps_of_keys(lengths: Lengths, tile: BackwardTile, causal: bool) -> list[np.ndarray]:
    """Row tiles of a head that see each key tile, for each request."""
    found = []
    for q_len, kv_len in zip(lengths.q, lengths.kv, strict=True):
        first_key = np.arange(-(-kv_len // tile.keys)) * tile.keys
        first_row = np.clip(first_key - (kv_len - q_len), 0, None) if causal else 0 * first_key
        found.append(-(-q_len // tile.q_rows) - np.minimum(first_row, q_len) // tile.q_rows)
    return found


def _steps_of_rows(lengths: Lengths, tile: BackwardTile, causal: bool) -> list[np.ndarray]:
    """Key tiles that each row tile sees, for each request."""
    found = []
    for q_len, kv_len in zip(lengths.q, lengths.kv, strict=True):
        last_row = (np.arange(-(-q_len // tile.q_rows)) + 1) * tile.q_rows - 1
        limit = np.minimum(last_row, q_len - 1) + 1 + kv_len - q_len
        keys = np.clip(limit, 0, kv_len) if causal else np.full(len(last_row), kv_len)
        found.append(-(-keys // tile.keys))
    return found


def _blocks(
    steps: list[np.ndarray],
    heads: int,
    head_bytes: np.ndarray,
    section_bytes: int,
    last_first: bool = False,
) -> np.ndarray:
    """Every tile of every head, section by section of heads, those of most steps first in each.

    The short ones are a section of their own, the last. last_first: the last tiles come first
    instead.
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
        section[count <= SHORT_PART * count.max(initial=0)] = section.max(initial=0) + 1
    order = np.lexsort((tile, head, request, -tile if last_first else -count, section))
    work = np.stack([request, tile, head, 0 * tile], axis=1)[order]
    return np.ascontiguousarray(work, dtype=np.int32)
