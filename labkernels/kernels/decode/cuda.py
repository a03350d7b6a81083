"""Runs a CUDA decode kernel in one launch, on the GPU or as its CPU build."""

import ctypes

from labkernels.cuda.launch import with_numbers
from labkernels.kernels.caches.paged import QuantizedKV
from labkernels.kernels.call import Attention, Step
from labkernels.kernels.decode.call import DecodeCall, plan_decode
from labkernels.kernels.program import (
    PARTIALS,
    Program,
    launch_of,
    merge_workspace,
    with_scales,
    with_variant,
)
from labkernels.units import LOG2_E

POINTERS = ("q", "k_pool", "v_pool", "page_table", "kv_len", "out", "lse2", *PARTIALS)
STRIDES = (
    "q_stride_batch",
    "q_stride_head",
    "kv_stride_page",
    "kv_stride_token",
    "kv_stride_head",
)
COUNTS = (
    "page_table_stride",
    "max_pages",
    "page_size",
    "q_heads",
    "kv_heads",
    "group",
    "head_slices",
    "keys_per_split",
    "splits",
)
WRITTEN = frozenset(("out", "lse2", *PARTIALS))


class DecodeParams(ctypes.Structure):
    """Pointers, strides in elements, counts, and the softmax scale times log2 e."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in POINTERS),
        *((name, ctypes.c_longlong) for name in STRIDES),
        *((name, ctypes.c_int) for name in COUNTS),
        ("scale_log2", ctypes.c_float),
    )


def prepare(call: DecodeCall) -> Step[Attention]:
    """Compile, allocate the splits' partial states, and fix the launch of a decode.

    Raises: ValueError if keys_per_split makes more splits than a grid can have.
    """
    cache = call.cache
    tensors = {
        "q": call.q,
        "k_pool": cache.k,
        "v_pool": cache.v,
        "page_table": cache.page_table,
        "kv_len": cache.kv_len,
        "out": call.out,
        "lse2": call.lse2,
    }
    if isinstance(cache, QuantizedKV):
        tensors |= {"k_scale": cache.k_scale, "v_scale": cache.v_scale}
    return call.once(_program).step({**tensors, **call.variant_tensors}, call.outputs)


def _program(call: DecodeCall) -> Program:
    q, k, table, instance = call.q, call.cache.k, call.cache.page_table, call.choice.instance
    warps, rows = instance.tile.warps, min(call.group, instance.rows)
    plan = plan_decode(call, step=warps * instance.tile.keys, merged_rows=-(-rows // warps))
    slices, batch, kv_heads = -(-call.group // instance.rows), q.shape[0], k.shape[2]
    params = with_numbers(
        DecodeParams,
        *(*q.stride()[:2], *k.stride()[:3]),
        *(table.stride(0), table.shape[1], k.shape[1], q.shape[1], kv_heads, call.group),
        *(slices, plan.keys_per_split, plan.splits),
        call.scale * LOG2_E,
    )
    params = with_variant(params, call.variant, scale=call.scale)
    if isinstance(call.cache, QuantizedKV):
        params = with_scales(params, call.cache)
    blocks = (kv_heads * slices, plan.splits, batch)
    launch = launch_of(call, params=params, blocks=blocks, written=WRITTEN)
    semaphores = batch * kv_heads * slices
    space = merge_workspace(call, states=q.shape, splits=plan.splits, semaphores=semaphores)
    return Program(plan, (launch,), space)
