"""Runs a CUDA backward pass, on the GPU or as a CPU build: prepares rows, then dK, dV and dq."""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labkernels.cuda.compiler.specialization import Specialization
from labkernels.cuda.launch import with_numbers
from labkernels.cuda.workspace import Workspace
from labkernels.kernels.backward.call import BackwardCall, plan_backward, schedule_of
from labkernels.kernels.backward.schedule import BackwardSchedule
from labkernels.kernels.call import Gradients, Step
from labkernels.kernels.program import FP32_BYTES, Program, launch_of, with_variant
from labkernels.units import LOG2_E

POINTERS = ("q", "dout", "out", "k", "v", "lse2", "cu_seqlens_q", "cu_seqlens_k")
OUTPUTS = ("dq", "dk", "dv")
ROWS = ("row_lse2", "row_delta", "dq_accum")
STRIDED = ("q", "dout", "out", "k", "v")
STRIDES = tuple(f"{name}_stride_{of}" for name in STRIDED for of in ("token", "head"))
COUNTS = ("q_heads", "kv_heads", "group", "causal")
FACTORS = ("scale", "scale_log2")


class BackwardParams(ctypes.Structure):
    """Pointers, strides in elements, counts, and the softmax scale, plain and times log2 e."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*POINTERS, "work", *OUTPUTS, *ROWS, "head_counts")),
        *((name, ctypes.c_longlong) for name in (*STRIDES, "padded_rows")),
        *((name, ctypes.c_int) for name in COUNTS),
        *((name, ctypes.c_float) for name in FACTORS),
    )


class SinkParams(ctypes.Structure):
    """Mirrors lab::SinkParams."""

    _fields_ = (
        ("problem", BackwardParams),
        *((name, ctypes.c_void_p) for name in ("tiles", "sinks", "dsinks")),
        ("n_tiles", ctypes.c_int),
    )


@dataclass(frozen=True, eq=False)
class Stage:
    """One launch of a backward pass: a kernel, its blocks, and the tensors that it writes.

    how: further fields of Launch, such as a parameter that the other stages do not have. own:
    further lists, by their names in the parameter.
    """

    specialization: Specialization
    work: np.ndarray
    written: tuple[str, ...]
    how: Mapping[str, Any] = field(default_factory=dict)
    own: Mapping[str, np.ndarray] = field(default_factory=dict)


def program(call: BackwardCall) -> Program:
    """Return the launches of a call."""
    made = schedule_of(call)
    main, before, after = call.choice.specializations[:3]
    adds = not call.ordered  # an ordered dq is computed by the third launch
    shaped = {"params": shaped_params(call, made.padded_rows)}
    stages = (
        Stage(before, made.padded, ROWS),
        Stage(main, made.keys, ("dk", "dv", "dq_accum"), shaped),
        Stage(after, made.padded, ("dq",)) if adds else Stage(after, made.rows, ("dq",), shaped),
    )
    return in_stages(call, made, stages, workspace(call, made, adds=adds))


def prepare(call: BackwardCall) -> Step[Gradients]:
    """Compile, list the blocks, allocate the workspace, and fix the launches."""
    kv = call.kv
    given = (call.q, call.dout, call.out, kv.k, kv.v, call.lse2, call.cu_seqlens_q, kv.cu_seqlens)
    found = (call.dq, call.dk, call.dv)
    tensors = dict(zip((*POINTERS, *OUTPUTS), (*given, *found), strict=True))
    tensors |= call.variant_tensors
    if call.dsinks is not None:
        tensors["dsinks"] = call.dsinks
    return call.once(call.choice.kernel.program).step(tensors, call.outputs)


def in_stages(
    call: BackwardCall, made: BackwardSchedule, stages: tuple[Stage, ...], space: Workspace
) -> Program:
    """Launches that run in order; the plan describes the second one."""
    common, launches = params_of(call, made.padded_rows), []
    for stage in (*stages, *_of_sinks(call, made, common)):
        if len(stage.work):
            own = {"work": stage.work, **stage.own}
            launch = launch_of(
                call,
                specialization=stage.specialization,
                blocks=(len(stage.work),),
                own={name: made.on(call.device, work) for name, work in own.items()},
                written=frozenset(stage.written),
                # the first launch waits for all earlier work, every other for the launch before
                early=bool(launches),
                **{"params": common, **stage.how},
            )
            launches.append(launch)
    plan = plan_backward(call, blocks=len(stages[1].work), launches=len(launches))
    return Program(plan, tuple(launches), space)


def _of_sinks(
    call: BackwardCall, made: BackwardSchedule, common: BackwardParams
) -> tuple[Stage, ...]:
    """Return the launch for the gradient of the sinks, with a block for each head, if any."""
    if not call.variant.sinks:
        return ()
    heads, n_heads = made.padded[:, 2], call.q.shape[1]
    tiles = np.ascontiguousarray(made.padded[heads == 0])
    work = np.zeros((n_heads, 4), np.int32)
    work[:, 2] = np.arange(n_heads)
    params = SinkParams(problem=common, n_tiles=len(tiles))
    how, own = {"params": params}, {"tiles": tiles}
    return (Stage(call.choice.specializations[3], work, ("dsinks",), how, own),)


def workspace(
    call: BackwardCall, made: BackwardSchedule, *, adds: bool, **counters: int
) -> Workspace:
    """Return the arrays through which the launches communicate, by their names in BackwardParams.

    adds: whether dq is summed in one of them.
    """
    row_bytes = FP32_BYTES * call.q.shape[1] * made.padded_rows
    arrays = {"row_lse2": row_bytes, "row_delta": row_bytes}
    if adds:
        arrays["dq_accum"] = row_bytes * call.choice.instance.width
    return Workspace(call.device, arrays, counters)


def params_of(call: BackwardCall, padded_rows: int) -> BackwardParams:
    """Return the kernels' common parameter without its pointers."""
    strided = (call.q, call.dout, call.out, call.kv.k, call.kv.v)
    return with_numbers(
        BackwardParams,
        *[stride for x in strided for stride in x.stride()[:2]],
        padded_rows,
        *(call.q.shape[1], call.kv_heads, call.group, int(call.variant.causal)),
        *(call.scale, call.scale * LOG2_E),
    )


def shaped_params(call: BackwardCall, padded_rows: int) -> BackwardParams:
    """Return the same for the kernels that compute scores: with the numbers of the variant."""
    return with_variant(params_of(call, padded_rows), call.variant, scale=call.scale)
