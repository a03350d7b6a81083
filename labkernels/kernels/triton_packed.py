"""Launches a Triton kernel of packed rows, and the merge of its splits; on a CPU interpreted."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType

import torch

from labkernels.kernels import triton_run
from labkernels.kernels.cuda_run import LOG2_E
from labkernels.kernels.prefill_plan import Cut
from labkernels.kernels.prefill_step import (
    PrefillRequest,
    cut,
    make_plan,
    partial_states,
    work_list,
)
from labkernels.kernels.step import Step


@dataclass(frozen=True, eq=False)
class Inputs:
    """What a kernel takes of its own: tensors before its work list, numbers behind its outputs.

    lengths: cu_seqlens_q, cu_seqlens_k and kv_len; for those of another layout any pointer.
    """

    tensors: tuple[torch.Tensor, ...]
    numbers: tuple[int, ...]
    lengths: tuple[torch.Tensor, ...]
    constants: Mapping[str, object]


def prepare(request: PrefillRequest, inputs: Callable[[PrefillRequest], Inputs]) -> Step:
    """List the blocks, allocate the splits' partial States and fix the launches.

    Raises: RuntimeError if Triton is missing, or was imported without its interpreter on a CPU.
    """
    kernel = triton_run.load(request.spec.name, interpret=not request.on_gpu)
    per_sm = request.instance.tile.blocks_per_sm
    made = cut(request, blocks_per_sm=per_sm)
    plan = make_plan(
        request,
        made,
        blocks_per_sm=per_sm,
        smem_bytes=0,
        registers=None,
        cpu="Triton's interpreter",
        launches=0 if len(made.work) == 0 else 1 if made.splits == 1 else 2,
    )
    run = _Run(kernel, request, made, inputs(request)) if plan.blocks else _nothing
    return Step(run, request.out, request.lse2, plan)


def _nothing() -> None:
    """Attention without a query token."""


class _Run:
    """Launches the kernel of the request's family, and the merge, on the current stream."""

    def __init__(
        self, kernel: ModuleType, request: PrefillRequest, made: Cut, inputs: Inputs
    ) -> None:
        self._kernel, self._request = getattr(kernel, request.spec.family), request
        self._grid = (len(made.work),)
        # the interpreter's store to bf16 does not round to nearest even; torch's conversion does
        narrow = not request.on_gpu and request.out.dtype == torch.bfloat16
        self._out = request.out.to(torch.float32) if narrow else request.out
        # an unsplit launch does not touch the partial States: any pointer serves
        partials = list(partial_states(request, made).values())[:3] or [request.lse2] * 3
        written = (work_list(request, made), self._out, request.lse2, *partials)
        cut_in = (request.q.shape[1], request.group, made.keys_per_split, made.splits)
        scale_log2 = request.scale * LOG2_E
        self._arguments = (*inputs.tensors, *written, *inputs.numbers, *cut_in, scale_log2)
        self._merge_arguments = (*inputs.lengths, *written, *cut_in)
        instance = request.instance
        shared = {"ROWS": instance.tile.q_rows, "CAUSAL": request.causal}
        self._constants = shared | _constants(request, made) | dict(inputs.constants)
        self._merge = shared | {"D_V": instance.head_dim_v, "PAGED": instance.kv == "paged"}
        self._split = made.splits > 1
        self._scratch = triton_run.Scratch(request.q.device)

    def __call__(self) -> None:
        import triton

        triton.set_allocator(self._scratch)
        self._kernel[self._grid](*self._arguments, **self._constants)
        if self._split:
            from labkernels.kernels.triton_rows import merge_splits

            merge_splits[self._grid](*self._merge_arguments, **self._merge)
        if self._out is not self._request.out:
            self._request.out.copy_(self._out)


def _constants(request: PrefillRequest, made: Cut) -> dict[str, object]:
    instance, tile = request.instance, request.instance.tile
    constants = {
        "KEYS": tile.keys,
        "TENSOR_CORES": request.spec.uses_tensor_cores(instance.policy),
        "UPCAST": not request.on_gpu and instance.dtype == "bf16",
        "SPLIT": made.splits > 1,
    }
    if request.on_gpu:
        constants |= {"num_warps": tile.warps, "num_stages": tile.stages}
    return constants
