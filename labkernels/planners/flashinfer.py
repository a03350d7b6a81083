"""FlashInfer 0.7.2.post1: paged decode on CUDA cores, fa2, fa3 and MLA.

Partial outputs are stored in the output's format, so several splits round twice.
"""

from bisect import bisect_left
from collections.abc import Callable

from labkernels.budget.occupancy import occupancy
from labkernels.hardware import Gpu
from labkernels.planners.cut import Batch, Cut, NotKnown, ceil, even
from labkernels.units import require_choice

SPLIT_KEYS_MIN = 128  # keys of a chunk at least, where a page is not larger
GROUPS = (1, 2, 3, 4, 6, 8)  # on CUDA cores
# Registers of the kernel on CUDA cores for GROUPS, by dtype and head_dim: nvcc 13.0.88, -O3
# -use_fast_math, sm_90a, without window and soft cap; but of 4 heads of 128 channels in bf16, where
# that gives 61, what an H200's plans told: nine blocks per SM.
REGISTERS = {
    ("bf16", 64): (70, 51, 56, 61, 56, 56),
    ("bf16", 128): (70, 51, 56, 56, 61, 56),
    ("bf16", 256): (66, 51, 48, 59, 56, 56),
    ("fp16", 64): (68, 50, 56, 63, 56, 56),
    ("fp16", 128): (69, 50, 56, 63, 62, 64),
    ("fp16", 256): (68, 50, 48, 58, 60, 56),
}


def decode_cuda_cores(
    batch: Batch, gpu: Gpu, *, registers: int | None = None, cuda_graph: bool = False
) -> Cut:
    """Return the cut of BatchDecodeWithPagedKVCacheWrapper with use_tensor_cores=False.

    registers: of the kernel, of which as many blocks as the GPU holds take chunks of equal size; by
    default those of REGISTERS.
    Raises: ValueError for a group without a kernel; NotKnown where the registers are not.
    Source: flashinfer-ai/flashinfer, include/flashinfer/attention/{scheduler,decode,cascade}.cuh,
    0.7.2.post1 (beabf500).

    >>> from labkernels.hardware import gpu
    >>> decode_cuda_cores(Batch((512,) * 64, 32, 8, 128, page_size=16), gpu("h200")).label()
    '4 x 8, 2 splits of 256'
    """
    if batch.group not in GROUPS:
        raise ValueError(f"group = {batch.group}, allowed: {', '.join(map(str, GROUPS))}")
    lanes = batch.head_dim // max(8, batch.head_dim // 32)
    threads = max(128, lanes * batch.group)
    chains = threads // (lanes * batch.group)
    tile = (4 if batch.group == 1 else 1) * batch.group * chains
    smem = 8 * tile * batch.head_dim + 8 * threads * (tile // (batch.group * chains))
    block = {"threads": threads, "registers": registers or _registers(batch, gpu)}
    places = occupancy(gpu, smem_bytes=smem, **block).blocks_per_sm * gpu.sm_count
    size, pages = batch.page_size or 1, _pages(batch)
    chunk = None
    if batch.size * batch.kv_heads < places:
        least = max(SPLIT_KEYS_MIN // size, 1)

        def fits(chunk: int) -> bool:
            return sum(ceil(n, chunk) for n in pages) * batch.kv_heads <= places

        chunk = _first(least, max(pages), fits)
        if not cuda_graph and sum(ceil(max(n, 1), chunk) for n in pages) == batch.size:
            chunk = None
    splits = tuple(even(n, chunk and chunk * size) for n in batch.kv_lens)
    name, rows = "FlashInfer CUDA cores", batch.group
    return Cut(name, rows, tile, splits, "ascending", chains, p="fp32", partials="input")


def _registers(batch: Batch, gpu: Gpu) -> int:
    known = REGISTERS.get((batch.dtype, batch.head_dim))
    if known is None or gpu.arch != "sm_90":
        raise NotKnown(f"registers of the kernel for {batch.head_dim} channels on {gpu.arch}")
    return known[GROUPS.index(batch.group)]


def fa2(
    batch: Batch,
    gpu: Gpu,
    *,
    fixed_split_size: int | None = None,
    disable_split_kv: bool = False,
    cuda_graph: bool = False,
) -> Cut:
    """Return the cut of the fa2 kernels: decode with tensor cores, prefill, paged and ragged.

    fixed_split_size: in pages. Contiguous keys are pages of one key.
    Raises: NotKnown for head_dim above 256.
    Source: flashinfer-ai/flashinfer, include/flashinfer/attention/{scheduler,prefill}.cuh,
    include/flashinfer/utils.cuh and flashinfer/decode.py, 0.7.2.post1 (beabf500).

    >>> from labkernels.hardware import gpu
    >>> fa2(Batch((8192,) * 57, 32, 8, 128, page_size=16), gpu("h200")).label()
    '16 x 128, no split'
    """
    if batch.head_dim > 256:
        raise NotKnown(f"head_dim = {batch.head_dim}: the fa2 tiles above 256 were not emulated")
    rows = [n * batch.group for n in batch.queries]
    typical = sum(rows) // batch.size
    if cuda_graph:  # the longest request that the captured number of rows allows
        typical = (sum(batch.queries) - batch.size + 1) * batch.group
    tile_q = 16 if typical <= 16 else 64 if typical <= 64 or batch.head_dim >= 256 else 128
    size, pages = batch.page_size or 1, _pages(batch)
    chunk = fixed_split_size if fixed_split_size and fixed_split_size > 0 else None
    if disable_split_kv:
        chunk = None
    elif chunk is None:
        most = 2 * gpu.sm_count // batch.kv_heads
        least = max(SPLIT_KEYS_MIN // size, 1)
        tiles = [ceil(n, tile_q) for n in rows]

        def fits(chunk: int) -> bool:
            return (
                sum(t * ceil(max(n, 1), chunk) for t, n in zip(tiles, pages, strict=True)) <= most
            )

        chunk = _first(least, max(pages), fits)
    chains = 4 if tile_q == 16 else 1
    splits = tuple(even(n, chunk and chunk * size) for n in batch.kv_lens)
    tile_keys = _fa2_keys(batch.head_dim, tile_q, gpu)
    return Cut("FlashInfer fa2", tile_q, tile_keys, splits, "ascending", chains, partials="input")


def _fa2_keys(head_dim: int, tile_q: int, gpu: Gpu) -> int:
    """Return the keys of a tile: as many as let an SM hold two blocks, where it can."""
    warps = 4 if tile_q == 16 else 1  # that divide the keys; else they divide the rows
    query, keys = 2 * tile_q * head_dim, 2 * 2 * head_dim * 16 * warps
    blocks = 2 if gpu.smem_per_sm_bytes >= 2 * (query + keys) else 1
    room = min(gpu.smem_per_sm_bytes // blocks, gpu.smem_per_block_max_bytes) - query
    if room < keys:
        raise ValueError(f"head_dim = {head_dim}, allowed: tiles that fit {gpu.name}")
    steps = min(room // keys, 4 if tile_q == 128 else 8)
    return (1 << steps.bit_length() - 1) * 16 * warps


def fa3(batch: Batch, gpu: Gpu) -> Cut:
    """Return the cut of the fa3 prefill, which has no splits and a tile that no length changes.

    Raises: ValueError without Hopper, and for a head_dim without a kernel.
    Source: flashinfer-ai/flashinfer, include/flashinfer/attention/hopper/{prefill_sm90,
    mainloop_mma}.cuh, 0.7.2.post1 (beabf500).
    """
    require_choice("gpu.arch", gpu.arch, ("sm_90",))
    require_choice("head_dim", str(batch.head_dim), ("64", "128", "256"))
    ragged = {64: 128, 128: 128 if batch.causal else 192, 256: 64}
    paged = {64: 96, 128: 96, 256: 32}
    tile_keys = (ragged if batch.page_size is None else paged)[batch.head_dim]
    splits = tuple(even(n) for n in batch.kv_lens)
    return Cut("FlashInfer fa3", 192 if batch.head_dim == 64 else 128, tile_keys, splits)


def mla(batch: Batch, gpu: Gpu, *, backend: str = "fa3") -> Cut:
    """Return the cut of BatchMLAPagedAttentionWrapper, whose chunks grow with the whole batch.

    Raises: ValueError for a backend other than fa2 and fa3.
    Source: flashinfer-ai/flashinfer, include/flashinfer/attention/{scheduler,mla,mla_hopper}.cuh,
    0.7.2.post1 (beabf500).
    """
    require_choice("backend", backend, ("fa2", "fa3"))
    rows = [n * batch.q_heads for n in batch.queries]
    blocks = 2 if sum(rows) // batch.size > 64 else 1  # of a cluster, which share a query tile
    clusters, tile = gpu.sm_count // blocks, 64 * blocks
    total = 0
    for n, q, keys in zip(rows, batch.queries, batch.kv_lens, strict=True):
        for last in range(tile, tile * ceil(n, tile), tile):
            seen = min(max(keys - q + ceil(last, batch.q_heads), 0), keys)
            total += seen if batch.causal else keys
        total += keys
    share = max(ceil(total, clusters), 1)
    steps = ((8, 32), (16, 64), (32, 128), (64, 192))
    chunk = next((keys for most, keys in steps if share <= most), 256 * ceil(share, 256))
    smem = gpu.smem_per_sm_bytes
    tile_keys = 64 if backend == "fa3" or smem >= 221696 else 32 if smem >= 147968 else 16
    splits = tuple(even(n, chunk) for n in batch.kv_lens)
    return Cut(f"FlashInfer MLA {backend}", 64, tile_keys, splits, partials="input")


def _first(least: int, most: int, fits: Callable[[int], bool]) -> int:
    """Return the first chunk from `least` on that fits, or `most`, which does."""
    return least + bisect_left(range(least, most), True, key=fits)


def _pages(batch: Batch) -> list[int]:
    return [ceil(n, batch.page_size or 1) for n in batch.kv_lens]
