"""Compiles a CUDA kernel and launches it, on the GPU or as its CPU build."""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from labkernels.hardware import Gpu
from labkernels.kernels.spec import Instance, KernelSpec

LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class Variant:
    """What a compiler is asked for, and the block that the kernel is launched with.

    params: the C++ name of its one parameter. include_dirs: searched before the lab's own.
    """

    header: str
    instance: str
    params: str
    threads: int
    smem_bytes: int
    include_dirs: tuple[Path, ...] = ()

    @property
    def defines(self) -> dict[str, int]:
        """The ledger's bytes, which the source holds against its own."""
        return {"LAB_SMEM_BYTES": self.smem_bytes}


def variant(spec: KernelSpec, instance: Instance, params: str) -> Variant:
    """The variant of an instance."""
    return Variant(
        header=spec.header,
        instance=spec.template(instance),
        params=params,
        threads=instance.tile.threads,
        smem_bytes=spec.smem(instance).total,
        include_dirs=include_dirs(spec),
    )


def include_dirs(spec: KernelSpec) -> tuple[Path, ...]:
    """Where a kernel's files are searched before the lab's own."""
    return () if spec.overlay is None else (spec.overlay,)


@dataclass(frozen=True, eq=False)
class Launch:
    """A launch with all its tensors, by name, and the names of those that it writes.

    On a CPU, `gpu` is the GPU whose tensor-core arithmetic the CPU build follows. early: blocks may
    start while the launch before ends, and wait themselves (`wait_previous_launch`).
    """

    variant: Variant
    gpu: Gpu
    device: torch.device
    grid: tuple[int, int, int]
    params: object
    tensors: Mapping[str, torch.Tensor]
    written: frozenset[str]
    checks: bool
    early: bool = False

    def prepare(self) -> Callable[[], None]:
        """Compile, load, and return what launches it; that owns the launch's tensors."""
        return self._on_gpu() if self.device.type == "cuda" else self._on_cpu()

    def _on_gpu(self) -> "_GpuRun":
        kernel = gpu_kernel(self.variant, self.gpu.compile_arch, self.device.index)
        plan = kernel.plan(
            grid=self.grid,
            threads=self.variant.threads,
            smem_bytes=self.variant.smem_bytes,
            params=self.params,
            early=self.early,
        )
        return _GpuRun(plan, self.device, self)

    def _on_cpu(self) -> "_CpuRun":
        from labkernels.cuda.host import GlobalRange

        ranges = [
            GlobalRange(name, tensor.data_ptr(), span_bytes(tensor), name in self.written)
            for name, tensor in self.tensors.items()
        ]
        arguments = {
            "grid": self.grid,
            "threads": self.variant.threads,
            "smem_bytes": self.variant.smem_bytes,
            "params": self.params,
            "ranges": ranges,
        }
        return _CpuRun(_cpu_kernel(self.variant, self.gpu.arch, self.checks), arguments, self)


def registers(variant: Variant, gpu: Gpu, device: torch.device) -> int | None:
    """Registers a thread by the driver, None where no GPU runs it."""
    if device.type != "cuda":
        return None
    return gpu_kernel(variant, gpu.compile_arch, device.index).attributes.registers


@functools.cache
def gpu_kernel(variant: Variant, arch: str, device: int):
    """The variant loaded on a device."""
    from labkernels.cuda import compile as nvrtc
    from labkernels.cuda.launch import load

    compiled = nvrtc.compile_kernel(
        variant.header,
        instance=variant.instance,
        defines=variant.defines,
        arch=arch,
        include_dirs=variant.include_dirs,
    )
    return load(compiled, device=device)


@functools.cache
def _cpu_kernel(variant: Variant, arch: str, checks: bool):
    from labkernels.cuda import host

    return host.build(
        variant.header,
        instance=variant.instance,
        params=variant.params,
        defines=variant.defines,
        arch=arch,
        checks=checks,
        include_dirs=variant.include_dirs,
    )


@dataclass(frozen=True, eq=False)
class _GpuRun:
    """Launches on the current stream; `owner` holds the tensors whose addresses the launch has."""

    plan: object
    device: torch.device
    owner: Launch

    def __call__(self) -> None:
        self.plan.run(torch.cuda.current_stream(self.device).cuda_stream)


@dataclass(frozen=True, eq=False)
class _CpuRun:
    """Runs the CPU build; `owner` holds the tensors whose addresses the launch has."""

    kernel: object
    arguments: dict[str, object]
    owner: Launch

    def __call__(self) -> None:
        self.kernel.launch(**self.arguments)


def span_bytes(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to its last, gaps included."""
    if tensor.numel() == 0:
        return 0
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()
