"""Plain torch attention over latent rows, one request at a time, whole and unsplit."""

import torch

from labkernels.kernels.mla_step import MlaRequest, cut, make_plan
from labkernels.kernels.prefill_plan import Cut
from labkernels.kernels.step import Step
from labkernels.kernels.torch_attention import attend


def prepare(request: MlaRequest) -> Step:
    """Fix the torch operations of an MLA decode. Splits that are asked for are not made."""
    made = cut(request, blocks_per_sm=1)
    plan = make_plan(
        request,
        Cut(made.work, keys_per_split=max(1, int(request.lengths.kv.max())), splits=1, tickets=0),
        blocks_per_sm=1,
        smem_bytes=0,
        registers=None,
        cpu="torch on the CPU",
    )

    def run() -> None:
        first = 0
        for i, tokens in enumerate(request.lengths.q.tolist()):
            _attend(request, i, slice(first, first + tokens))
            first += tokens

    return Step(run, request.out, request.lse2, plan)


def _attend(request: MlaRequest, i: int, tokens: slice) -> None:
    dtype = torch.float64 if request.instance.policy.p == "fp64" else request.q.dtype
    q = torch.cat([request.q_nope[tokens], request.q_pe[tokens]], dim=-1).to(dtype)
    k, v = (x.to(dtype) for x in request.kv.of_request(i))
    out, lse2 = attend(q, k, v, scale=request.scale, causal=request.causal)
    request.out[tokens], request.lse2[tokens] = out, lse2
