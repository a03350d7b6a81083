"""How a prefill is cut into blocks, and in which order they start: from lengths and shapes."""

import math
from dataclasses import dataclass

import numpy as np

from labkernels.kernels.spec import PrefillTile

MAX_SPLITS = 65_535
MIN_KEYS_PER_SPLIT = 256  # below it a split costs more than the idle SMs
# Blocks of one KV head share its K and V in the L2 cache as long as those of the heads at work fit
# in this part of it, beside Q and the output: so the heads are taken in sections. The heaviest
# blocks of a section start first; of the last section, which is rounds long, light ones are left
# to fill the gaps at the end.
L2_PART = 0.5
ROUNDS = 2


@dataclass(frozen=True)
class Lengths:
    """Query tokens and keys of each request: int64 [batch]."""

    q: np.ndarray
    kv: np.ndarray


@dataclass(frozen=True)
class Heads:
    """KV heads, the query heads that share one, and the bytes of a key and its value in one."""

    kv: int
    group: int
    key_bytes: int


@dataclass(frozen=True)
class Room:
    """What a GPU offers a launch: SMs, blocks at once, bytes of L2 cache."""

    sm_count: int
    slots: int
    l2_bytes: int


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
    heads: Heads,
    tile: PrefillTile,
    room: Room,
    *,
    causal: bool,
    splits: int | None = None,
    keys_per_split: int | None = None,
) -> Cut:
    """Cut a prefill into blocks. Splits are of keys_per_split keys, or that many, or chosen.

    Raises: ValueError if keys_per_split makes more splits than partial States are made for.
    """
    rows = lengths.q * heads.group
    tiles = -(-rows // tile.q_rows)
    request = np.repeat(np.arange(len(rows)), tiles)
    q_tile = np.arange(len(request)) - np.repeat(np.cumsum(tiles) - tiles, tiles)
    visible = visible_keys(lengths, request, (q_tile + 1) * tile.q_rows - 1, heads.group, causal)
    longest = int(visible.max(initial=0))
    if keys_per_split is None:
        if splits is None:
            splits = _balanced_splits(visible, heads.kv, room.sm_count)
        keys_per_split = max(1, math.ceil(longest / splits / tile.keys)) * tile.keys
    splits = max(1, math.ceil(longest / keys_per_split))
    if splits > MAX_SPLITS:
        raise ValueError(
            f"keys_per_split = {keys_per_split}, allowed: at least"
            f" {math.ceil(longest / MAX_SPLITS)} for {longest} keys, which is {MAX_SPLITS} splits"
        )
    work, steps = _blocks(request, q_tile, visible, keys_per_split, tile.keys, heads.kv)
    order = _launch_order(work, steps, lengths.kv * heads.key_bytes, heads.kv, room)
    tickets = (int(rows.sum()) // tile.q_rows + len(rows)) * heads.kv
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


def _launch_order(
    work: np.ndarray, steps: np.ndarray, kv_bytes: np.ndarray, kv_heads: int, room: Room
) -> np.ndarray:
    """Section by section of KV heads, in each the blocks of most steps first."""
    request, q_tile, kv_head, split = work.T.astype(np.int64)
    head = request * kv_heads + kv_head
    n_heads = len(kv_bytes) * kv_heads
    work_of = np.bincount(head, weights=steps, minlength=n_heads)
    most_of = np.zeros(n_heads, np.int64)
    np.maximum.at(most_of, head, steps)
    section = _sections(work_of, most_of, np.repeat(kv_bytes, kv_heads), room)[head]
    return np.lexsort((split, q_tile, head, -steps, section))


def _sections(
    work_of: np.ndarray, most_of: np.ndarray, bytes_of: np.ndarray, room: Room
) -> np.ndarray:
    """The section of each KV head of each request, those with the longest blocks first."""
    section = np.zeros(len(work_of), np.int64)
    number, kv_bytes, left = 0, 0, float(work_of.sum())
    for head in np.lexsort((np.arange(len(most_of)), -most_of)):
        section[head] = number
        kv_bytes, left = kv_bytes + bytes_of[head], left - work_of[head]
        full = kv_bytes >= L2_PART * room.l2_bytes
        if full and left >= ROUNDS * room.slots * most_of[head]:
            number, kv_bytes = number + 1, 0
    return section
