"""Runs a CUDA prefill kernel in one launch, on the GPU or as its CPU build."""

import ctypes

import torch

from labkernels.cuda.launch import with_numbers
from labkernels.kernels.caches.mask import mask_words
from labkernels.kernels.call import Step
from labkernels.kernels.packed_gqa import cuda
from labkernels.kernels.packed_gqa.call import PackedCall, schedule_of
from labkernels.kernels.packed_gqa.schedule import Schedule
from labkernels.kernels.program import Program, with_variant

POINTERS = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "page_table", "kv_len")
STRIDES = (
    "q_stride_token",
    "q_stride_head",
    "k_stride_page",
    "k_stride_token",
    "k_stride_head",
    "v_stride_page",
    "v_stride_token",
    "v_stride_head",
)


class PrefillParams(ctypes.Structure):
    """Pointers, strides in elements, counts, and the softmax scale times log2 e."""

    _fields_ = cuda.fields(POINTERS, STRIDES)


def program(call: PackedCall) -> Program:
    """Return the launch of a call."""
    if call.kv.layout == "paged":
        call.kv.require_reach()
        if call.kv.head_dim == call.kv.head_dim_v:
            call.kv.require_equal_strides()
    made = schedule_of(call)
    return cuda.program(call, made, params_of(call, made))


def prepare(call: PackedCall) -> Step:
    """Compile, list the blocks, allocate the splits' partial states, and fix the launch.

    Raises: ValueError if keys_per_split makes more splits than a grid can have (MAX_SPLITS), K and
    V have equal channels but pools of different strides, or a pool is too large for the offsets.
    """
    return call.once(call.choice.kernel.program).step(
        {**tensors_of(call), **call.variant_tensors}, call.outputs
    )


def tensors_of(call: PackedCall) -> dict[str, torch.Tensor]:
    """Return the tensors of a call by their names in the kernels' parameters."""
    kv = call.kv
    tensors = {"q": call.q, "k": kv.k, "v": kv.v, "cu_seqlens_q": call.cu_seqlens_q}
    if kv.layout == "paged":
        tensors |= {"page_table": kv.page_table, "kv_len": kv.kv_len}
    else:
        tensors["cu_seqlens_k"] = kv.cu_seqlens
    return tensors | {"out": call.out, "lse2": call.lse2}


def params_of(call: PackedCall, made: Schedule) -> PrefillParams:
    """Return the kernels' common parameter without its pointers."""
    q, k, v = call.q, call.kv.k, call.kv.v
    if call.kv.layout == "paged":
        strides = (*k.stride()[:3], *v.stride()[:3])
        pages = cuda.pages_of(call.kv.page_table, k.shape[1])
    else:
        strides, pages = (0, *k.stride()[:2], 0, *v.stride()[:2]), cuda.NO_PAGES
    numbers = cuda.numbers_of(call, made, pages)
    params = with_numbers(PrefillParams, *q.stride()[:2], *strides, *numbers)
    words = mask_words(call.lengths.q, call.lengths.kv) if call.variant.mask else 0
    return with_variant(params, call.variant, scale=call.scale, mask_words=words)
