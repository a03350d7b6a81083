"""Runs backward_wgmma: the launches of every CUDA backward pass, with tensor maps for the TMA."""

import ctypes
import functools

from labkernels.cuda.gpu.tensor_map import TensorMap, padded, rows_map
from labkernels.kernels.backward import cuda
from labkernels.kernels.backward.call import BackwardCall, schedule_of
from labkernels.kernels.backward.cuda import ROWS, BackwardParams, Stage
from labkernels.kernels.backward.schedule import BackwardSchedule
from labkernels.kernels.backward.wgmma.overlap import COUNTS_PER_HEAD, Overlap, overlap, separate
from labkernels.kernels.backward.wgmma.spec import TURN_PARTS, TURN_ROWS, adders
from labkernels.kernels.program import Program


@functools.cache
def params_with(problem: type[BackwardParams]) -> type[ctypes.Structure]:
    """Return the mirror of backward_wgmma::ParamsWith, given the parameter of the problem."""
    fields = padded(
        ("q", TensorMap),
        ("dout", TensorMap),
        ("k", TensorMap),
        ("v", TensorMap),
        ("problem", problem),
        ("dq_semaphores", ctypes.c_void_p),
        ("cleared", ctypes.c_void_p),
        ("first_cleared", ctypes.c_void_p),
    )
    return type("Params", (ctypes.Structure,), {"_fields_": fields})


def program(call: BackwardCall) -> Program:
    """List the blocks, describe the tensors to the TMA, and fix the launches."""
    tile = call.choice.instance.tile
    # With an ordered dq a block waits for the blocks of its head's later keys, which start first.
    made = schedule_of(call, last_keys_first=call.ordered, overlaps=not tile.rung)
    lists = separate(made) if tile.rung else _overlap(call, made)
    rows = functools.partial(rows_map, tokens=tile.q_rows, heads=1)
    keys = functools.partial(rows_map, tokens=tile.keys, heads=1)
    problem = cuda.shaped_params(call, made.padded_rows)
    how = {
        "params": params_with(type(problem))(problem=problem),
        "maps": {"q": ("q", rows), "dout": ("dout", rows), "k": ("k", keys), "v": ("v", keys)},
    }
    own = {"cleared": lists.cleared, "first_cleared": lists.first_cleared}
    counters = _counters(call, made)
    main, before, after = call.choice.specializations[:3]
    stages = (
        Stage(before, lists.before, ROWS),
        Stage(main, lists.keys, ("dk", "dv", "dq_accum", *counters), how, own),
        Stage(after, lists.after, ("dq", *counters)),
    )
    return cuda.in_stages(call, made, stages, cuda.workspace(call, made, adds=True, **counters))


def _counters(call: BackwardCall, made: BackwardSchedule) -> dict[str, int]:
    """Return how many counters the launches need, by name; each launch leaves them at 0."""
    counters = {}
    if call.ordered:  # blocks that have added to each part of dq_accum
        counters["dq_semaphores"] = call.q.shape[1] * (made.padded_rows // TURN_ROWS) * TURN_PARTS
    if not call.choice.instance.tile.rung:
        counters["head_counts"] = COUNTS_PER_HEAD * call.kv_heads * len(call.lengths.q)
    return counters


def _overlap(call: BackwardCall, made: BackwardSchedule) -> Overlap:
    return overlap(
        made,
        call.lengths,
        call.choice.instance.tile,
        kv_heads=call.kv_heads,
        group=call.group,
        variant=call.variant,
        adders=adders(call.choice.instance),
        together=call.gpu.sm_count,
    )
