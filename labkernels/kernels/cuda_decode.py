"""Runs a CUDA decode kernel in one launch, on the GPU or as its CPU build."""

import torch

from labkernels.kernels import cuda_run
from labkernels.kernels.cuda_run import LOG2_E, Launch, Variant
from labkernels.kernels.decode_params import COUNTS, PARTIALS, POINTERS, STRIDES, DecodeParams
from labkernels.kernels.decode_step import DecodeRequest, cut, make_plan, partial_states
from labkernels.kernels.step import Plan, Step, blocks_per_sm

PARAMS = "lab::DecodeParams"


def plan_decode(request: DecodeRequest) -> Plan:
    """Cut the decode into blocks, from shapes alone."""
    variant = _variant(request)
    per_sm = blocks_per_sm(request.instance, variant.smem_bytes, request.gpu)
    keys, splits = cut(
        request,
        slots=per_sm * request.gpu.sm_count,
        step=request.instance.tile.warps * request.instance.tile.keys,
    )
    return make_plan(
        request,
        keys_per_split=keys,
        splits=splits,
        blocks_per_sm=per_sm,
        smem_bytes=variant.smem_bytes,
        registers=cuda_run.registers(variant, request.gpu, request.q.device),
        cpu=f"CPU build, {request.gpu.arch} arithmetic",
    )


def prepare(request: DecodeRequest) -> Step:
    """Compile, allocate the splits' partial States, and fix the launch of a decode.

    Raises: ValueError if keys_per_split makes more splits than a grid can have.
    """
    plan = plan_decode(request)
    partials = partial_states(request, plan.splits)
    launch = Launch(
        variant=_variant(request),
        gpu=request.gpu,
        device=request.q.device,
        grid=(request.cache.kv_heads * request.head_slices, plan.splits, request.cache.batch),
        params=_params(request, plan, partials),
        tensors=_tensors(request) | partials,
        written=frozenset(("out", "lse2", *partials)),
        checks=request.checks,
    )
    return Step(launch.prepare(), request.out, request.lse2, plan)


def _variant(request: DecodeRequest) -> Variant:
    return cuda_run.variant(request.spec, request.instance, PARAMS)


def _params(request: DecodeRequest, plan: Plan, partials: dict[str, torch.Tensor]) -> DecodeParams:
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
