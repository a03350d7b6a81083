"""What a kernel's name and grid, as a profiler shows them, tell of its tile and its splits."""

import re

from labkernels.planners.cut import Batch, Cut, ceil

# By cut.kernel: the kernel's name, with the numbers of its template.
_FLASH = r"flash_fwd_(?P<split>splitkv_)?kernel<.*?Flash_fwd_kernel_traits<\d+, (\d+), (\d+), "
_NUMBER = r"(\d+)[ul]*"
_FA2 = r"BatchPrefillWith\w+KVCacheKernel<.*?KernelTraits<\(\S*MaskMode\)\d, " + ", ".join(
    [_NUMBER] * 7
)
_CORES = r"BatchDecodeWithPagedKVCacheKernel<\(\S*PosEncodingMode\)\d, " + ", ".join([_NUMBER] * 6)
NAMES = {
    "FlashAttention-2": _FLASH,
    "torch flash": _FLASH,
    "torch efficient": r"fmha_cutlassF_\w+?_(\d+)x(\d+)_",
    "FlashInfer fa2": _FA2,
    "FlashInfer CUDA cores": _CORES,
}
MMA_KEYS = 16  # of one step of FlashInfer's fa2, for each warp that divides the keys


def is_attention(cut: Cut, kernel: str) -> bool:
    """Return whether a launched kernel is that which computes a cut's splits, not their merge."""
    return cut.kernel in NAMES and re.search(NAMES[cut.kernel], kernel) is not None


def tile(cut: Cut, kernel: str) -> tuple[int, int]:
    """Return rows and keys of the tile that a kernel's name holds.

    >>> cut = Cut("torch efficient", 64, 128, (((0, 512),),))
    >>> tile(cut, "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::...")
    (64, 128)
    """
    found = re.search(NAMES[cut.kernel], kernel)
    if found is None:
        raise ValueError(f"kernel = {kernel[:60]!r}, allowed: one of {cut.kernel}")
    numbers = [int(x) for x in found.groups() if x is not None and x.isdigit()]
    if cut.kernel == "FlashInfer fa2":
        rows, _, keys, _, _, _, warps = numbers
        return rows, keys * warps * MMA_KEYS
    if cut.kernel == "FlashInfer CUDA cores":
        _, keys, _, _, rows, chains = numbers
        return rows, keys * rows * chains
    return numbers[0], numbers[1]


def grid(cut: Cut, batch: Batch, kernel: str) -> tuple[int, ...]:
    """Return the blocks along x, y and z that a cut asks of its kernel, where lengths are equal."""
    packed = max(batch.queries) == 1  # the query heads of a KV head are the rows of a tile
    rows, heads = (batch.group, batch.kv_heads) if packed else (max(batch.queries), batch.q_heads)
    splits = len(cut.splits[0])
    if cut.kernel == "torch efficient":
        return ceil(max(batch.queries), cut.tile_q), batch.q_heads, batch.size
    if cut.kernel.startswith("FlashInfer"):
        tiles = 1 if "cores" in cut.kernel else ceil(max(batch.queries) * batch.group, cut.tile_q)
        chunks = tiles * splits * batch.size
        middle = (batch.kv_heads, 1) if "cores" in cut.kernel else (1, batch.kv_heads)
        return chunks, *middle
    tiles = ceil(rows, cut.tile_q)
    if "splitkv" in kernel and splits > 1:
        return tiles, splits, batch.size * heads
    return tiles, batch.size, heads


def agrees(cut: Cut, batch: Batch, kernel: str, blocks: tuple[int, ...]) -> bool:
    """Return whether a launch has the tile and the number of splits of a cut."""
    return (tile(cut, kernel), blocks) == ((cut.tile_q, cut.tile_keys), grid(cut, batch, kernel))
