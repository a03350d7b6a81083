"""How a prefill or MLA decode is cut into blocks, and in which order the blocks start."""

import functools
import math
from dataclasses import dataclass, field

import numpy as np
import torch

from labkernels.kernels.checks import MAX_SPLITS
from labkernels.kernels.packed_gqa.tile import PrefillTile
from labkernels.kernels.workload import Tokens
from labkernels.variant import AttentionVariant

# The numbers of splits that are tried; from 4 on, each is up to a quarter more than the last.
SPLITS = (1, 2, 3, *(step << octave for octave in range(7) for step in (4, 5, 6, 7)))
# A split costs as much time as some more keys: these to start its block, and two per row for its
# partial State, whose o is written and read in fp32, whereas K and V of a key are read once in 16
# bits. A split must have more keys than its cost.
KEYS_TO_START = 64
MIN_KEYS_PER_SPLIT = 256
MIN_KEYS_PER_ROW = 4
MAX_CACHED_KEYS = 2**62
# A block is short if this many times its steps are at most those of all splits of the longest tile.
SHORT = 3
SHORT_AT_END = 2  # short blocks per slot that wait for the end
GOOD_ENOUGH = 1.1  # the fewest splits within this factor of the shortest expected time are taken


KEPT = 64  # schedules that are kept, one for each set of lengths


@dataclass(frozen=True)
class Lengths:
    """Query tokens and keys of each request: int64 [batch]."""

    q: np.ndarray
    kv: np.ndarray


@dataclass(frozen=True, eq=False)
class Schedule:
    """The blocks in launch order: int32 [blocks, 4], the fields of the kernels' WorkTile.

    split_semaphores: how many a merge of splits needs.
    """

    work: np.ndarray
    keys_per_split: int
    splits: int
    split_semaphores: int
    _copies: dict[torch.device, torch.Tensor] = field(default_factory=dict)

    def on(self, device: torch.device) -> torch.Tensor:
        """Return the blocks on the kernel's device, to which they are copied once."""
        if device not in self._copies:
            self._copies[device] = torch.from_numpy(self.work).to(device)
        return self._copies[device]


def schedule(lengths: Lengths, tile: PrefillTile, **how) -> Schedule:
    """Cut attention of packed rows into blocks; see `_schedule`. The latest schedules are kept."""
    return _schedule(lengths.q.tobytes(), lengths.kv.tobytes(), tile, **how)


@functools.lru_cache(maxsize=KEPT)
def _schedule(
    q_lens: bytes,
    kv_lens: bytes,
    tile: PrefillTile,
    *,
    kv_heads: int,
    group: int,
    slots: int,
    variant: AttentionVariant,
    tile_rows: int | None = None,
    cached_keys: int | None = None,
    splits: int | None = None,
    keys_per_split: int | None = None,
) -> Schedule:
    """Cut into blocks; keys_per_split or splits is given, or the splits are chosen.

    slots: blocks that the GPU holds at once. tile_rows: the used rows of a tile, by default all.
    cached_keys: the keys of a KV head that the L2 cache may hold, by default any number.
    Raises: ValueError if keys_per_split makes more splits than a grid can have (MAX_SPLITS).
    """
    lengths = Lengths(*(np.frombuffer(x, dtype=np.int64) for x in (q_lens, kv_lens)))
    rows = lengths.q * group
    tile_rows = tile_rows or tile.q_rows
    tiles = -(-rows // tile_rows)
    request = np.repeat(np.arange(len(rows)), tiles)
    q_tile = np.arange(len(request)) - np.repeat(np.cumsum(tiles) - tiles, tiles)
    of_tiles = (request, q_tile, tile_rows)
    visible = visible_keys(lengths, *of_tiles, group, variant, tile.keys)
    longest = int(visible.max(initial=0))
    if keys_per_split is None:
        if splits is None:
            splits = _best_splits(visible, kv_heads, tile, slots)
        keys_per_split = max(1, math.ceil(longest / splits / tile.keys)) * tile.keys
    splits = max(1, math.ceil(longest / keys_per_split))
    if splits > MAX_SPLITS:
        raise ValueError(
            f"keys_per_split = {keys_per_split}, allowed: at least"
            f" {math.ceil(longest / MAX_SPLITS)} for {longest} keys, which is {MAX_SPLITS} splits"
        )
    work, steps = _blocks(request, q_tile, visible, keys_per_split, tile.keys, kv_heads)
    order = _launch_order(work, steps, slots, (cached_keys or MAX_CACHED_KEYS) // tile.keys)
    semaphores = (int(rows.sum()) // tile_rows + len(rows)) * kv_heads
    return Schedule(work[order], keys_per_split, splits, semaphores)


def lengths_of(work: Tokens) -> Lengths:
    """Return the lengths of a workload's requests."""
    return Lengths(np.array(work.q_lens), np.array(work.kv_lens))


def steps_of_tiles(work: Tokens, q_rows: int, keys: int) -> np.ndarray:
    """Return how many steps of `keys` keys each tile of rows takes, request by request."""
    lengths = lengths_of(work)
    tiles = -(-lengths.q * work.group // q_rows)
    request = np.repeat(np.arange(work.batch), tiles)
    tile = np.arange(len(request)) - np.repeat(np.cumsum(tiles) - tiles, tiles)
    seen = visible_keys(lengths, request, tile, q_rows, work.group, work.variant, keys)
    return -(-seen // keys)


def visible_keys(
    lengths: Lengths,
    request: np.ndarray,
    q_tile: np.ndarray,
    tile_rows: int,
    group: int,
    variant: AttentionVariant,
    step_keys: int,
) -> np.ndarray:
    """Return how many keys each tile goes over, from the step in which its first row's begin."""
    n, keys = lengths.q[request], lengths.kv[request]
    rows = (q_tile * tile_rows, (q_tile + 1) * tile_rows - 1)
    first, last = (np.minimum(row // group, n - 1) for row in rows)  # tokens
    begin = variant.begin(first, n, keys) // step_keys * step_keys
    return np.maximum(0, variant.end(last, n, keys) - begin)


def _best_splits(visible: np.ndarray, kv_heads: int, tile: PrefillTile, slots: int) -> int:
    """Return the fewest splits whose expected time comes near the shortest."""
    longest = int(visible.max(initial=0))
    even = visible.sum() * kv_heads / slots
    whole = _foreseen_keys(visible, kv_heads, max(1, longest), 0, slots)
    if whole <= GOOD_ENOUGH * even:
        return 1
    least = max(MIN_KEYS_PER_SPLIT, MIN_KEYS_PER_ROW * tile.q_rows)
    cost = KEYS_TO_START + 2 * tile.q_rows
    foreseen = {1: whole} | {
        splits: _foreseen_keys(visible, kv_heads, math.ceil(longest / splits), cost, slots)
        for splits in SPLITS[1:]
        if splits * least <= longest
    }
    near = GOOD_ENOUGH * min(foreseen.values())
    return next(splits for splits, keys in foreseen.items() if keys <= near)


def _foreseen_keys(visible: np.ndarray, kv_heads: int, keys: int, cost: int, slots: int) -> float:
    """Return a lower limit on the keys of the busiest slot, where each split costs some more keys.

    Some slot gets k + 1 of the k * slots + 1 longest blocks, and all slots share all blocks.
    """
    full, rest = np.divmod(visible, keys)
    blocks = np.concatenate([np.full(int(full.sum()), keys), rest[rest > 0]]) + cost
    longest_first = np.repeat(np.sort(blocks)[::-1], kv_heads)
    rounds = longest_first[::slots] * np.arange(1, len(longest_first[::slots]) + 1)
    return max(rounds.max(initial=0), longest_first.sum() / slots)


def _blocks(
    request: np.ndarray,
    q_tile: np.ndarray,
    visible: np.ndarray,
    keys_per_split: int,
    step_keys: int,
    kv_heads: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return every block as [request, q_tile, kv_head, split], and the steps that it takes."""
    live = np.maximum(1, -(-visible // keys_per_split)) * kv_heads
    unit = np.repeat(np.arange(len(request)), live)
    number = np.arange(len(unit)) - np.repeat(np.cumsum(live) - live, live)
    split, kv_head = number // kv_heads, number % kv_heads
    keys = np.minimum(visible[unit] - split * keys_per_split, keys_per_split)
    work = np.stack([request[unit], q_tile[unit], kv_head, split], axis=1).astype(np.int32)
    return work, -(-keys // step_keys)


def _launch_order(work: np.ndarray, steps: np.ndarray, slots: int, cached_steps: int) -> np.ndarray:
    """Return the order of blocks by falling steps, so that short blocks fill gaps at the end.

    Equal blocks that read the same K and V start side by side, to share the L2 cache. If K and V of
    all KV heads do not fit the cache, the heads are started in sections, one after the other.
    Enough short blocks to fill the end of the launch wait until then.
    """
    request, q_tile, kv_head, split = work.T
    head, of_block = np.unique(request.astype(np.int64) << 32 | kv_head, return_inverse=True)
    of_block = of_block.reshape(-1)
    longest = np.zeros(len(head), dtype=np.int64)
    np.maximum.at(longest, of_block, steps * (split + 1))
    longest_first = np.argsort(-longest, kind="stable")
    section = np.empty(len(head), dtype=np.int64)
    section[longest_first] = np.cumsum(longest[longest_first]) // max(1, cached_steps)
    turn = section[of_block]
    order = np.lexsort((q_tile, split, kv_head, request, -steps, turn))
    short = SHORT * steps[order] <= longest.max(initial=0)
    waits = order[short][-SHORT_AT_END * slots :]
    turn[waits] = turn.max(initial=0) + 1
    return np.lexsort((q_tile, split, kv_head, request, -steps, turn))
