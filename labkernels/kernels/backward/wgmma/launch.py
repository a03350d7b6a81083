"""Runs backward_wgmma: the launches of every CUDA backward pass, with tensor maps for the TMA."""

import ctypes
import functools

from labkernels.cuda.gpu.tensor_map import TensorMap, padded, rows_map
from labkernels.kernels.backward import cuda
from labkernels.kernels.backward.call import BackwardCall, schedule_of
from labkernels.kernels.backward.cuda import ROWS, BackwardParams, Stage
from labkernels.kernels.backward.schedule import BackwardSchedule
from labkernels.kernels.backward.wgmma.overlap import Overlap, no_overlap, overlap
from labkernels.kernels.backward.wgmma.spec import TURN_PARTS, TURN_ROWS
from labkernels.kernels.call import Gradients, Step
from labkernels.kernels.program import Program


class Params(ctypes.Structure):
    """backward_wgmma::Params."""

    _fields_ = padded(
        ("q", TensorMap),
        ("dout", TensorMap),
        ("k", TensorMap),
        ("v", TensorMap),
        ("problem", BackwardParams),
        ("dq_semaphores", ctypes.c_void_p),
        ("cleared", ctypes.c_void_p),
        ("first_cleared", ctypes.c_void_p),
    )


def prepare(call: BackwardCall) -> Step[Gradients]:
    """Compile, list the blocks, describe the tensors to the TMA, and fix the launches.

    Raises: ValueError naming what the TMA cannot reach.
    """
    return cuda.prepare(call, _program)


def _program(call: BackwardCall) -> Program:
    # With an ordered dq a block waits for the blocks of its head's later keys, which start first.
    made, tile = schedule_of(call, last_keys_first=call.ordered), call.choice.instance.tile
    # the counters of blocks that have added to each part of dq_accum; the last block resets each
    parts = call.q.shape[1] * (made.padded_rows // TURN_ROWS) * TURN_PARTS
    counters = {"dq_semaphores": parts} if call.ordered else {}
    lists = _overlap(call, made)
    if not tile.rung:
        counters[cuda.HEAD_COUNTS] = 2 * call.kv_heads * len(call.lengths.q)
    rows = functools.partial(rows_map, tokens=tile.q_rows, heads=1)
    keys = functools.partial(rows_map, tokens=tile.keys, heads=1)
    main, before, after = call.choice.specializations
    how = {
        "params": Params(problem=cuda.params_of(call, made.padded_rows)),
        "maps": {"q": ("q", rows), "dout": ("dout", rows), "k": ("k", keys), "v": ("v", keys)},
    }
    own = {"cleared": lists.cleared, "first_cleared": lists.first_cleared}
    stages = (
        Stage(before, lists.before, ROWS),
        Stage(main, lists.keys, ("dk", "dv", "dq_accum", *counters), how, own),
        Stage(after, lists.after, ("dq", *counters)),
    )
    return cuda.program(call, made, stages, cuda.workspace(call, made, adds=True, **counters))


def _overlap(call: BackwardCall, made: BackwardSchedule) -> Overlap:
    """Return the lists of the launches; those of a rung do not overlap."""
    tile = call.choice.instance.tile
    if tile.rung:
        return no_overlap(made)
    shape = {"kv_heads": call.kv_heads, "group": call.group, "causal": call.variant.causal}
    adders = 2 if tile.keys == 128 or call.ordered else 1
    return overlap(made, call.lengths, tile, adders=adders, together=call.gpu.sm_count, **shape)
