"""Runs a CUDA MLA kernel in one launch, on the GPU or as its CPU build."""

import ctypes
from collections.abc import Callable, Mapping

import torch

from labkernels.kernels import cuda_run
from labkernels.kernels.cuda_run import LOG2_E, Launch
from labkernels.kernels.mla_params import (
    COUNTS,
    OUTPUTS,
    PARTIALS,
    POINTERS,
    STRIDES,
    MlaParams,
)
from labkernels.kernels.mla_step import MlaRequest, cut, make_plan, partial_states, work_list
from labkernels.kernels.paged_kv import division
from labkernels.kernels.prefill_plan import Cut
from labkernels.kernels.step import Step, blocks_per_sm

PARAMS = "lab::MlaParams"


MakeParams = Callable[[MlaRequest, Cut, Mapping[str, torch.Tensor]], ctypes.Structure]


def prepare(
    request: MlaRequest,
    *,
    params_type: str = PARAMS,
    make_params: MakeParams | None = None,
) -> Step:
    """Compile, list the blocks, allocate the splits' partial States, and fix the launch.

    A kernel whose one parameter is another names its C++ type and says how it is made.
    Raises: ValueError if keys_per_split makes more splits than partial States are made for.
    """
    variant = cuda_run.variant(request.spec, request.instance, params_type)
    per_sm = blocks_per_sm(request.instance, variant.smem_bytes, request.gpu)
    made = cut(request, blocks_per_sm=per_sm)
    plan = make_plan(
        request,
        made,
        blocks_per_sm=per_sm,
        smem_bytes=variant.smem_bytes,
        registers=cuda_run.registers(variant, request.gpu, request.q.device),
        cpu=f"CPU build, {request.gpu.arch} arithmetic",
    )
    if plan.blocks == 0:
        return Step(_nothing, request.out, request.lse2, plan)
    partials = partial_states(request, made)
    tensors = _tensors(request, made) | partials
    launch = Launch(
        variant=variant,
        gpu=request.gpu,
        device=request.q.device,
        grid=(plan.blocks, 1, 1),
        params=(make_params or mla_params)(request, made, tensors),
        tensors=tensors,
        written=frozenset((*OUTPUTS, *partials)),
        checks=request.checks,
    )
    return Step(launch.prepare(), request.out, request.lse2, plan)


def _nothing() -> None:
    """A decode without a query token."""


def _tensors(request: MlaRequest, made: Cut) -> dict[str, torch.Tensor]:
    kv = request.kv
    return {
        "q_nope": request.q_nope,
        "q_pe": request.q_pe,
        "ckv": kv.ckv,
        "kpe": kv.kpe,
        "cu_seqlens_q": request.cu_seqlens_q,
        "page_table": kv.page_table,
        "kv_len": kv.kv_len,
        "work": work_list(request, made),
        "out": request.out,
        "lse2": request.lse2,
    }


def mla_params(request: MlaRequest, made: Cut, tensors: Mapping[str, torch.Tensor]) -> MlaParams:
    """The kernel's parameter; tensors by name, absent ones are null."""
    kv = request.kv
    pointers = {
        name: tensors[name].data_ptr() if name in tensors else None
        for name in (*POINTERS, *OUTPUTS, *PARTIALS)
    }
    parts = (request.q_nope, request.q_pe, kv.ckv, kv.kpe)
    strides = [stride for part in parts for stride in part.stride()[:2]]
    table = (kv.page_table.stride(0), kv.page_table.shape[1], kv.page_size)
    pages, group = division(kv.page_size), division(request.group)
    heads = (request.group, kv.kv_heads, request.group)
    counts = (*table, *pages, *heads, *group, made.keys_per_split, made.splits, int(request.causal))
    return MlaParams(
        **pointers,
        **dict(zip(STRIDES, strides, strict=True)),
        **dict(zip(COUNTS, counts, strict=True)),
        scale_log2=request.scale * LOG2_E,
    )
