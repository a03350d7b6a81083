"""Prepares the launch of the Gluon prefill, which has no splits and no pages."""

import torch

from labkernels.cuda.triton_run import Scratch
from labkernels.kernels.call import Attention, Step
from labkernels.kernels.prefill.inputs import PrefillInputs
from labkernels.units import LOG2_E

HEAD_DIMS = (64, 128)
ROWS, KEYS, STAGES, WARPS = 128, 128, 2, 8


def refusal(inputs: PrefillInputs) -> str | None:
    """Return why the kernel does not take a workload, or None."""
    work = inputs.workload
    if work.page_size is not None:
        return "the Gluon prefill takes ragged K and V, not pages"
    if work.head_dim not in HEAD_DIMS or work.head_dim_v != work.head_dim:
        return f"head_dim = {work.head_dim}, allowed: {', '.join(map(str, HEAD_DIMS))}"
    return None


def prepare(inputs: PrefillInputs) -> Step[Attention]:
    """List the tiles, allocate the outputs and fix the launch; it compiles at its first run."""
    import triton

    from labkernels.kernels.prefill.gluon.kernel import prefill

    q, kv, work = inputs.q, inputs.kv, inputs.workload
    out = torch.full_like(q, float("nan"), memory_format=torch.contiguous_format)
    lse2 = torch.full(q.shape[:2], float("nan"), dtype=torch.float32, device=q.device)
    tiles = [
        (request, tile, kv_head, 0)
        for request, tokens in enumerate(work.q_lens)
        for tile in reversed(range(-(-tokens * work.group // ROWS)))  # the last rows see most keys
        for kv_head in range(work.kv_heads)
    ]
    given = (q, kv.k, kv.v, inputs.cu_seqlens_q, kv.cu_seqlens)
    listed = torch.tensor(tiles, dtype=torch.int32, device=q.device)
    strides = (*q.stride()[:2], *kv.k.stride()[:2], *kv.v.stride()[:2])
    cut = (work.q_heads, work.group, inputs.scale * LOG2_E, work.head_dim)
    arguments = (*given, listed, out, lse2, *strides, *cut, ROWS, KEYS, STAGES, work.causal)
    scratch = Scratch(q.device)

    def run() -> None:
        triton.set_allocator(scratch)
        if tiles:
            prefill[(len(tiles),)](*arguments, num_warps=WARPS)

    return Step(run, lambda: Attention(out, lse2), version=triton.__version__)
