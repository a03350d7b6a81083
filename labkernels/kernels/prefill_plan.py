"""How a prefill is cut into blocks, and in which order they start: from lengths and shapes."""

import math
from dataclasses import dataclass

import numpy as np

from labkernels.kernels.spec import PrefillTile

MAX_SPLITS = 65_535
MIN_KEYS_PER_SPLIT = 256  # below it a split costs more than the idle SMs


@dataclass(frozen=True)
class Lengths:
    """Query tokens and keys of each request: int64 [batch]."""

    q: np.ndarray
    kv: np.ndarray


@dataclass(frozen=True)
class Cut:
    """The blocks of a prefill in launch order: int32 [blocks, 4], the fields of lab::PrefillWork.

    tickets: how many a merge of splits needs.
    """

    work: np.ndarray
    keys_per_split: int
    splits: int
    tickets: int


def cut(
    lengths: Lengths,
    tile: PrefillTile,
    *,
    kv_heads: int,
    group: int,
    sm_count: int,
    causal: bool,
    splits: int | None = None,
    keys_per_split: int | None = None,
) -> Cut:
    """Cut a prefill into blocks. Splits are of keys_per_split keys, or that many, or chosen.

    Raises: ValueError if keys_per_split makes more splits than partial States are made for.
    """
    rows = lengths.q * group
    tiles = -(-rows // tile.q_rows)
    request = np.repeat(np.arange(len(rows)), tiles)
    q_tile = np.arange(len(request)) - np.repeat(np.cumsum(tiles) - tiles, tiles)
    visible = visible_keys(lengths, request, (q_tile + 1) * tile.q_rows - 1, group, causal)
    longest = int(visible.max(initial=0))
    if keys_per_split is None:
        if splits is None:
            splits = _balanced_splits(visible, kv_heads, sm_count)
        keys_per_split = max(1, math.ceil(longest / splits / tile.keys)) * tile.keys
    splits = max(1, math.ceil(longest / keys_per_split))
    if splits > MAX_SPLITS:
        raise ValueError(
            f"keys_per_split = {keys_per_split}, allowed: at least"
            f" {math.ceil(longest / MAX_SPLITS)} for {longest} keys, which is {MAX_SPLITS} splits"
        )
    work, steps = _blocks(request, q_tile, visible, keys_per_split, tile.keys, kv_heads)
    order = _launch_order(work, steps)
    tickets = (int(rows.sum()) // tile.q_rows + len(rows)) * kv_heads
    return Cut(work[order], keys_per_split, splits, tickets)


def visible_keys(lengths: Lengths, request, row, group: int, causal: bool) -> np.ndarray:
    """Keys that a packed row of a request sees; a row past the end counts as the last."""
    n, keys = lengths.q[request], lengths.kv[request]
    if not causal:
        return keys
    token = np.minimum(row // group, n - 1)
    return np.clip(keys - n + token + 1, 0, keys)


def _balanced_splits(visible: np.ndarray, kv_heads: int, sm_count: int) -> int:
    """Splits that make the longest block no longer than an SM's share of all keys."""
    longest, share = int(visible.max(initial=0)), int(visible.sum()) * kv_heads / sm_count
    if longest == 0:
        return 1
    return max(1, min(int(longest // share), longest // MIN_KEYS_PER_SPLIT))


def _blocks(
    request: np.ndarray,
    q_tile: np.ndarray,
    visible: np.ndarray,
    keys_per_split: int,
    step_keys: int,
    kv_heads: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Every block as [request, q_tile, kv_head, split], and the steps that it takes."""
    live = np.maximum(1, -(-visible // keys_per_split)) * kv_heads
    unit = np.repeat(np.arange(len(request)), live)
    number = np.arange(len(unit)) - np.repeat(np.cumsum(live) - live, live)
    split, kv_head = number // kv_heads, number % kv_heads
    keys = np.minimum(visible[unit] - split * keys_per_split, keys_per_split)
    work = np.stack([request[unit], q_tile[unit], kv_head, split], axis=1).astype(np.int32)
    return work, -(-keys // step_keys)


def _launch_order(work: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """The blocks of most steps first, so that short ones fill the gaps at the end.

    Of equal ones, those that read the same K and V side by side: they share the L2 cache.
    """
    request, q_tile, kv_head, split = work.T
    return np.lexsort((q_tile, split, kv_head, request, -steps))
