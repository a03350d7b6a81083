"""Launches the Triton decode; on a CPU it runs under Triton's interpreter."""

from typing import Any

import torch

from labkernels.cuda import triton_run
from labkernels.kernels.caches.paged import PagedHeads, QuantizedKV
from labkernels.kernels.call import Attention, Plan, Step, partial_states
from labkernels.kernels.decode.call import DecodeCall, plan_decode
from labkernels.units import LOG2_E


def prepare(call: DecodeCall) -> Step[Attention]:
    """Allocate the splits' partial states and fix the launches.

    Raises: RuntimeError as triton_run.load does.
    """
    kernel = triton_run.load(f"{__package__}.kernel", on_gpu=call.on_gpu)
    plan = plan_decode(call, step=call.choice.instance.tile.keys, launches_to_merge=1)
    states = partial_states(call, plan.splits)
    out = triton_run.roundable(call.out)
    arguments, constants = _arguments(call, plan, states, out), _constants(call, plan)
    batch, q_heads, _ = call.q.shape
    kv_len, keys = call.cache.kv_len, plan.keys_per_split
    shared = ("sinks", "window_left", "D", "WIDTH", "BY_LENGTH")
    merging = {name: constants[name] for name in shared}

    def run() -> None:
        kernel.decode[(call.cache.kv_heads, plan.splits, batch)](*arguments, **constants)
        if plan.splits > 1:
            merged = (kv_len, out, call.lse2, *states, q_heads, keys, plan.splits)
            kernel.merge_splits[(q_heads, batch)](*merged, **merging)
        if out is not call.out:
            call.out.copy_(out)

    return Step(run, call.outputs, plan)


def _arguments(
    call: DecodeCall, plan: Plan, states: list[torch.Tensor], out: torch.Tensor
) -> tuple:
    q, cache = call.q, call.cache
    return (
        q,
        cache.k,
        cache.v,
        cache.page_table,
        cache.kv_len,
        out,
        call.lse2,
        *states,
        *q.stride()[:2],
        *cache.k.stride()[:3],
        cache.page_table.stride(0),
        cache.page_size,
        q.shape[1],
        call.group,
        plan.keys_per_split,
        plan.splits,
        call.scale * LOG2_E,
        *_scales(cache),
    )


def _scales(cache: PagedHeads) -> tuple:
    if not isinstance(cache, QuantizedKV):
        return None, None, 0, 0, 0, 0, None
    k, v = cache.scales()
    of_blocks = k.stride()[:2] if cache.of_blocks else (0, 0)
    return k, v, k.stride(-1), v.stride(-1), *of_blocks, cache.keys_per_scale


def _constants(call: DecodeCall, plan: Plan) -> dict[str, Any]:
    instance = call.choice.instance
    own = {"D": instance.head_dim, "WIDTH": instance.width, "ROWS": instance.rows}
    own["SPLIT"] = plan.splits > 1
    own["BY_LENGTH"] = call.by_length
    varied = triton_run.variant_arguments(call.variant, call.variant_tensors, call.scale)
    del varied["window_right"]  # the query is the last key
    return own | varied | triton_run.constants(instance, on_gpu=call.on_gpu)
