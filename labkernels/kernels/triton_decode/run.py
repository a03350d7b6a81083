"""Launches the Triton decode; on a CPU it runs under Triton's interpreter."""

import torch

from labkernels.kernels import triton_run
from labkernels.kernels.cuda_run import LOG2_E
from labkernels.kernels.decode_step import (
    DecodeRequest,
    cut,
    make_plan,
    partial_states,
)
from labkernels.kernels.step import Plan, Step

PROGRAMS_PER_SM = 2  # what the tiles' registers and stages leave; only the cut depends on it


def prepare(request: DecodeRequest) -> Step:
    """Allocate the splits' partial States and fix the launches.

    Raises: RuntimeError if Triton is missing, or was imported without its interpreter on a CPU.
    """
    kernel = triton_run.load(request.spec.name, interpret=not request.on_gpu)
    keys, splits = cut(
        request, slots=PROGRAMS_PER_SM * request.gpu.sm_count, step=request.instance.tile.keys
    )
    plan = _plan(request, keys, splits)
    partials = partial_states(request, splits)
    # the interpreter's store to bf16 does not round to nearest even; torch's conversion does
    narrow = not request.on_gpu and request.out.dtype == torch.bfloat16
    out = request.out.to(torch.float32) if narrow else request.out
    arguments, constants = _arguments(request, plan, partials, out), _constants(request, splits)
    q_heads, batch = request.q.shape[1], request.cache.batch

    def run() -> None:
        kernel.decode[(request.cache.kv_heads, splits, batch)](*arguments, **constants)
        if splits > 1:
            states = (request.cache.kv_len, out, request.lse2, *_states(partials))
            kernel.merge_splits[(q_heads, batch)](
                *states, q_heads, keys, splits, D=request.q.shape[2]
            )
        if narrow:
            request.out.copy_(out)

    return Step(run, request.out, request.lse2, plan)


def _plan(request: DecodeRequest, keys: int, splits: int) -> Plan:
    return make_plan(
        request,
        keys_per_split=keys,
        splits=splits,
        blocks_per_sm=PROGRAMS_PER_SM,
        smem_bytes=0,
        registers=None,
        cpu="Triton's interpreter",
        launches=1 if splits == 1 else 2,
    )


def _arguments(
    request: DecodeRequest,
    plan: Plan,
    partials: dict[str, torch.Tensor],
    out: torch.Tensor,
) -> tuple:
    q, cache = request.q, request.cache
    # an unsplit decode does not touch the partial States: any pointer serves
    states = _states(partials) or (request.lse2,) * 3
    return (
        q,
        cache.k,
        cache.v,
        cache.page_table,
        cache.kv_len,
        out,
        request.lse2,
        *states,
        *q.stride()[:2],
        *cache.k.stride()[:3],
        cache.page_table.stride(0),
        cache.page_size,
        q.shape[1],
        request.group,
        plan.keys_per_split,
        plan.splits,
        request.scale * LOG2_E,
    )


def _constants(request: DecodeRequest, splits: int) -> dict[str, object]:
    instance = request.instance
    constants = {
        "D": instance.head_dim,
        "ROWS": instance.rows,
        "KEYS": instance.tile.keys,
        "TENSOR_CORES": request.spec.uses_tensor_cores(instance.policy),
        "UPCAST": not request.on_gpu and instance.dtype == "bf16",
        "SPLIT": splits > 1,
    }
    if request.on_gpu:
        constants |= {"num_warps": instance.tile.warps, "num_stages": instance.tile.stages}
    return constants


def _states(partials: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return tuple(tensor for name, tensor in partials.items() if name != "tickets")
