"""Launches the Triton MLA decode; on a CPU it runs under Triton's interpreter."""

from types import ModuleType

import torch

from labkernels.kernels import triton_run
from labkernels.kernels.cuda_run import LOG2_E
from labkernels.kernels.latent_kv import LATENT_DIM, ROPE_DIM
from labkernels.kernels.mla_step import MlaRequest, cut, make_plan, partial_states, work_list
from labkernels.kernels.prefill_plan import Cut
from labkernels.kernels.step import Step


def prepare(request: MlaRequest) -> Step:
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
    run = _Run(kernel, request, made) if plan.blocks else _nothing
    return Step(run, request.out, request.lse2, plan)


def _nothing() -> None:
    """A decode without a query token."""


class _Run:
    """Launches an MLA decode, and the merge of its splits, on the current stream."""

    def __init__(self, kernel: ModuleType, request: MlaRequest, made: Cut) -> None:
        self._kernel, self._request = kernel, request
        self._grid = (len(made.work),)
        # the interpreter's store to bf16 does not round to nearest even; torch's conversion does
        narrow = not request.on_gpu and request.out.dtype == torch.bfloat16
        self._out = request.out.to(torch.float32) if narrow else request.out
        work, kv = work_list(request, made), request.kv
        # an unsplit decode does not touch the partial States: any pointer serves
        partials = list(partial_states(request, made).values())[:3] or [request.lse2] * 3
        outputs = (self._out, request.lse2, *partials)
        parts = (request.q_nope, request.q_pe, kv.ckv, kv.kpe)
        cut_in = (request.group, made.keys_per_split, made.splits)
        self._arguments = (
            *(*parts, request.cu_seqlens_q, kv.page_table, kv.kv_len, work, *outputs),
            *(stride for part in parts for stride in part.stride()[:2]),
            *(kv.page_table.stride(0), kv.page_size, *cut_in, request.scale * LOG2_E),
        )
        lengths = (request.cu_seqlens_q, request.cu_seqlens_q, kv.kv_len)
        self._merge_arguments = (*lengths, work, *outputs, request.group, *cut_in)
        self._constants = _constants(request, made)

    def __call__(self) -> None:
        self._kernel.mla[self._grid](*self._arguments, **self._constants)
        if self._constants["SPLIT"]:
            from labkernels.kernels.triton_rows import merge_splits

            names = ("ROWS", "CAUSAL")
            merge = {name: self._constants[name] for name in names}
            merge_splits[self._grid](*self._merge_arguments, **merge, D_V=LATENT_DIM, PAGED=True)
        if self._out is not self._request.out:
            self._request.out.copy_(self._out)


def _constants(request: MlaRequest, made: Cut) -> dict[str, object]:
    instance, tile = request.instance, request.instance.tile
    constants = {
        "D": LATENT_DIM,
        "D_PE": ROPE_DIM,
        "ROWS": tile.q_rows,
        "KEYS": tile.keys,
        "CAUSAL": request.causal,
        "TENSOR_CORES": request.spec.uses_tensor_cores(instance.policy),
        "UPCAST": not request.on_gpu and instance.dtype == "bf16",
        "SPLIT": made.splits > 1,
    }
    if request.on_gpu:
        constants |= {"num_warps": tile.warps, "num_stages": tile.stages}
    return constants
