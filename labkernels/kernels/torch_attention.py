"""Plain torch attention, request by request: float64 as the truth, 16 bits as the baseline."""

import math
from collections.abc import Callable

import torch

from labkernels.kernels.prefill_plan import Cut
from labkernels.kernels.prefill_step import PrefillRequest, cut, make_plan
from labkernels.kernels.step import Step


def prepare(request: PrefillRequest, queries: Callable[[slice], torch.Tensor]) -> Step:
    """Fix the torch operations. Splits that are asked for are not made.

    queries(tokens) gives some tokens' queries, of K's channels.
    """
    made = cut(request, blocks_per_sm=1)
    plan = make_plan(
        request,
        Cut(made.work, keys_per_split=max(1, int(request.lengths.kv.max())), splits=1, tickets=0),
        blocks_per_sm=1,
        smem_bytes=0,
        registers=None,
        cpu="torch on the CPU",
    )
    dtype = torch.float64 if request.instance.policy.p == "fp64" else request.q.dtype

    def run() -> None:
        first = 0
        for i, n in enumerate(request.lengths.q.tolist()):
            tokens = slice(first, first + n)
            q, (k, v) = queries(tokens), request.kv.of_request(i)
            request.out[tokens], request.lse2[tokens] = attend(
                *(x.to(dtype) for x in (q, k, v)), scale=request.scale, causal=request.causal
            )
            first += n

    return Step(run, request.out, request.lse2, plan)


def attend(q, k, v, *, scale: float, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out and lse2 of some queries over their keys; each product rounds to q's dtype.

    Shapes: q [tokens, q_heads, D], k [keys, kv_heads, D], v [keys, kv_heads, Dv]; out [tokens,
    q_heads, Dv]; lse2 [tokens, q_heads] float64, base 2.
    A row without keys has -inf for all its scores, where a softmax is NaN: it becomes zero.
    """
    k, v = (x.transpose(0, 1) for x in (k, v))
    q = q.transpose(0, 1).unflatten(0, (len(k), q.shape[1] // len(k)))
    s = q @ k.unsqueeze(1).transpose(2, 3) * scale
    n, n_keys = s.shape[-2:]
    if causal:
        seen = torch.ones(n, n_keys, dtype=torch.bool, device=s.device).tril(n_keys - n)
        s = s.masked_fill(~seen, -math.inf)
    p = torch.softmax(s, dim=-1).nan_to_num()
    out = (p @ v.unsqueeze(1)).flatten(0, 1).transpose(0, 1)
    lse = torch.logsumexp(s.to(torch.float64), dim=-1)
    return out, (lse / math.log(2)).flatten(0, 1).transpose(0, 1)
