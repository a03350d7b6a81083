"""Launches the Triton prefill; on a CPU it runs under Triton's interpreter."""

from types import ModuleType

import torch

from labkernels.kernels import triton_run
from labkernels.kernels.cuda_run import LOG2_E
from labkernels.kernels.paged_kv import CHUNK, PagedKV
from labkernels.kernels.prefill_plan import Cut
from labkernels.kernels.prefill_step import (
    PrefillRequest,
    cut,
    make_plan,
    partial_states,
    work_list,
)
from labkernels.kernels.step import Step

WIDEST = 128  # channels of one tl.dot that need not be a power of two: 192 are 128 and 64


def prepare(request: PrefillRequest) -> Step:
    """List the blocks, allocate the splits' partial States and fix the launches.

    Raises: RuntimeError if Triton is missing, or was imported without its interpreter on a CPU;
    ValueError if a pool ends out of reach.
    """
    if isinstance(request.kv, PagedKV):
        request.kv.require_reach()
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
    """A prefill without a query token."""


class _Run:
    """Launches a prefill, and the merge of its splits, on the current stream."""

    def __init__(self, kernel: ModuleType, request: PrefillRequest, made: Cut) -> None:
        self._kernel, self._request = kernel, request
        self._grid = (len(made.work),)
        # the interpreter's store to bf16 does not round to nearest even; torch's conversion does
        narrow = not request.on_gpu and request.out.dtype == torch.bfloat16
        self._out = request.out.to(torch.float32) if narrow else request.out
        lengths, work = _lengths(request), work_list(request, made)
        # an unsplit prefill does not touch the partial States: any pointer serves
        partials = list(partial_states(request, made).values())[:3] or [request.lse2] * 3
        outputs = (self._out, request.lse2, *partials)
        q, kv = request.q, request.kv
        cut_in = (q.shape[1], request.group, made.keys_per_split, made.splits)
        self._arguments = (
            *(q, kv.k, kv.v, *lengths, work, *outputs),
            *_strides(request),
            *cut_in,
            request.scale * LOG2_E,
        )
        self._merge_arguments = (*lengths[:2], lengths[3], work, *outputs, *cut_in)
        self._constants = _constants(request, made)
        self._scratch = triton_run.Scratch(q.device)

    def __call__(self) -> None:
        import triton

        triton.set_allocator(self._scratch)
        self._kernel.prefill[self._grid](*self._arguments, **self._constants)
        if self._constants["SPLIT"]:
            from labkernels.kernels.triton_rows import merge_splits

            names = ("D_V", "ROWS", "CAUSAL", "PAGED")
            merge = {name: self._constants[name] for name in names}
            merge_splits[self._grid](*self._merge_arguments, **merge)
        if self._out is not self._request.out:
            self._request.out.copy_(self._out)


def _lengths(request: PrefillRequest) -> tuple[torch.Tensor, ...]:
    """cu_seqlens_q, cu_seqlens_k, page_table, kv_len; for those of the other layout any pointer."""
    kv, sums = request.kv, request.cu_seqlens_q
    if isinstance(kv, PagedKV):
        return sums, sums, kv.page_table, kv.kv_len
    return sums, kv.cu_seqlens, sums, sums


def _strides(request: PrefillRequest) -> tuple[int, ...]:
    kv = request.kv
    if isinstance(kv, PagedKV):
        strides = (x for pool in (kv.k, kv.v) for x in _pool_strides(pool))
        pages = (kv.page_table.stride(0), kv.page_size, *kv.page_division)
        return *request.q.stride()[:2], *strides, *pages
    return *request.q.stride()[:2], 0, *kv.k.stride()[:2], 0, *kv.v.stride()[:2], 0, 1, 0, 0


def _pool_strides(pool: torch.Tensor) -> tuple[int, ...]:
    """Of a page and a token in chunks, of a head in elements."""
    page, token, head, _ = pool.stride()
    return page // CHUNK, token // CHUNK, head


def _constants(request: PrefillRequest, made: Cut) -> dict[str, object]:
    instance, tile = request.instance, request.instance.tile
    head_dim = instance.head_dim
    whole = head_dim & (head_dim - 1) == 0
    constants = {
        "D": head_dim if whole else WIDEST,
        "D_TAIL": 0 if whole else head_dim - WIDEST,
        "D_V": instance.head_dim_v,
        "ROWS": tile.q_rows,
        "KEYS": tile.keys,
        "CAUSAL": request.causal,
        "PAGED": instance.kv == "paged",
        "TWINS": request.kv.k.stride() == request.kv.v.stride(),
        "TENSOR_CORES": request.spec.uses_tensor_cores(instance.policy),
        "UPCAST": not request.on_gpu and instance.dtype == "bf16",
        "SPLIT": made.splits > 1,
    }
    if request.on_gpu:
        constants |= {"num_warps": tile.warps, "num_stages": tile.stages}
    return constants
