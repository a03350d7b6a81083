"""How many blocks an SM holds at once, which resource limits them, and the waves of a grid."""

from dataclasses import dataclass

from labkernels.budget.registers import WARP_THREADS
from labkernels.hardware import Gpu
from labkernels.units import require_int


@dataclass(frozen=True)
class Occupancy:
    """Blocks that an SM holds, the limit by each resource, and the resulting warps."""

    blocks_per_sm: int
    limit: str
    by_registers: int
    by_smem: int
    by_warps: int
    by_blocks: int
    warps: int
    fraction: float


def occupancy(gpu: Gpu, *, threads: int, registers: int, smem_bytes: int) -> Occupancy:
    """Return the blocks that an SM holds, for a block's threads, registers per thread and bytes.

    smem_bytes is static and dynamic together. A block that can never launch gives 0 blocks.
    Raises: ValueError if threads or registers is beyond what a block or a thread may have.
    Source: cuda_occupancy.h of CUDA 13.1, with the largest shared-memory carveout.

    >>> from labkernels.hardware import gpu
    >>> held = occupancy(gpu("h200"), threads=128, registers=168, smem_bytes=64 * 1024)
    >>> held.blocks_per_sm, held.limit
    (3, 'registers')
    """
    require_int("threads", threads, minimum=1, maximum=gpu.threads_per_block_max)
    require_int("registers", registers, minimum=1, maximum=gpu.registers_per_thread_max)
    require_int("smem_bytes", smem_bytes)
    warps_per_block = -(-threads // WARP_THREADS)
    limits = {
        "registers": _by_registers(gpu, warps_per_block, registers),
        "shared memory": _by_smem(gpu, smem_bytes),
        "warps": gpu.warps_per_sm_max // warps_per_block,
        "blocks": gpu.blocks_per_sm_max,
    }
    limit = min(limits, key=limits.__getitem__)
    warps = limits[limit] * warps_per_block
    return Occupancy(
        blocks_per_sm=limits[limit],
        limit=limit,
        by_registers=limits["registers"],
        by_smem=limits["shared memory"],
        by_warps=limits["warps"],
        by_blocks=limits["blocks"],
        warps=warps,
        fraction=warps / gpu.warps_per_sm_max,
    )


def registers_allowed(gpu: Gpu, *, threads: int, blocks_per_sm: int) -> int:
    """Return the registers per thread that ptxas allows if `blocks_per_sm` blocks must share an SM.

    >>> from labkernels.hardware import gpu
    >>> registers_allowed(gpu("h200"), threads=256, blocks_per_sm=2)
    128
    """
    per_thread = gpu.registers_per_sm // (blocks_per_sm * threads)
    return min(gpu.registers_per_thread_max, per_thread // 8 * 8)


def waves(blocks: int, occupancy: Occupancy, gpu: Gpu) -> float:
    """Return how many waves a grid of `blocks` blocks takes; the fraction is the last wave.

    Raises: ValueError if blocks is not an integer >= 0, or no block fits an SM.

    >>> from labkernels.hardware import gpu
    >>> h200 = gpu("h200")
    >>> waves(396, occupancy(h200, threads=128, registers=168, smem_bytes=64 * 1024), h200)
    1.0
    """
    require_int("blocks", blocks)
    require_int("occupancy.blocks_per_sm", occupancy.blocks_per_sm, minimum=1)
    return blocks / (occupancy.blocks_per_sm * gpu.sm_count)


def _by_registers(gpu: Gpu, warps_per_block: int, registers: int) -> int:
    granularity = gpu.warp_allocation_granularity
    per_warp = _round_up(registers * WARP_THREADS, gpu.register_allocation_unit_per_warp)
    # the launch check assumes that a block fills all sub-partitions of the SM equally
    if per_warp * _round_up(warps_per_block, granularity) > gpu.registers_per_sm:
        return 0
    # registers belong to a sub-partition, so the remainder in each of them is unused
    warps = gpu.registers_per_sm // granularity // per_warp * granularity
    return warps // warps_per_block


def _by_smem(gpu: Gpu, smem_bytes: int) -> int:
    if smem_bytes > gpu.smem_per_block_max_bytes:
        return 0
    used = smem_bytes + gpu.smem_reserved_per_block_bytes
    return gpu.smem_per_sm_bytes // _round_up(used, gpu.smem_allocation_unit_bytes)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
