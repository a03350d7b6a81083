"""Runs a CUDA decode kernel, on the GPU or as its CPU build: one launch, or two if keys are split."""

import functools
import math
from dataclasses import dataclass

import torch

from labkernels.kernels.decode_ledger import cpp_policy
from labkernels.kernels.decode_params import COUNTS, PARTIALS, POINTERS, STRIDES, DecodeParams
from labkernels.kernels.decode_plan import MAX_SPLITS, DecodePlan, blocks_per_sm
from labkernels.kernels.decode_step import (
    DecodeRequest,
    DecodeStep,
    cut,
    make_plan,
    partial_states,
)
from labkernels.kernels.spec import Instance

LOG2_E = math.log2(math.e)
MERGE_HEADER = "lab/merge_splits.cuh"
MERGE_SMEM_BYTES = MAX_SPLITS * 4
PARAMS = "lab::DecodeParams"


@dataclass(frozen=True)
class _Launch:
    header: str
    instance: str
    grid: tuple[int, int, int]
    threads: int
    smem_bytes: int
    early: bool

    @property
    def defines(self) -> dict[str, int]:
        return {"LAB_SMEM_BYTES": self.smem_bytes}


def plan_decode(request: DecodeRequest) -> DecodePlan:
    """Cut the decode into blocks, from shapes alone."""
    smem_bytes = request.spec.smem(request.instance).total
    per_sm = blocks_per_sm(request.instance, smem_bytes, request.gpu)
    keys, splits = cut(
        request,
        slots=per_sm * request.gpu.sm_count,
        step=request.instance.tile.warps * request.instance.tile.keys,
    )
    registers = None
    if request.on_gpu:
        registers = _gpu_kernel(_decode_launch(request, splits), request.gpu.compile_arch).registers
    return make_plan(
        request,
        keys_per_split=keys,
        splits=splits,
        blocks_per_sm=per_sm,
        smem_bytes=smem_bytes,
        registers=registers,
        cpu=f"CPU build, {request.gpu.arch} arithmetic",
    )


def prepare(request: DecodeRequest) -> DecodeStep:
    """Compile, allocate the splits' partial States, and fix the launches of a decode.

    Raises: ValueError if keys_per_split makes more splits than the merge can take.
    """
    plan = plan_decode(request)
    partials = partial_states(request, plan.splits)
    params = _params(request, plan, partials)
    launches = [_decode_launch(request, plan.splits)]
    if plan.splits > 1:
        launches.append(_merge_launch(request))
    if request.on_gpu:
        run = _gpu_runner(request, launches, params, partials)
    else:
        run = _cpu_runner(request, launches, params, partials)
    return DecodeStep(run, request.out, request.lse2, plan)


def _decode_launch(request: DecodeRequest, splits: int) -> _Launch:
    instance: Instance = request.instance
    grid = (request.cache.kv_heads * request.head_slices, splits, request.cache.batch)
    return _Launch(
        header=request.spec.header,
        instance=request.spec.template(instance),
        grid=grid,
        threads=instance.tile.threads,
        smem_bytes=request.spec.smem(instance).total,
        early=False,
    )


def _merge_launch(request: DecodeRequest) -> _Launch:
    head_dim = request.instance.head_dim
    return _Launch(
        header=MERGE_HEADER,
        instance=f"lab::merge_splits<{cpp_policy(request.instance)}, {head_dim}>",
        grid=(request.q.shape[1], request.cache.batch, 1),
        threads=head_dim,
        smem_bytes=MERGE_SMEM_BYTES,
        early=True,
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
        cache.page_size,
        q.shape[1],
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


@dataclass(frozen=True)
class _GpuKernel:
    loaded: object
    registers: int


@functools.cache
def _gpu_kernel(launch: _Launch, arch: str) -> _GpuKernel:
    from labkernels.cuda import compile as nvrtc
    from labkernels.cuda.launch import load

    compiled = nvrtc.compile_kernel(
        launch.header, instance=launch.instance, defines=launch.defines, arch=arch
    )
    return _GpuKernel(load(compiled), compiled.report.registers)


def _gpu_runner(request, launches, params, partials):
    plans = [
        _gpu_kernel(launch, request.gpu.compile_arch).loaded.plan(
            grid=launch.grid,
            threads=launch.threads,
            smem_bytes=launch.smem_bytes,
            params=params,
            early=launch.early,
        )
        for launch in launches
    ]
    device, keep = request.q.device, (request, partials)

    def run() -> None:
        assert keep  # the tensors live as long as the step that holds their addresses
        stream = torch.cuda.current_stream(device).cuda_stream
        for plan in plans:
            plan.run(stream)

    return run


@functools.cache
def _cpu_kernel(header: str, instance: str, smem_bytes: int, arch: str, checks: bool):
    from labkernels.cuda import host

    defines = {"LAB_SMEM_BYTES": smem_bytes}
    return host.build(
        header, instance=instance, params=PARAMS, defines=defines, arch=arch, checks=checks
    )


def _cpu_runner(request, launches, params, partials):
    from labkernels.cuda.host import GlobalRange

    writable = {"out", "lse2", *partials}
    ranges = [
        GlobalRange(name, tensor.data_ptr(), _span_bytes(tensor), name in writable)
        for name, tensor in (_tensors(request) | partials).items()
    ]
    kernels = [
        _cpu_kernel(
            launch.header, launch.instance, launch.smem_bytes, request.gpu.arch, request.checks
        )
        for launch in launches
    ]
    keep = (request, partials)

    def run() -> None:
        assert keep  # the tensors live as long as the step that holds their addresses
        for kernel, launch in zip(kernels, launches, strict=True):
            kernel.launch(
                grid=launch.grid,
                threads=launch.threads,
                smem_bytes=launch.smem_bytes,
                params=params,
                ranges=ranges,
            )

    return run


def _span_bytes(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to its last, gaps included."""
    if tensor.numel() == 0:
        return 0
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()
