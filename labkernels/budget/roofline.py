"""The least time that a workload can take on a GPU, and what sets it."""

from dataclasses import dataclass

from labkernels.hardware import Gpu
from labkernels.units import require_finite
from labkernels.workload import Decode, MlaDecode

MMA_ROWS = (8, 16, 32, 64)  # of a tile, beside the keys on the other side of a product


@dataclass(frozen=True)
class Floor:
    """The times of a workload's memory traffic, products and exponentials, each alone at its peak.

    Units: seconds. They overlap at best, so that time_s is the largest, named by bound.
    """

    memory_s: float
    math_s: float
    exp_s: float
    bound: str
    time_s: float


def decode_floor(
    workload: Decode | MlaDecode,
    gpu: Gpu,
    *,
    tensor_cores: bool,
    mma_rows: int = 16,
    bytes_per_s: float | None = None,
) -> Floor:
    """The least time of a decode step, on tensor cores or on CUDA cores.

    Tensor cores compute whole tiles, so a group of query rows counts as a multiple of mma_rows.
    The bandwidth is the vendor's peak unless bytes_per_s gives another, such as a measured copy.
    Raises: ValueError if mma_rows is not one of MMA_ROWS, or bytes_per_s is not positive.
    """
    if mma_rows not in MMA_ROWS:
        raise ValueError(f"mma_rows = {mma_rows!r}, allowed: {', '.join(map(str, MMA_ROWS))}")
    bandwidth = gpu.dram_bytes_per_s if bytes_per_s is None else bytes_per_s
    if not require_finite("bytes_per_s", bandwidth) > 0:
        raise ValueError(f"bytes_per_s = {bytes_per_s!r}, allowed: a number > 0")
    if tensor_cores:
        padded_group = -(-workload.group // mma_rows) * mma_rows
        math_s = workload.flops // workload.group * padded_group / gpu.tensor_fp16_flops
    else:
        math_s = workload.flops / gpu.fp32_flops
    exps_per_s = gpu.sm_count * gpu.mufu_per_clk_per_sm * gpu.boost_clock_hz
    times = {
        "memory": workload.bytes / bandwidth,
        "math": math_s,
        "exp": workload.exps / exps_per_s,
    }
    bound = max(times, key=times.__getitem__)
    return Floor(times["memory"], times["math"], times["exp"], bound, times[bound])
