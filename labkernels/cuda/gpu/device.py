"""The GPU of this machine as its driver reports it, compared with the hardware table."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from dataclasses import dataclass

from labkernels import hardware
from labkernels.cuda.gpu import driver
from labkernels.hardware import ARCH_MIN

# Fields of LiveGpu and the driver's number for each, with the factor to the field's unit.
_ATTRIBUTES = {
    "sm_count": (16, 1),
    "registers_per_sm": (82, 1),
    "smem_per_sm_bytes": (81, 1),
    "smem_per_block_max_bytes": (driver.SMEM_PER_BLOCK_OPTIN_BYTES, 1),
    "smem_reserved_per_block_bytes": (111, 1),
    "threads_per_block_max": (1, 1),
    "threads_per_sm_max": (39, 1),
    "blocks_per_sm_max": (106, 1),
    "l2_bytes": (38, 1),
    "boost_clock_hz": (13, 1000),
}


@dataclass(frozen=True)
class LiveGpu:
    """One GPU of this machine; fields of hardware.Gpu have the same names and units here."""

    index: int
    name: str
    arch: str
    sm_count: int
    registers_per_sm: int
    smem_per_sm_bytes: int
    smem_per_block_max_bytes: int
    smem_reserved_per_block_bytes: int
    threads_per_block_max: int
    threads_per_sm_max: int
    blocks_per_sm_max: int
    l2_bytes: int
    boost_clock_hz: int
    dram_bytes: int
    cuda_version: str


def available(index: int = 0) -> str | None:
    """Return None where there is a GPU that the lab's CUDA kernels run on, else the reason."""
    try:
        gpu = _read(index)
    except driver.DriverError as error:
        return f"no NVIDIA GPU can be used: {error}"
    return unsupported(gpu)


def live(index: int = 0) -> LiveGpu | None:
    """Return what the driver reports of a GPU, or None if there is no such GPU."""
    try:
        return _read(index)
    except driver.DriverError:
        return None


def unsupported(gpu: LiveGpu) -> str | None:
    """Return None if the lab's CUDA kernels run on this GPU, else the reason."""
    if _number(gpu.arch) >= ARCH_MIN:
        return None
    return f"{gpu.name} is {gpu.arch}; the kernels need sm_{ARCH_MIN} or newer: use the CPU build"


@functools.cache
def matching_gpu(gpu: LiveGpu) -> hardware.Gpu | None:
    """Return the table's entry for this GPU: same architecture, same SM count, key in the name."""
    name = "".join(character for character in gpu.name.lower() if character.isalnum())
    for key, entry in hardware.GPUS.items():
        if key in name and (entry.arch, entry.sm_count) == (gpu.arch, gpu.sm_count):
            return entry
    return None


def planning_gpu(index: int = 0) -> hardware.Gpu:
    """Return the entry to plan launches with: the table's, or its nearest with this GPU's numbers.

    Raises: ValueError if there is no such GPU, or it is too old for the CUDA kernels.
    """
    gpu = live(index)
    reason = available(index) if gpu is None else unsupported(gpu)
    if gpu is None or reason is not None:
        raise ValueError(f"index = {index}, allowed: a GPU of sm_{ARCH_MIN} or newer; {reason}")
    entry = matching_gpu(gpu)
    if entry is not None:
        return entry
    # The nearest entry is a GPU of the same architecture, else of the newest older one. Its rates
    # and granularities are used.
    older = [known for known in hardware.GPUS.values() if _number(known.arch) <= _number(gpu.arch)]
    nearest = max(older, key=lambda known: _number(known.arch))
    numbers = {field: getattr(gpu, field) for field in _ATTRIBUTES}
    numbers |= {"warps_per_sm_max": gpu.threads_per_sm_max // 32, "dram_bytes": gpu.dram_bytes}
    return dataclasses.replace(nearest, name=gpu.name, arch=gpu.arch, **numbers)


def _number(arch: str) -> int:
    return int(arch.removeprefix("sm_"))


def compare(entry: hardware.Gpu, gpu: LiveGpu) -> list[tuple[str, object, object]]:
    """List the fields where the table and the driver differ: (field, table's, driver's).

    A GPU reserves some memory, so dram_bytes counts as different only beyond a tenth.
    """
    fields = ("arch", *_ATTRIBUTES)
    pairs = [(field, getattr(entry, field), getattr(gpu, field)) for field in fields]
    differing = [pair for pair in pairs if pair[1] != pair[2]]
    if not abs(gpu.dram_bytes - entry.dram_bytes) <= 0.1 * entry.dram_bytes:
        differing.append(("dram_bytes", entry.dram_bytes, gpu.dram_bytes))
    return differing


@functools.cache
def _read(index: int) -> LiveGpu:
    device, count = ctypes.c_int(), ctypes.c_int()
    driver.call("cuDeviceGetCount", ctypes.byref(count))
    if not 0 <= index < count.value:
        raise driver.DriverError(-1, f"there is no GPU {index}: the driver shows {count.value}")
    driver.call("cuDeviceGet", ctypes.byref(device), index)
    name = ctypes.create_string_buffer(256)
    driver.call("cuDeviceGetName", name, len(name), device)
    dram_bytes, version = ctypes.c_size_t(), ctypes.c_int()
    driver.call("cuDeviceTotalMem_v2", ctypes.byref(dram_bytes), device)
    driver.call("cuDriverGetVersion", ctypes.byref(version))
    major = driver.device_attribute(driver.COMPUTE_CAPABILITY_MAJOR, device.value)
    minor = driver.device_attribute(driver.COMPUTE_CAPABILITY_MINOR, device.value)
    numbers = {
        field: driver.device_attribute(attribute, device.value) * factor
        for field, (attribute, factor) in _ATTRIBUTES.items()
    }
    return LiveGpu(
        index=index,
        name=name.value.decode(),
        arch=f"sm_{major}{minor}",
        dram_bytes=dram_bytes.value,
        cuda_version=f"{version.value // 1000}.{version.value % 1000 // 10}",
        **numbers,
    )
