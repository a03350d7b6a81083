"""What every runner gives back: a step that can run again and again, and the plan behind it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from labkernels.budget.occupancy import occupancy, registers_allowed
from labkernels.hardware import Gpu
from labkernels.kernels.spec import Instance


@dataclass(frozen=True)
class Plan:
    """What was chosen for a call, and what it amounts to.

    Units: keys_per_split in keys, smem_bytes a block, waves of blocks over the whole GPU; registers
    a thread, None until the kernel has been compiled.
    batch_invariant: no choice depended on the batch, so that a request's bits are the same alone
    and among others. why: how the kernel was chosen, of a verb that chooses by the GPU's facts.
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
    batch_invariant: bool
    why: str = ""


@dataclass(frozen=True, eq=False)
class Step:
    """A call that runs again and again on the same tensors, with nothing left to plan.

    run() enqueues it on the current stream (or finishes it, on a CPU), checks nothing, allocates
    nothing, and can be captured in a CUDA graph. What it may find changed between runs, the verb
    that made it says.
    """

    run: Callable[[], None]
    out: torch.Tensor
    lse2: torch.Tensor
    plan: Plan


def blocks_per_sm(instance: Instance, smem_bytes: int, gpu: Gpu) -> int:
    """Blocks that shared memory, threads and the tile's promise on registers leave on an SM."""
    tile = instance.tile
    registers = registers_allowed(gpu, threads=tile.threads, blocks_per_sm=tile.blocks_per_sm)
    return occupancy(
        gpu, threads=tile.threads, registers=registers, smem_bytes=smem_bytes
    ).blocks_per_sm
