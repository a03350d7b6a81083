"""The launch of the CUDA kernels with packed rows, for every layout of K and V."""

import ctypes
from collections.abc import Mapping

import torch

from labkernels.cuda.launch import Describe
from labkernels.kernels.checks import division
from labkernels.kernels.packed_gqa.call import PackedCall, begins_of, plan_packed
from labkernels.kernels.packed_gqa.schedule import Schedule
from labkernels.kernels.program import PARTIALS, Program, launch_of, merge_workspace
from labkernels.units import LOG2_E

OUTPUTS = ("out", "lse2")
COUNTS = (
    "page_table_stride",
    "max_pages",
    "page_size",
    "page_shift",
    "page_inverse",
    "q_heads",
    "kv_heads",
    "group",
    "group_shift",
    "group_inverse",
    "keys_per_split",
    "splits",
    "causal",
)
NO_PAGES = (0, 0, 1, 0, 0)  # ragged K and V


def fields(pointers: tuple[str, ...], strides: tuple[str, ...]) -> tuple[tuple[str, type], ...]:
    """Return pointers, strides in elements, counts, and the softmax scale times log2 e."""
    return (
        *((name, ctypes.c_void_p) for name in (*pointers, "work", *OUTPUTS, *PARTIALS)),
        *((name, ctypes.c_longlong) for name in strides),
        *((name, ctypes.c_int) for name in COUNTS),
        ("scale_log2", ctypes.c_float),
    )


def pages_of(page_table: torch.Tensor, page_size: int) -> tuple[int, ...]:
    """Return the counts of a paged cache."""
    return (page_table.stride(0), page_table.shape[1], page_size, *division(page_size))


def numbers_of(call: PackedCall, made: Schedule, pages: tuple[int, ...]) -> tuple[float, ...]:
    """Return the fields of the parameter after its strides."""
    heads = (call.q.shape[1], call.kv_heads, call.group, *division(call.group))
    cut = (made.keys_per_split, made.splits, int(call.variant.causal))
    return (*pages, *heads, *cut, call.scale * LOG2_E)


def program(
    call: PackedCall,
    made: Schedule,
    params: ctypes.Structure,
    *,
    blocks: int | None = None,
    maps: Mapping[str, tuple[str, Describe]] | None = None,
    **counters: int,
) -> Program:
    """Make a scheduled call's launch, of one block per entry of its work list, or of `blocks`."""
    plan = plan_packed(call, made)
    if plan.blocks == 0:
        return Program(plan)
    launch = launch_of(
        call,
        params=params,
        blocks=(blocks or plan.blocks,),
        written=frozenset((*OUTPUTS, *PARTIALS, *counters)),
        own={"work": made.on(call.device), **begins_of(call)},
        maps=maps or {},
    )
    cut = {"splits": made.splits, "semaphores": made.split_semaphores}
    space = merge_workspace(call, states=tuple(call.out.shape), **cut, **counters)
    return Program(plan, (launch,), space)
