"""The least time that a workload can take on a GPU, and what sets it."""

from dataclasses import dataclass
from typing import Protocol

from labkernels.hardware import Gpu
from labkernels.units import require_finite, require_int

LANES = 128  # lanes of an SM: 4 schedulers issue to 32 lanes each
MMA_ROWS = (8, 16, 32, 64)  # query rows of a tensor-core tile; the keys are its other side


class Workload(Protocol):
    """The work of a call of any operation: bytes to move, FLOPs, exponentials.

    flops: of the products. group: query rows of a token that share a key; for MLA, rows of all
    tokens.
    """

    @property
    def bytes(self) -> int: ...
    @property
    def flops(self) -> int: ...
    @property
    def exps(self) -> int: ...
    @property
    def group(self) -> int: ...


@dataclass(frozen=True)
class Floor:
    """The times of a workload's memory traffic, products and exponentials, each at its peak rate.

    Units: seconds. At best they overlap: time_s is the largest of them, and bound is its name.
    """

    memory_s: float
    math_s: float
    exp_s: float
    bound: str
    time_s: float


def least_time(
    workload: Workload,
    gpu: Gpu,
    *,
    tensor_cores: bool,
    mma_rows: int | None = None,
    bytes_per_s: float | None = None,
) -> Floor:
    """Return the least time of one call, on tensor cores or on CUDA cores.

    mma_rows: rows of a tile that only the group fills, as in decode. Tensor cores compute whole
    tiles, so the group is rounded up to a multiple of mma_rows. None: many tokens fill the tiles.
    bytes_per_s: a bandwidth in place of the vendor's peak, such as the rate of a measured copy.
    Raises: ValueError if mma_rows is not None or one of MMA_ROWS, or bytes_per_s is not positive.

    >>> from labkernels import Decode, gpu
    >>> decode = Decode.uniform(64, 8192, q_heads=32, kv_heads=8)
    >>> floor = least_time(decode, gpu("h200"), tensor_cores=True, mma_rows=16)
    >>> floor.bound, f"{floor.time_s * 1e6:.0f} us"
    ('memory', '448 us')
    """
    if mma_rows is not None and mma_rows not in MMA_ROWS:
        allowed = ", ".join(map(str, MMA_ROWS))
        raise ValueError(f"mma_rows = {mma_rows!r}, allowed: None, {allowed}")
    bandwidth = gpu.dram_bytes_per_s if bytes_per_s is None else bytes_per_s
    if not require_finite("bytes_per_s", bandwidth) > 0:
        raise ValueError(f"bytes_per_s = {bytes_per_s!r}, allowed: a number > 0")
    rate = gpu.tensor_fp16_flops if tensor_cores else gpu.fp32_flops
    tile_rows = mma_rows if tensor_cores and mma_rows else 1
    padded_group = -(-workload.group // tile_rows) * tile_rows
    exps_per_s = gpu.sm_count * gpu.mufu_per_clk_per_sm * gpu.boost_clock_hz
    times = {
        "memory": workload.bytes / bandwidth,
        "math": workload.flops // workload.group * padded_group / rate,
        "exp": workload.exps / exps_per_s,
    }
    bound = max(times, key=times.__getitem__)
    return Floor(times["memory"], times["math"], times["exp"], bound, times[bound])


def issue_time(workload: Workload, gpu: Gpu, *, slots_per_fma: float, blocks: int = 0) -> float:
    """Return the seconds in which schedulers issue a workload's FMAs and the other instructions.

    slots_per_fma: issue slots, used or lost, per FMA. blocks: of the grid, of equal work, all on
    the GPU at once; the busiest SM then sets the time. 0: work is spread evenly.
    Raises: ValueError if slots_per_fma is not positive, or blocks is not an integer >= 0.

    >>> from labkernels import Decode, gpu
    >>> decode = Decode.uniform(64, 8192, q_heads=32, kv_heads=8)
    >>> f"{issue_time(decode, gpu('h200'), slots_per_fma=1.5) * 1e6:.0f} us"
    '193 us'
    """
    if not require_finite("slots_per_fma", slots_per_fma) > 0:
        raise ValueError(f"slots_per_fma = {slots_per_fma!r}, allowed: a number > 0")
    require_int("blocks", blocks)
    even = workload.flops / 2 * slots_per_fma / (gpu.sm_count * LANES * gpu.boost_clock_hz)
    busiest = -(-blocks // gpu.sm_count) * gpu.sm_count
    return even * busiest / blocks if blocks else even
