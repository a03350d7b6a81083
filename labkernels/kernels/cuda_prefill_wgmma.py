"""Runs prefill_wgmma: tensor maps for Q, K and V, and blocks that take items until none is left."""

import ctypes
import math

import torch

from labkernels.cuda.tensor_map import TensorMap, tensor_map
from labkernels.kernels import cuda_prefill, cuda_run, prefill_plan
from labkernels.kernels.cuda_run import Launch
from labkernels.kernels.paged_kv import PagedKV
from labkernels.kernels.prefill_params import OUTPUTS, PrefillParams
from labkernels.kernels.prefill_step import PrefillRequest, make_plan, partial_states, work_list
from labkernels.kernels.prefill_wgmma.spec import OCTET
from labkernels.kernels.ragged_kv import RaggedKV
from labkernels.kernels.step import Step, blocks_per_sm

PARAMS = "prefill_wgmma::Params"
CHANNELS = 64  # of a line: 128 bytes, what the swizzle spans
L2_SHARE = 0.5  # the rest is for Q, the output, and keys that are on their way


class PageSteps(ctypes.Structure):
    """prefill_wgmma::PageSteps."""

    _fields_ = (("page", ctypes.c_int), ("head", ctypes.c_int))


class _Fields(ctypes.Structure):
    _fields_ = (
        ("q", TensorMap),
        ("k", TensorMap),
        ("v", TensorMap),
        ("problem", PrefillParams),
        ("next_item", ctypes.c_void_p),
        ("items", ctypes.c_int),
        ("blocks", ctypes.c_int),
        ("tile_rows", ctypes.c_int),
        ("box_keys", ctypes.c_int),
        ("k_steps", PageSteps),
        ("v_steps", PageSteps),
    )


class Params(ctypes.Structure):
    """prefill_wgmma::Params, a multiple of 64 bytes as its tensor maps want it."""

    _anonymous_ = ("fields",)
    _fields_ = (("fields", _Fields), ("padding", ctypes.c_char * (-ctypes.sizeof(_Fields) % 64)))


def prepare(request: PrefillRequest) -> Step:
    """Compile, list the items, describe the tensors to the TMA, and fix the launch.

    Raises: ValueError if keys_per_split makes more splits than partial States are made for.
    """
    # a box of Q is whole tokens, each with the group's heads
    tile_rows = request.instance.rows // request.group * request.group
    box_keys = _box_keys(request)
    variant = cuda_run.variant(request.spec, request.instance, PARAMS)
    per_sm = blocks_per_sm(request.instance, variant.smem_bytes, request.gpu)
    made = prefill_plan.cut(
        request.lengths,
        request.instance.tile,
        tile_rows=tile_rows,
        cached_keys=_cached_keys(request),
        kv_heads=request.kv.kv_heads,
        group=request.group,
        slots=per_sm * request.gpu.sm_count,
        causal=request.causal,
        splits=request.splits,
        keys_per_split=request.keys_per_split,
    )
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
    blocks = min(plan.blocks, per_sm * request.gpu.sm_count)
    partials = partial_states(request, made)
    tensors = cuda_prefill.tensors(request, work_list(request, made)) | partials
    tensors["next_item"] = torch.zeros(1, dtype=torch.int32, device=request.q.device)
    params = Params()
    params.q = _map(request.q, (tile_rows // request.group, request.group, CHANNELS))
    if isinstance(request.kv, RaggedKV):
        params.k, params.v = (
            _map(x, (request.instance.tile.keys, 1, CHANNELS)) for x in (request.kv.k, request.kv.v)
        )
    elif box_keys > 0:
        params.k, params.k_steps = _pages_map(request.kv.k, box_keys)
        params.v, params.v_steps = _pages_map(request.kv.v, box_keys)
    params.problem = cuda_prefill.params(request, made, tensors)
    params.next_item = tensors["next_item"].data_ptr()
    params.items, params.blocks = plan.blocks, blocks
    params.tile_rows, params.box_keys = tile_rows, box_keys
    launch = Launch(
        variant=variant,
        gpu=request.gpu,
        device=request.q.device,
        grid=(blocks, 1, 1),
        params=params,
        tensors=tensors,
        written=frozenset((*OUTPUTS, *partials, "next_item")),
        checks=request.checks,
    )
    return Step(launch.prepare(), request.out, request.lse2, plan)


def _map(tensor: torch.Tensor, box: tuple[int, ...]) -> TensorMap:
    """The map of a tensor; one without elements has no map, and is never asked for."""
    if tensor.numel() == 0:
        return TensorMap()
    # of a dimension of length 1 any stride is right, and the TMA does not take every one
    strides = [s if n > 1 else CHANNELS for n, s in zip(tensor.shape, tensor.stride(), strict=True)]
    return tensor_map(tensor.as_strided(tensor.shape, [*strides[:-1], 1]), box)


def _pages_map(pool: torch.Tensor, box_keys: int) -> tuple[TensorMap, PageSteps]:
    """The map of a pool, each page and KV head by itself, and how far they lie apart in it.

    In order of the kernel's coordinates: a line's channels, the lines of an octet, the key's
    further lines, octets, and pages of a head.
    """
    if pool.numel() == 0:
        return TensorMap(), PageSteps()
    pages, page_size, heads, channels = pool.shape
    page, row, head, _ = (
        s if n > 1 else CHANNELS for n, s in zip(pool.shape, pool.stride(), strict=True)
    )
    unit = math.gcd(page, head)
    steps = PageSteps(page // unit, head // unit)
    apart = (pages - 1) * steps.page + (heads - 1) * steps.head + 1
    lines = channels // CHANNELS
    view = pool.as_strided(
        (apart, page_size // OCTET, lines, OCTET, CHANNELS), (unit, OCTET * row, CHANNELS, row, 1)
    )
    return tensor_map(view, (1, box_keys // OCTET, lines, OCTET, CHANNELS)), steps


def _box_keys(request: PrefillRequest) -> int:
    """Keys of a box: what divides a tile and a page; 0 if those are not octets."""
    if not isinstance(request.kv, PagedKV):
        return 0
    shared = math.gcd(request.instance.tile.keys, request.kv.page_size)
    return shared if shared % OCTET == 0 else 0


def _cached_keys(request: PrefillRequest) -> int:
    """Keys of one KV head whose K and V fit the part of the L2 cache that they may fill."""
    kv = request.kv
    key_bytes = (kv.head_dim + kv.head_dim_v) * kv.k.element_size()
    return int(L2_SHARE * request.gpu.l2_bytes) // key_bytes


def _nothing() -> None:
    """A prefill without a query token."""
