"""FlashAttention-2, -3 and -4: tiles by head_dim and GPU, and splits by the number of blocks."""

import numpy as np

from labkernels.hardware import Gpu
from labkernels.planners.cut import Batch, Cut, NotKnown, ceil, even_blocks, one_length
from labkernels.units import MiB, require_choice

SPLITS_MAX = 128
L2_BYTES = 50 * MiB  # as FlashAttention-3 assumes
HEAD_DIMS = (32, 64, 96, 128, 192, 256)  # of FlashAttention-2; others run as the next larger one


def splits_2(units: int, slots: int, tiles: int) -> int:
    """Return FlashAttention-2's number of splits, by which the waves are 85 % of the fullest.

    units: blocks without splits. slots: two per SM. tiles: key tiles of the longest request.
    Source: Dao-AILab/flash-attention, csrc/flash_attn/flash_api.cpp (num_splits_heuristic),
    0251105a, and the same in 2.8.3.
    """
    if units >= np.float32(0.8) * np.float32(slots):
        return 1
    counts = range(1, min(SPLITS_MAX, slots, tiles) + 1)
    apart = [n for n in counts if n == 1 or ceil(tiles, n) != ceil(tiles, n - 1)]
    return _nearly_fullest(apart, units, slots)


def splits_3(units: int, batch: Batch, slots: int, tiles: int, row_tiles: int, keys: int) -> int:
    """Return FlashAttention-3's number of splits; where lengths differ, the most of a request.

    Source: Dao-AILab/flash-attention, hopper/heuristics.h, 0251105a.
    """
    if units >= np.float32(0.8) * np.float32(slots):
        kv_bytes = keys * 2 * batch.head_dim * 2
        if kv_bytes <= L2_BYTES or row_tiles < 2 * slots or batch.causal:
            return 1
        return min(ceil(kv_bytes, L2_BYTES), SPLITS_MAX)
    if tiles <= 4:
        return 1
    return _nearly_fullest(list(range(1, min(SPLITS_MAX, slots, tiles) + 1)), units, slots)


def _nearly_fullest(counts: list[int], units: int, slots: int) -> int:
    """Return the first count whose waves are 85 % as full as the fullest.

    As theirs, waves are in fp32, and the comparison is in float64, which decides near ties.
    """
    waves = (np.array(counts) * units).astype(np.float32) / np.float32(slots)
    fullness = (waves / np.ceil(waves)).astype(np.float64)
    return counts[int(np.argmax(fullness >= 0.85 * fullness.max(initial=0)))]


def flash_attention_2(
    batch: Batch,
    gpu: Gpu,
    *,
    num_splits: int = 0,
    allocated: int | None = None,
    split_kernel: bool = False,
    aligned: bool = True,
) -> Cut:
    """Return the cut of flash_attn_func and flash_attn_with_kvcache.

    num_splits: 0 for the heuristic. allocated: keys that the cache has room for, which count and
    not the requests' own. split_kernel: True for paged caches, new keys and cache_batch_idx, which
    run it even without splits. aligned: whether one split has the tile of the other kernel, as
    since June 2026, and not in 2.8.3.
    Raises: NotKnown if query lengths differ.
    Source: Dao-AILab/flash-attention, csrc/flash_attn/flash_api.cpp and
    csrc/flash_attn/src/{flash_fwd_launch_template,flash_fwd_kernel}.h, 0251105a.

    >>> from labkernels.hardware import gpu
    >>> flash_attention_2(Batch((2048,), 32, 32, 128), gpu("h200")).label()
    '64 x 128, 8 splits of 256'
    """
    q_len, keys = one_length(batch.queries, "q_lens"), allocated or max(batch.kv_lens)
    head_dim = min((d for d in HEAD_DIMS if d >= batch.head_dim), default=None)
    if head_dim is None:
        raise ValueError(f"head_dim = {batch.head_dim}, allowed: at most {HEAD_DIMS[-1]}")
    tile = 256 if head_dim <= 64 else 128 if head_dim <= 128 else 64
    rows, heads = (batch.group, batch.kv_heads) if q_len == 1 else (q_len, batch.q_heads)
    units = batch.size * heads * ceil(rows, 64)
    splits = num_splits or splits_2(units, 2 * gpu.sm_count, ceil(keys, tile))
    tile_q, tile_keys = 64, tile
    if splits == 1 and not split_kernel:
        tile_q, tile_keys = _tile_2(head_dim, gpu, batch.causal and q_len > 1)
    elif splits == 1 and aligned:
        tile_keys = 128 if head_dim <= 64 else 64
    ranges = tuple(even_blocks(n, tile_keys, splits, keys) for n in batch.kv_lens)
    return Cut("FlashAttention-2", tile_q, tile_keys, ranges)


def _tile_2(head_dim: int, gpu: Gpu, causal: bool) -> tuple[int, int]:
    """Return rows and keys of the tile of the kernel without splits."""
    small = gpu.arch in ("sm_86", "sm_87", "sm_89")
    if head_dim in (96, 128) and small and causal:
        return 64, 64
    if head_dim == 128 and small:
        return 128, 32
    if head_dim == 256:
        large = (
            gpu.smem_per_block_max_bytes >= 2 * 256 * 256 and gpu.smem_per_sm_bytes < 4 * 256 * 192
        )
        return (128 if large else 64), 64
    return 128, 128 if head_dim <= 64 else 64


def flash_attention_3(
    batch: Batch,
    gpu: Gpu,
    *,
    num_splits: int = 0,
    allocated: int | None = None,
    varlen: bool = True,
    fork: str = "Dao-AILab",
) -> Cut:
    """Return the cut of FlashAttention-3's forward pass and kvcache call on Hopper.

    varlen: whether it is told lengths per request, as the kvcache call is; then each request has
    splits by its share of the batch's tiles, and num_splits is the most. fork: Dao-AILab, whose
    files sgl-project's fork at 2580b5a4 has too, or vllm-project, whose kernel of one warpgroup for
    few rows was reported to give other bits than that of two with the same keys.
    Raises: NotKnown on other architectures and above head_dim 256.
    Source: Dao-AILab/flash-attention, hopper/{flash_api.cpp,heuristics.h,tile_size.h,block.h,
    flash_prepare_scheduler.cu}, 0251105a; vllm-project/flash-attention, the same files, 617264c1.
    """
    require_choice("fork", fork, ("Dao-AILab", "vllm-project"))
    if gpu.arch != "sm_90" or batch.head_dim > 256:
        raise NotKnown(f"FlashAttention-3's tiles on {gpu.arch} for head_dim {batch.head_dim}")
    most_rows = max(batch.queries) * batch.group
    tile_q, tile_keys = _tile_3(batch, most_rows, fork, tma=True)
    if batch.page_size and not (batch.page_size % tile_keys == 0 and most_rows > tile_q):
        tile_q, tile_keys = _tile_3(batch, most_rows, fork, tma=False)
    longest = allocated or max(batch.kv_lens)
    row_tiles, tiles = ceil(most_rows, tile_q), ceil(longest, tile_keys)
    units = (1 if varlen else batch.size) * batch.kv_heads * row_tiles
    most = num_splits or splits_3(units, batch, gpu.sm_count, tiles, row_tiles, longest)
    counts = [most] * batch.size
    if varlen:
        own = [ceil(n, tile_keys) for n in batch.kv_lens]
        rows = [ceil(n * batch.group, tile_q) for n in batch.queries]
        total = np.float32(sum(r * n for r, n in zip(rows, own, strict=True))) * np.float32(1.1)
        share = np.ceil(total * np.float32(batch.kv_heads) / np.float32(gpu.sm_count))
        shared = most > 1 and batch.size <= 992 and share > 0
        counts = [max(min(ceil(n, int(share)), most), 1) if shared else 1 for n in own]
    pairs = zip(batch.kv_lens, counts, strict=True)
    ranges = tuple(even_blocks(n, tile_keys, count) for n, count in pairs)
    name = "FlashAttention-3" + (", one warpgroup" if tile_q == 64 else "")
    return Cut(name, tile_q, tile_keys, ranges)


def _tile_3(batch: Batch, rows: int, fork: str, *, tma: bool) -> tuple[int, int]:
    """Return rows and keys of the tile on Hopper, in 16 bits."""
    head_dim, vllm = batch.head_dim, fork == "vllm-project"
    paged = not tma
    # a causal mask hides nothing from one query; only paged caches at 65 to 128 channels keep it
    kept = 64 < head_dim <= 128 and batch.page_size is not None
    causal = batch.causal and (max(batch.queries) > 1 or kept)
    one_warpgroup = vllm and head_dim in (64, 128) and rows <= 64
    if head_dim <= 64:
        if one_warpgroup:
            return 64, 192
        return 192, 128 if causal else 192 if not paged else 160 if vllm else 128
    if head_dim <= 96:
        return 192, 128 if paged else 144
    if head_dim <= 128:
        wide = 160 if vllm and not one_warpgroup else 176
        return 64 if one_warpgroup else 128, 128 if causal or paged else wide
    if head_dim <= 192:
        return 128, 96 if paged or vllm else 112
    return 128, 80


def flash_attention_4(batch: Batch, gpu: Gpu, *, num_splits: int = 1) -> Cut:
    """Return the cut of flash_attn.cute; its default of one split never looks at the batch.

    num_splits: 0 for the heuristic.
    Raises: ValueError for splits outside sm_100, whose kernels alone have them, and for pages on
    sm_80 to sm_89 and sm_120; NotKnown on other
    architectures than sm_80 to sm_90, sm_100 and sm_120, and for splits of different lengths.
    Source: flash-attn-4 4.0.0b36, flash_attn/cute/{interface,block_info}.py; sm_80 and sm_120:
    Dao-AILab/flash-attention, the same files, 0251105a.
    """
    family = gpu.arch_number // 10
    if family not in (8, 9, 10, 12) or batch.head_dim > 256:
        raise NotKnown(f"FlashAttention-4's tiles on {gpu.arch} for head_dim {batch.head_dim}")
    if batch.page_size and family in (8, 12):
        raise ValueError(f"page_size = {batch.page_size}, allowed on {gpu.arch}: None")
    rows, tile_q, tile_keys = max(batch.queries) * batch.group, 128, 128
    if family == 9:
        tile_q, tile_keys = _tile_4(batch.head_dim, batch.causal)
    elif family == 8 or (family == 12 and batch.head_dim > 64):
        tile_keys = 64
    held = tile_q * (2 if family == 10 and rows > tile_q and batch.head_dim != 256 else 1)
    splits, tiles = num_splits, ceil(max(batch.kv_lens), tile_keys)
    if not splits:
        units = batch.size * batch.kv_heads * ceil(rows, held)
        splits = 1 if tiles <= 4 else max(1, min(gpu.sm_count // units, SPLITS_MAX, tiles))
    if splits > 1 and family != 10:
        raise ValueError(f"num_splits = {num_splits}, allowed on {gpu.arch}: 1")
    if splits > 1:
        one_length(batch.kv_lens, "kv_lens")
    ranges = tuple(even_blocks(n, tile_keys, splits) for n in batch.kv_lens)
    return Cut("FlashAttention-4", tile_q, tile_keys, ranges)


def _tile_4(head_dim: int, causal: bool) -> tuple[int, int]:
    """Return rows and keys of the tile on sm_90."""
    if head_dim <= 96:
        return 192, 128 if head_dim <= 64 or causal else 144
    if head_dim <= 128:
        return 128, 128
    return 128, 112 if head_dim <= 192 else 80
