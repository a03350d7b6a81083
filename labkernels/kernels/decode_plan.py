"""How a decode is cut into blocks: a function of shapes alone, so that a step plans nothing."""

import math
from dataclasses import dataclass

from labkernels.budget.occupancy import occupancy
from labkernels.hardware import Gpu
from labkernels.kernels.spec import Instance

MAX_SPLITS = 65_535  # splits lie along grid y
MIN_KEYS_PER_SPLIT = 256  # below it a split costs more than the idle SMs
# Measured on an H200 (data/decode_tensor_cores.csv): two blocks an SM already draw all of the
# memory's rate, so a small decode is cut into one such wave; a decode of a wave or more is cut into
# at least four, or its last wave would leave SMs idle.
FULL_BLOCKS_PER_SM = 2
FULL_WAVES = 4


@dataclass(frozen=True)
class DecodePlan:
    """What was chosen for a decode, and what it amounts to.

    Units: keys_per_split in keys, smem_bytes a block, waves of blocks over the whole GPU; registers
    a thread, None until the kernel has been compiled.
    """

    kernel: str
    tile: str
    policy: str
    machine: str
    splits: int
    keys_per_split: int
    blocks: int
    blocks_per_sm: int
    waves: float
    smem_bytes: int
    registers: int | None
    launches: int


def keys_per_split(*, units: int, max_kv_len: int, slots: int, sm_count: int, step: int) -> int:
    """Keys a split, so that the blocks of a decode keep all SMs busy to the end.

    units: blocks of an unsplit decode. slots: blocks that the GPU holds at once. step: keys that a
    block takes at a time; a split is whole steps.
    """
    one_wave = FULL_BLOCKS_PER_SM * sm_count
    splits = max(1, one_wave // units)
    if one_wave < units < FULL_WAVES * slots:
        splits = math.ceil(FULL_WAVES * slots / units)
    keys = math.ceil(max_kv_len / splits)
    keys = max(keys, min(MIN_KEYS_PER_SPLIT, max_kv_len), math.ceil(max_kv_len / MAX_SPLITS), 1)
    return math.ceil(keys / step) * step


def blocks_per_sm(instance: Instance, smem_bytes: int, gpu: Gpu) -> int:
    """Blocks that shared memory, threads and the tile's promise on registers leave on an SM."""
    per_thread = gpu.registers_per_sm // (instance.tile.blocks_per_sm * instance.tile.threads)
    registers = min(gpu.registers_per_thread_max, per_thread // 8 * 8)
    return occupancy(
        gpu, threads=instance.tile.threads, registers=registers, smem_bytes=smem_bytes
    ).blocks_per_sm
