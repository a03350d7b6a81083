"""Prepares a merge: its launch, and its plan."""

import ctypes
import math

import torch

from labkernels.kernels.call import Attention, Step, plan_of
from labkernels.kernels.merge_states.call import MergeCall
from labkernels.kernels.merge_states.in_order.spec import CHANNELS
from labkernels.kernels.program import Program, launch_of

_STRIDES = ("stride_state", "stride_row", "stride_head")


class Params(ctypes.Structure):
    """merge_states::Params of kernel.cuh, by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("outs", "lse2s", "out", "lse2")),
        *((name, ctypes.c_longlong) for name in _STRIDES),
        *((f"lse2_{name}", ctypes.c_longlong) for name in _STRIDES),
        *((name, ctypes.c_int) for name in ("states", "q_heads", "threads", "fp32")),
    )


def prepare(call: MergeCall) -> Step[Attention]:
    """Plan a merge from its shapes, and fix its launch."""
    tensors = {"outs": call.outs, "lse2s": call.lse2s, "out": call.out, "lse2": call.lse2}
    return call.once(_program).step(tensors, lambda: Attention(call.out, call.lse2))


def _program(call: MergeCall) -> Program:
    outs, lse2s = call.outs, call.lse2s
    states, rows, q_heads, channels = outs.shape
    threads = rows * q_heads * channels // CHANNELS
    blocks = math.ceil(threads / call.choice.instance.tile.threads)
    plan = plan_of(
        call,
        blocks=blocks,
        keys_per_split=0,  # a merge has no keys
        splits=states,
        launches=min(blocks, 1),
        batch_invariant=True,
    )
    if blocks == 0:
        return Program(plan)
    places = dict(zip(_STRIDES, outs.stride(), strict=False))
    places |= dict(zip((f"lse2_{name}" for name in _STRIDES), lse2s.stride(), strict=True))
    fp32 = int(outs.dtype == torch.float32)
    params = Params(**places, states=states, q_heads=q_heads, threads=threads, fp32=fp32)
    launch = launch_of(call, params=params, blocks=(blocks,), written=frozenset(("out", "lse2")))
    return Program(plan, (launch,))
