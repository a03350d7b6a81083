"""Runs a CUDA prefill kernel in one launch, on the GPU or as its CPU build."""

from collections.abc import Mapping

import torch

from labkernels.kernels import cuda_run
from labkernels.kernels.cuda_run import LOG2_E, Launch
from labkernels.kernels.paged_kv import PagedKV, division
from labkernels.kernels.prefill_params import (
    COUNTS,
    OUTPUTS,
    PARTIALS,
    POINTERS,
    STRIDES,
    PrefillParams,
)
from labkernels.kernels.prefill_plan import Cut
from labkernels.kernels.prefill_step import (
    PrefillRequest,
    cut,
    make_plan,
    partial_states,
    work_list,
)
from labkernels.kernels.step import Step, blocks_per_sm

PARAMS = "lab::PrefillParams"


def prepare(request: PrefillRequest) -> Step:
    """Compile, list the blocks, allocate the splits' partial States, and fix the launch.

    Raises: ValueError if keys_per_split makes more splits than partial States are made for, the
    pools of K and V differ in strides though they agree in channels, or a pool ends out of reach.
    """
    if isinstance(request.kv, PagedKV):
        request.kv.require_reach()
        if request.kv.head_dim == request.kv.head_dim_v:
            request.kv.require_twin_pools()
    variant = cuda_run.variant(request.spec, request.instance, PARAMS)
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
    listed = tensors(request, work_list(request, made)) | partials
    launch = Launch(
        variant=variant,
        gpu=request.gpu,
        device=request.q.device,
        grid=(plan.blocks, 1, 1),
        params=params(request, made, listed),
        tensors=listed,
        written=frozenset((*OUTPUTS, *partials)),
        checks=request.checks,
    )
    return Step(launch.prepare(), request.out, request.lse2, plan)


def _nothing() -> None:
    """A prefill without a query token."""


def tensors(request: PrefillRequest, work: torch.Tensor) -> dict[str, torch.Tensor]:
    """The launch's tensors, as PrefillParams names them."""
    kv = request.kv
    listed = {"q": request.q, "k": kv.k, "v": kv.v, "cu_seqlens_q": request.cu_seqlens_q}
    if isinstance(kv, PagedKV):
        listed |= {"page_table": kv.page_table, "kv_len": kv.kv_len}
    else:
        listed["cu_seqlens_k"] = kv.cu_seqlens
    return listed | {
        "work": work,
        "out": request.out,
        "lse2": request.lse2,
    }


def params(request: PrefillRequest, made: Cut, listed: Mapping[str, torch.Tensor]) -> PrefillParams:
    """The kernels' common parameter."""
    kv, paged = request.kv, isinstance(request.kv, PagedKV)
    pointers = {
        name: listed[name].data_ptr() if name in listed else None
        for name in (*POINTERS, *OUTPUTS, *PARTIALS)
    }
    page_strides = [x.stride()[:3] if paged else (0, *x.stride()[:2]) for x in (kv.k, kv.v)]
    strides = (*request.q.stride()[:2], *page_strides[0], *page_strides[1])
    pages = _pages(kv) if paged else (0, 0, 1, 0, 0)
    heads = (request.q.shape[1], kv.kv_heads, request.group, *division(request.group))
    splits = (made.keys_per_split, made.splits)
    counts = (*pages, *heads, *splits, int(request.causal))
    return PrefillParams(
        **pointers,
        **dict(zip(STRIDES, strides, strict=True)),
        **dict(zip(COUNTS, counts, strict=True)),
        scale_log2=request.scale * LOG2_E,
    )


def _pages(kv: PagedKV) -> tuple[int, ...]:
    table = kv.page_table
    return table.stride(0), table.shape[1], kv.page_size, *kv.page_division
