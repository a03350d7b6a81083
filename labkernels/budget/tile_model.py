"""The expected time of a tile, from the work that each of its steps puts on an SM."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from labkernels.budget.roofline import LANES
from labkernels.hardware import Gpu
from labkernels.units import require_finite, require_int

# Clocks of a step that no other work of the warp hides: barriers, first fragments, first products,
# shuffles. The number was fitted once to the times of prefill_mma's tiles on an H200; times of the
# other kernels test it.
LATENCY_CLOCKS = 300
SMEM_BYTES_PER_CLK = 128  # bytes per clock of an SM: 32 banks of 4 bytes
INSTRUCTIONS = ("mma.sync", "wgmma")


@dataclass(frozen=True)
class StepWork:
    """The work that one step of a block over its keys puts on the SM.

    flops: of both products, padding counted. instruction: "wgmma", or "mma.sync", which cannot
    reach the tensor peak on Hopper. exps: exponentials. smem_bytes: read and written. lane_ops:
    instructions that the schedulers issue, times the lanes of a warp. streams: warps or warpgroups
    of the block that a scheduler can choose from; each issues in order.
    """

    flops: int
    instruction: str
    exps: int
    smem_bytes: int
    lane_ops: int
    streams: float

    def __post_init__(self) -> None:
        if self.instruction not in INSTRUCTIONS:
            allowed = ", ".join(INSTRUCTIONS)
            raise ValueError(f"instruction = {self.instruction!r}, allowed: {allowed}")


@dataclass(frozen=True)
class TileTime:
    """Clocks of an SM for a step of one block, by resource, and the time of the whole grid.

    Units: clocks for mma, exp, smem, issue and step; seconds for time_s. bound: the busiest
    resource in the longer of a step's two phases.
    """

    mma: float
    exp: float
    smem: float
    issue: float
    step: float
    bound: str
    busiest_sm_steps: int
    time_s: float


def tile_time(
    work: StepWork, steps: Iterable[int], gpu: Gpu, *, blocks_per_sm: int, clock_hz: float = 0.0
) -> TileTime:
    """Expect the time of a grid: a step's clocks, times the steps of the busiest SM.

    A step has two phases. In the products, tensor cores and shared memory work side by side; in the
    softmax, exponentials and other instructions take turns. A single stream goes through one phase
    after the other. With n streams per scheduler the longer phase runs all the time, and 1/n of the
    shorter phase and of the latency is not hidden. steps: of each block, in launch order.
    Raises: ValueError if blocks_per_sm is not an integer >= 1 or there is no block.

    >>> from labkernels.hardware import gpu
    >>> work = StepWork(4 * 128 * 128 * 128, "wgmma", 128 * 128, 2**17, 10 * 128 * 128, streams=2)
    >>> time = tile_time(work, [64] * 132, gpu("h200"), blocks_per_sm=1)
    >>> time.bound, time.busiest_sm_steps, time.step > time.mma
    ('issue', 64, True)
    """
    require_int("blocks_per_sm", blocks_per_sm, minimum=1)
    clocks = step_clocks(work, gpu)
    products = max(clocks["mma"], clocks["smem"])
    softmax = clocks["exp"] + clocks["issue"]
    longer = ("mma", "smem") if products >= softmax else ("exp", "issue")
    hidden_by = max(1.0, work.streams * blocks_per_sm)
    step = max(products, softmax) + (min(products, softmax) + LATENCY_CLOCKS) / hidden_by
    busiest = busiest_sm_steps(steps, gpu.sm_count)
    clock_hz = require_finite("clock_hz", clock_hz) or gpu.tensor_clock_hz
    return TileTime(
        **clocks,
        step=step,
        bound=max(longer, key=clocks.__getitem__),
        busiest_sm_steps=busiest,
        time_s=busiest * step / clock_hz,
    )


def step_clocks(work: StepWork, gpu: Gpu) -> dict[str, float]:
    """Return the clocks that each resource of an SM needs for a step of one block, taken alone."""
    tensor_rate = gpu.tensor_flops_per_clk_per_sm * gpu.tensor_fp32_accumulate_rate
    if work.instruction == "mma.sync":
        tensor_rate *= gpu.measured_mma_sync_share or 1.0
    return {
        "mma": work.flops / tensor_rate,
        "exp": work.exps / gpu.mufu_per_clk_per_sm,
        "smem": work.smem_bytes / SMEM_BYTES_PER_CLK,
        "issue": work.lane_ops / LANES,
    }


def busiest_sm_steps(steps: Iterable[int], sm_count: int) -> int:
    """Return steps of the busiest SM, if each block goes to the SM with the fewest steps so far.

    Raises: ValueError if there is no block.
    """
    loads = [0] * sm_count
    for count in steps:
        heapq.heapreplace(loads, loads[0] + count)
    if not any(loads):
        raise ValueError("steps is empty, allowed: at least one block with a step")
    return max(loads)
