"""Runs a CUDA MLA kernel, and the merge of its splits, on the GPU or as its CPU build."""

import ctypes
import dataclasses

import torch

from labkernels.cuda.launch import with_numbers
from labkernels.kernels.call import Step
from labkernels.kernels.mla.call import MlaCall
from labkernels.kernels.packed_gqa import cuda
from labkernels.kernels.packed_gqa.call import schedule_of
from labkernels.kernels.packed_gqa.schedule import Schedule
from labkernels.kernels.program import Program, launch_of

SPLIT = 3  # the split's column in the work list
POINTERS = ("q_nope", "q_pe", "ckv", "kpe", "cu_seqlens_q", "page_table", "kv_len")
STRIDES = (
    "q_nope_stride_token",
    "q_nope_stride_head",
    "q_pe_stride_token",
    "q_pe_stride_head",
    "ckv_stride_page",
    "ckv_stride_token",
    "kpe_stride_page",
    "kpe_stride_token",
)


class MlaParams(ctypes.Structure):
    """Pointers, strides in elements, counts, and the softmax scale times log2 e."""

    _fields_ = cuda.fields(POINTERS, STRIDES)


def program(call: MlaCall) -> Program:
    """Return the launches of a call."""
    made = schedule_of(call)
    return with_merge(call, made, params_of(call, made))


def with_merge(call: MlaCall, made: Schedule, params: ctypes.Structure, **how) -> Program:
    """Make the launch of a scheduled call, and that of the merge of its splits, if separate."""
    blocks = cuda.program(call, made, params, **how)
    merges = call.choice.specializations[1:]
    if made.splits == 1 or not blocks.launches or not merges:
        return blocks
    tiles = made.work[made.work[:, SPLIT] == 0]
    rows = min(call.choice.instance.rows, int(call.lengths.q.max()) * call.group)
    merge = launch_of(
        call,
        specialization=merges[0],
        params=params_of(call, made),
        blocks=(len(tiles), rows),
        own={"work": torch.from_numpy(tiles).to(call.device)},
        written=frozenset(cuda.OUTPUTS),
        early=True,
    )
    plan = dataclasses.replace(blocks.plan, launches=2)
    return Program(plan, (*blocks.launches, merge), blocks.workspace)


def prepare(call: MlaCall) -> Step:
    """Compile, list the blocks, allocate the splits' partial states, and fix the launches.

    Raises: ValueError if keys_per_split makes more splits than a grid can have (MAX_SPLITS).
    """
    kv = call.kv
    given = (call.q, call.q_pe, kv.ckv, kv.kpe, call.cu_seqlens_q, kv.page_table, kv.kv_len)
    names = (*POINTERS, *cuda.OUTPUTS)
    tensors = dict(zip(names, (*given, call.out, call.lse2), strict=True))
    return call.once(call.choice.kernel.program).step(tensors, call.outputs)


def params_of(call: MlaCall, made: Schedule) -> MlaParams:
    """Return the kernels' common parameter without its pointers."""
    kv = call.kv
    strides = [stride for x in (call.q, call.q_pe, kv.ckv, kv.kpe) for stride in x.stride()[:2]]
    numbers = cuda.numbers_of(call, made, cuda.pages_of(kv.page_table, kv.ckv.shape[1]))
    return with_numbers(MlaParams, *strides, *numbers)
