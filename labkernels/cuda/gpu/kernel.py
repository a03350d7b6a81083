"""Compiled kernels on the GPU: loaded once, prepared once per launch, then cheap to run.

A kernel of the lab takes one structure by value; the caller owns the torch tensors.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from labkernels.cuda.compiler.nvrtc import CompiledKernel
from labkernels.cuda.gpu import driver
from labkernels.kept import Kept

STREAMS = 64  # a plan keeps its launch for this many streams
_ONE_POINTER = ctypes.c_void_p * 1
_LOADED: dict[tuple[str, bytes, int], LoadedKernel] = {}


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel in one device's memory; it stays there as long as the process.

    registers, local_bytes: per thread, by the driver; the other bytes and threads: per block.
    """

    instance: str
    device: int
    function: int
    params_bytes: int | None
    early_possible: bool
    registers: int
    static_smem_bytes: int
    local_bytes: int
    threads_max: int
    dynamic_smem_max_bytes: int

    def plan(
        self,
        *,
        grid: tuple[int, int, int],
        threads: int,
        smem_bytes: int,
        params: ctypes.Structure,
        early: bool = False,
    ) -> LaunchPlan:
        """Check and prepare a launch that can run many times.

        Raises: ValueError naming what the kernel or the device cannot do.
        """
        self._check(grid, threads, smem_bytes)
        n_bytes = ctypes.sizeof(params)
        if self.params_bytes not in (None, n_bytes):
            raise ValueError(
                f"params = {type(params).__name__} of {n_bytes} bytes, allowed: the "
                f"{self.params_bytes} bytes that {self.instance} takes"
            )
        return LaunchPlan(self, grid, threads, smem_bytes, params, early and self.early_possible)

    def launch(self, *, stream: int, **how: Any) -> None:
        """Launch once on a stream (torch's `current_stream().cuda_stream`), as `plan` says how."""
        self.plan(**how).run(stream)

    def _check(self, grid: tuple[int, int, int], threads: int, smem_bytes: int) -> None:
        limits = (2**31 - 1, 65535, 65535)
        if not all(1 <= n <= limit for n, limit in zip(grid, limits, strict=True)):
            raise ValueError(f"grid = {grid}, allowed: 1 to {limits} blocks")
        if not 1 <= threads <= self.threads_max:
            raise ValueError(f"threads = {threads}, allowed: 1 to {self.threads_max} per block")
        if not 0 <= smem_bytes <= self.dynamic_smem_max_bytes:
            allowed = f"0 to {self.dynamic_smem_max_bytes} bytes on this device"
            raise ValueError(f"smem_bytes = {smem_bytes}, allowed: {allowed}")


class LaunchPlan:
    """A launch that lacks only its stream, and the parameter if it is not `params`.

    The driver copies the parameter during `run`, so a caller may change its fields between runs.
    Several threads may run a plan at once. With `early`, blocks start while the previous kernel of
    the stream ends, and the kernel itself must wait (`wait_previous_launch`) before it reads what
    the previous kernel wrote.
    """

    __slots__ = ("_attribute", "_config", "_launch", "_on_stream", "_own", "kernel", "params")

    def __init__(
        self,
        kernel: LoadedKernel,
        grid: tuple[int, int, int],
        threads: int,
        smem_bytes: int,
        params: ctypes.Structure,
        early: bool,
    ) -> None:
        self.kernel, self.params = kernel, params
        self._attribute = driver.LaunchAttribute(
            id=driver.PROGRAMMATIC_STREAM_SERIALIZATION, value=1
        )
        self._config = driver.LaunchConfig(
            grid=grid,
            block=(threads, 1, 1),
            smem_bytes=smem_bytes,
            attributes=ctypes.pointer(self._attribute),
            n_attributes=int(early),
        )
        self._on_stream = Kept(STREAMS)
        self._own = arguments(params)
        self._launch = driver.library().cuLaunchKernelEx

    def run(self, stream: int, given: ctypes.Array | None = None) -> None:
        """Launch on a stream, which may be in capture for a CUDA graph.

        given: the `arguments` of another parameter of the same type.
        Raises: DriverError if the driver refuses.
        """
        config = self._on_stream.get(stream) or self._configured(stream)
        passed = (config, self.kernel.function, given or self._own, None)
        code = self._launch(*passed)
        if code in (driver.INVALID_CONTEXT, driver.INVALID_HANDLE):
            # The thread has not used CUDA yet, or last used another device.
            with driver.current(self.kernel.device):
                code = self._launch(*passed)
        if code != 0:
            driver.check(code, f"launching {self.kernel.instance}")

    def _configured(self, stream: int) -> object:
        """Return the launch on a stream, never changed later, as other threads may be using it."""
        config = driver.LaunchConfig.from_buffer_copy(self._config)
        config.stream = stream
        self._on_stream[stream] = found = ctypes.byref(config)
        return found


def arguments(params: ctypes.Structure | ctypes.Array) -> ctypes.Array:
    """Return the driver's form of a kernel's one parameter, which the caller keeps alive."""
    return _ONE_POINTER(ctypes.addressof(params))


def load(compiled: CompiledKernel, *, device: int = 0) -> LoadedKernel:
    """Load a compiled kernel on a device, once per process, before a graph is captured.

    Raises: DriverError if the machine code does not fit the device.
    """
    key = (compiled.symbol, compiled.cubin, device)
    if key not in _LOADED:
        with driver.current(device):
            _LOADED[key] = _load(compiled, device)
    return _LOADED[key]


def _load(compiled: CompiledKernel, device: int) -> LoadedKernel:
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    driver.call("cuModuleLoadData", ctypes.byref(module), compiled.cubin)
    symbol = compiled.symbol.encode()
    driver.call("cuModuleGetFunction", ctypes.byref(function), module, symbol)
    static_smem_bytes = _attribute(function, driver.STATIC_SMEM_BYTES)
    limit = driver.device_attribute(driver.SMEM_PER_BLOCK_OPTIN_BYTES, device)
    # Above 48 KiB a kernel must opt in; asking for the most, once, costs nothing. The carve-out is
    # the same for every kernel, so that an SM need not drain to change it between two of them.
    dynamic_max = limit - static_smem_bytes
    driver.call("cuFuncSetAttribute", function, driver.MAX_DYNAMIC_SMEM_BYTES, dynamic_max)
    driver.call("cuFuncSetAttribute", function, driver.SMEM_CARVEOUT_PERCENT, 100)
    return LoadedKernel(
        instance=compiled.instance,
        device=device,
        function=function.value,
        params_bytes=_params_bytes(function),
        early_possible=driver.device_attribute(driver.COMPUTE_CAPABILITY_MAJOR, device) >= 9,
        registers=_attribute(function, driver.REGISTERS),
        static_smem_bytes=static_smem_bytes,
        local_bytes=_attribute(function, driver.LOCAL_BYTES),
        threads_max=_attribute(function, driver.MAX_THREADS_PER_BLOCK),
        dynamic_smem_max_bytes=dynamic_max,
    )


def _attribute(function: ctypes.c_void_p, attribute: int) -> int:
    value = ctypes.c_int()
    driver.call("cuFuncGetAttribute", ctypes.byref(value), attribute, function)
    return value.value


def _params_bytes(function: ctypes.c_void_p) -> int | None:
    """Return the size of the kernel's one parameter; None if it has none."""
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    code = driver.library().cuFuncGetParamInfo(
        function, 0, ctypes.byref(offset), ctypes.byref(size)
    )
    return size.value if code == 0 else None
