"""Runs a CUDA decode kernel in one launch, on the GPU or as its CPU build."""

import functools
import math
from dataclasses import dataclass

import torch

from labkernels.kernels.decode_params import COUNTS, PARTIALS, POINTERS, STRIDES, DecodeParams
from labkernels.kernels.decode_plan import DecodePlan, blocks_per_sm
from labkernels.kernels.decode_step import (
    DecodeRequest,
    DecodeStep,
    cut,
    make_plan,
    partial_states,
)

LOG2_E = math.log2(math.e)
PARAMS = "lab::DecodeParams"


@dataclass(frozen=True)
class _Launch:
    header: str
    instance: str
    threads: int
    smem_bytes: int

    @property
    def defines(self) -> dict[str, int]:
        return {"LAB_SMEM_BYTES": self.smem_bytes}


def plan_decode(request: DecodeRequest) -> DecodePlan:
    """Cut the decode into blocks, from shapes alone."""
    launch = _launch(request)
    per_sm = blocks_per_sm(request.instance, launch.smem_bytes, request.gpu)
    keys, splits = cut(
        request,
        slots=per_sm * request.gpu.sm_count,
        step=request.instance.tile.warps * request.instance.tile.keys,
    )
    registers = None
    if request.on_gpu:
        arch, device = request.gpu.compile_arch, request.q.device.index
        registers = _gpu_kernel(launch, arch, device).attributes.registers
    return make_plan(
        request,
        keys_per_split=keys,
        splits=splits,
        blocks_per_sm=per_sm,
        smem_bytes=launch.smem_bytes,
        registers=registers,
        cpu=f"CPU build, {request.gpu.arch} arithmetic",
    )


def prepare(request: DecodeRequest) -> DecodeStep:
    """Compile, allocate the splits' partial States, and fix the launch of a decode.

    Raises: ValueError if keys_per_split makes more splits than a grid can have.
    """
    plan = plan_decode(request)
    partials = partial_states(request, plan.splits)
    params = _params(request, plan, partials)
    grid = (request.cache.kv_heads * request.head_slices, plan.splits, request.cache.batch)
    make = _on_gpu if request.on_gpu else _on_cpu
    run = make(request, grid, params, partials)
    return DecodeStep(run, request.out, request.lse2, plan)


def _launch(request: DecodeRequest) -> _Launch:
    spec, instance = request.spec, request.instance
    return _Launch(
        header=spec.header,
        instance=spec.template(instance),
        threads=instance.tile.threads,
        smem_bytes=spec.smem(instance).total,
    )


def _params(
    request: DecodeRequest, plan: DecodePlan, partials: dict[str, torch.Tensor]
) -> DecodeParams:
    q, cache = request.q, request.cache
    tensors = _tensors(request)
    values = {name: tensors[name].data_ptr() for name in POINTERS}
    values |= {name: partials[name].data_ptr() if partials else None for name in PARTIALS}
    values |= dict(zip(STRIDES, (*q.stride()[:2], *cache.k.stride()[:3]), strict=True))
    counts = (
        cache.page_table.stride(0),
        cache.page_table.shape[1],
        cache.page_size,
        q.shape[1],
        cache.kv_heads,
        request.group,
        request.head_slices,
        plan.keys_per_split,
        plan.splits,
    )
    values |= dict(zip(COUNTS, counts, strict=True))
    return DecodeParams(**values, scale_log2=request.scale * LOG2_E)


def _tensors(request: DecodeRequest) -> dict[str, torch.Tensor]:
    cache = request.cache
    tensors = (request.q, cache.k, cache.v, cache.page_table, cache.kv_len)
    return dict(zip(POINTERS, (*tensors, request.out, request.lse2), strict=True))


@functools.cache
def _gpu_kernel(launch: _Launch, arch: str, device: int):
    from labkernels.cuda import compile as nvrtc
    from labkernels.cuda.launch import load

    compiled = nvrtc.compile_kernel(
        launch.header, instance=launch.instance, defines=launch.defines, arch=arch
    )
    return load(compiled, device=device)


@dataclass(frozen=True, eq=False)
class _GpuRun:
    """Launches on the current stream; `owned` are the tensors whose addresses the launch holds."""

    plan: object
    device: torch.device
    owned: tuple

    def __call__(self) -> None:
        self.plan.run(torch.cuda.current_stream(self.device).cuda_stream)


@dataclass(frozen=True, eq=False)
class _CpuRun:
    """Runs the CPU build; `owned` are the tensors whose addresses the launch holds."""

    kernel: object
    arguments: dict[str, object]
    owned: tuple

    def __call__(self) -> None:
        self.kernel.launch(**self.arguments)


def _on_gpu(
    request: DecodeRequest,
    grid: tuple[int, int, int],
    params: DecodeParams,
    partials: dict[str, torch.Tensor],
) -> _GpuRun:
    launch, device = _launch(request), request.q.device
    kernel = _gpu_kernel(launch, request.gpu.compile_arch, device.index)
    plan = kernel.plan(
        grid=grid, threads=launch.threads, smem_bytes=launch.smem_bytes, params=params
    )
    return _GpuRun(plan, device, (request, partials))


@functools.cache
def _cpu_kernel(launch: _Launch, arch: str, checks: bool):
    from labkernels.cuda import host

    return host.build(
        launch.header,
        instance=launch.instance,
        params=PARAMS,
        defines=launch.defines,
        arch=arch,
        checks=checks,
    )


def _on_cpu(
    request: DecodeRequest,
    grid: tuple[int, int, int],
    params: DecodeParams,
    partials: dict[str, torch.Tensor],
) -> _CpuRun:
    from labkernels.cuda.host import GlobalRange

    launch = _launch(request)
    writable = {"out", "lse2", *partials}
    ranges = [
        GlobalRange(name, tensor.data_ptr(), _span_bytes(tensor), name in writable)
        for name, tensor in (_tensors(request) | partials).items()
    ]
    arguments = {
        "grid": grid,
        "threads": launch.threads,
        "smem_bytes": launch.smem_bytes,
        "params": params,
        "ranges": ranges,
    }
    kernel = _cpu_kernel(launch, request.gpu.arch, request.checks)
    return _CpuRun(kernel, arguments, (request, partials))


def _span_bytes(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to its last, gaps included."""
    if tensor.numel() == 0:
        return 0
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()
