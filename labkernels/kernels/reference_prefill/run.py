"""Plain torch attention, one request at a time, whole and unsplit."""

import math

import torch

from labkernels.kernels.prefill_plan import Cut
from labkernels.kernels.prefill_step import PrefillRequest, cut, make_plan
from labkernels.kernels.step import Step


def prepare(request: PrefillRequest) -> Step:
    """Fix the torch operations of a prefill. Splits that are asked for are not made."""
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


def _attend(request: PrefillRequest, i: int, tokens: slice) -> None:
    """A row without keys has -inf for all its scores, where a softmax is NaN: it becomes zero."""
    dtype = torch.float64 if request.instance.policy.p == "fp64" else request.q.dtype
    k, v = (x.to(dtype).transpose(0, 1) for x in request.kv.of_request(i))
    q = request.q[tokens].to(dtype).transpose(0, 1).unflatten(0, (len(k), request.group))
    s = q @ k.unsqueeze(1).transpose(2, 3) * request.scale
    n, n_keys = s.shape[-2:]
    if request.causal:
        seen = torch.ones(n, n_keys, dtype=torch.bool, device=s.device).tril(n_keys - n)
        s = s.masked_fill(~seen, -math.inf)
    p = torch.softmax(s, dim=-1).nan_to_num()
    request.out[tokens] = (p @ v.unsqueeze(1)).flatten(0, 1).transpose(0, 1)
    lse = torch.logsumexp(s.to(torch.float64), dim=-1)
    request.lse2[tokens] = (lse / math.log(2)).flatten(0, 1).transpose(0, 1)
