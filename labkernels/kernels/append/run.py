"""Prepares an append: which rows a warp moves, the launch, and the plan behind it."""

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from labkernels.hardware import Gpu
from labkernels.kernels import cuda_run
from labkernels.kernels.paged_kv import PagedKV
from labkernels.kernels.spec import Instance, KernelSpec
from labkernels.kernels.step import Plan, blocks_per_sm

PARAMS = "append::Params"
CHUNK_BYTES = 16
SIDES = 2  # K and V lie along grid y


class Side(ctypes.Structure):
    """append::Side of kernel.cuh: strides in elements."""

    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("pool", ctypes.c_void_p),
        ("row_stride", ctypes.c_longlong),
        ("row_stride_head", ctypes.c_longlong),
        ("stride_page", ctypes.c_longlong),
        ("stride_token", ctypes.c_longlong),
        ("stride_head", ctypes.c_longlong),
        ("head_chunks", ctypes.c_longlong),
    )


class Params(ctypes.Structure):
    """append::Params of kernel.cuh, by field."""

    _fields_ = (
        ("sides", Side * SIDES),
        ("page_table", ctypes.c_void_p),
        ("cu_seqlens", ctypes.c_void_p),
        ("kv_len", ctypes.c_void_p),
        ("ticket", ctypes.c_void_p),
        ("page_table_stride", ctypes.c_int),
        ("max_pages", ctypes.c_int),
        ("page_size", ctypes.c_int),
        ("kv_heads", ctypes.c_int),
        ("batch", ctypes.c_int),
        ("keys_per_warp", ctypes.c_int),
        ("blocks", ctypes.c_int),
    )


@dataclass(frozen=True, eq=False)
class AppendRequest:
    """An append that has been checked: tensors, the variant to run, and the GPU to plan for."""

    spec: KernelSpec
    instance: Instance
    cache: PagedKV
    k_new: torch.Tensor
    v_new: torch.Tensor
    cu_seqlens: torch.Tensor
    gpu: Gpu
    checks: bool


@dataclass(frozen=True, eq=False)
class AppendStep:
    """An append that can run again: each run appends the rows that the tensors then hold.

    run() enqueues it on the current stream (or finishes it, on a CPU), checks nothing, allocates
    nothing, and can be captured in a CUDA graph.
    """

    run: Callable[[], None]
    plan: Plan


def prepare(request: AppendRequest) -> AppendStep:
    """Plan an append from its shapes, and fix its launch."""
    variant = cuda_run.variant(request.spec, request.instance, PARAMS)
    per_sm = blocks_per_sm(request.instance, variant.smem_bytes, request.gpu)
    keys = _keys_per_warp(request, slots=per_sm * request.gpu.sm_count)
    blocks = math.ceil(len(request.k_new) / (keys * request.instance.tile.warps))
    plan = _plan(request, variant, keys=keys, blocks=SIDES * blocks, per_sm=per_sm)
    if blocks == 0:
        return AppendStep(lambda: None, plan)
    ticket = torch.zeros(1, dtype=torch.int32, device=request.k_new.device)
    launch = cuda_run.Launch(
        variant=variant,
        gpu=request.gpu,
        device=request.k_new.device,
        grid=(blocks, SIDES, 1),
        params=_params(request, ticket, keys=keys, blocks=plan.blocks),
        tensors=_tensors(request) | {"ticket": ticket},
        written=frozenset(("k_pool", "v_pool", "kv_len", "ticket")),
        checks=request.checks,
    )
    return AppendStep(launch.prepare(), plan)


def _keys_per_warp(request: AppendRequest, *, slots: int) -> int:
    """As few keys a warp as fill the GPU once, and at most one a lane."""
    tile = request.instance.tile
    return min(tile.keys, max(1, math.ceil(SIDES * len(request.k_new) / (slots * tile.warps))))


def _plan(
    request: AppendRequest, variant: cuda_run.Variant, *, keys: int, blocks: int, per_sm: int
) -> Plan:
    gpu, device = request.gpu, request.k_new.device
    return Plan(
        kernel=request.spec.name,
        tile=request.instance.tile.label,
        policy=request.instance.policy.label,
        machine=gpu.name if device.type == "cuda" else f"CPU build, {gpu.arch} arithmetic",
        splits=1,
        keys_per_split=keys * request.instance.tile.warps,
        blocks=blocks,
        blocks_per_sm=per_sm,
        waves=blocks / (per_sm * gpu.sm_count),
        smem_bytes=variant.smem_bytes,
        registers=cuda_run.registers(variant, gpu, device),
        launches=min(blocks, 1),
        batch_invariant=True,
    )


def _tensors(request: AppendRequest) -> dict[str, torch.Tensor]:
    cache = request.cache
    return {
        "k_new": request.k_new,
        "v_new": request.v_new,
        "k_pool": cache.k,
        "v_pool": cache.v,
        "page_table": cache.page_table,
        "cu_seqlens": request.cu_seqlens,
        "kv_len": cache.kv_len,
    }


def _params(request: AppendRequest, ticket: torch.Tensor, *, keys: int, blocks: int) -> Params:
    cache = request.cache
    return Params(
        sides=(Side * SIDES)(_side(request.k_new, cache.k), _side(request.v_new, cache.v)),
        page_table=cache.page_table.data_ptr(),
        cu_seqlens=request.cu_seqlens.data_ptr(),
        kv_len=cache.kv_len.data_ptr(),
        ticket=ticket.data_ptr(),
        page_table_stride=cache.page_table.stride(0),
        max_pages=cache.page_table.shape[1],
        page_size=cache.page_size,
        kv_heads=cache.kv_heads,
        batch=cache.batch,
        keys_per_warp=keys,
        blocks=blocks,
    )


def _side(rows: torch.Tensor, pool: torch.Tensor) -> Side:
    head_chunks = pool.shape[3] * pool.element_size() // CHUNK_BYTES
    return Side(
        rows.data_ptr(), pool.data_ptr(), *rows.stride()[:2], *pool.stride()[:3], head_chunks
    )
