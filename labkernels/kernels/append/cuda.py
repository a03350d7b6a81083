"""Prepares an append: the rows that each warp moves, the launch, and its plan."""

import ctypes
import math
from dataclasses import replace

import torch

from labkernels.cuda.workspace import Workspace
from labkernels.kernels.append.call import AppendCall
from labkernels.kernels.caches.paged import QuantizedKV
from labkernels.kernels.call import Step, nothing, plan_of
from labkernels.kernels.checks import MAX_KEYS, changed
from labkernels.kernels.program import Program, launch_of, with_field, with_scales
from labkernels.units import COPY_BYTES


def _side(*names: str) -> type[ctypes.Structure]:
    """Return append::Side of kernel.cuh, of K, V or Q: strides in elements."""
    pointers = ((name, ctypes.c_void_p) for name in names)
    strides = ("row", "row_head", "page", "token", "head")
    numbers = ((of, ctypes.c_longlong) for of in (*strides, "head_chunks"))
    return type("Side", (ctypes.Structure,), {"_fields_": (*pointers, *numbers)})


class Rotary(ctypes.Structure):
    """append::Rotary of kernel.cuh, by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("cos", "sin")),
        *((name, ctypes.c_longlong) for name in ("cos_stride", "sin_stride")),
        ("queries", _side("q", "rotated")),
        *((name, ctypes.c_int) for name in ("positions", "dim", "heads", "in_order")),
    )


class Params(ctypes.Structure):
    """append::Params of kernel.cuh, by field."""

    _fields_ = (
        ("k", _side("k_new", "k_pool")),
        ("v", _side("v_new", "v_pool")),
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


def prepare(call: AppendCall) -> Step[None]:
    """Plan an append from its shapes, and fix its launch."""
    cache, rotated = call.cache, call.rotated
    written = {"k_pool": cache.k, "v_pool": cache.v, "kv_len": cache.kv_len}
    tensors = {"page_table": cache.page_table, "cu_seqlens": call.cu_seqlens_new}
    tensors |= {**call.read, **written}
    if isinstance(cache, QuantizedKV):
        tensors |= {"k_scale": cache.k_scale, "v_scale": cache.v_scale}
    if rotated is not None:
        tensors["rotated"] = rotated
    step = call.once(_program).step(tensors, nothing if rotated is None else lambda: rotated)

    def run() -> None:
        step.run()
        for tensor in written.values():
            changed(tensor)

    return replace(step, run=run)


def _program(call: AppendCall) -> Program:
    tile, total = call.choice.instance.tile, len(call.read["k_new"])
    sides = 3 if "q" in call.read else 2  # K, V and Q lie along grid y
    # just enough keys per warp that the blocks fill the GPU once, and at most one key per lane
    keys = min(tile.keys, max(1, math.ceil(sides * total / (call.choice.slots * tile.warps))))
    blocks = math.ceil(total / (keys * tile.warps))
    plan = plan_of(
        call,
        blocks=sides * blocks,
        keys_per_split=keys * tile.warps,
        batch_invariant=True,
        launches=min(blocks, 1),
    )
    if blocks == 0:
        return Program(plan)
    launch = launch_of(
        call,
        params=_params(call, keys=keys, blocks=plan.blocks),
        blocks=(blocks, sides),
        written=frozenset(("k_pool", "v_pool", "rotated", "kv_len", "ticket")),
    )
    return Program(plan, (launch,), Workspace(call.device, {}, {"ticket": 1}))


def _params(call: AppendCall, *, keys: int, blocks: int) -> ctypes.Structure:
    cache = call.cache
    params = Params(
        page_table_stride=cache.page_table.stride(0),
        max_pages=cache.page_table.shape[1],
        page_size=cache.page_size,
        kv_heads=cache.kv_heads,
        batch=cache.batch,
        keys_per_warp=keys,
        blocks=blocks,
    )
    _describe(params.k, call.read["k_new"], cache.k)
    _describe(params.v, call.read["v_new"], cache.v)
    if "cos" in call.read:
        params = with_field(params, "rotary", _rotary(call))
    return with_scales(params, cache) if isinstance(cache, QuantizedKV) else params


def _rotary(call: AppendCall) -> Rotary:
    cos, sin = call.read["cos"], call.read["sin"]
    sizes = {"positions": min(len(cos), MAX_KEYS), "dim": 2 * cos.shape[1]}
    strides = {"cos_stride": cos.stride(0), "sin_stride": sin.stride(0)}
    params = Rotary(**sizes, **strides, in_order=call.in_order)
    if call.rotated is not None:
        params.heads = call.rotated.shape[1]
        _describe(params.queries, call.read["q"], call.rotated[None])
    return params


def _describe(side: ctypes.Structure, rows: torch.Tensor, pool: torch.Tensor) -> None:
    side.row, side.row_head = rows.stride()[:2]
    side.page, side.token, side.head = pool.stride()[:3]
    side.head_chunks = rows.shape[2] * rows.element_size() // COPY_BYTES
