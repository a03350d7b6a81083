"""Plain torch attention, request by request: float64 is the truth, 16 bits the baseline."""

import math
from collections.abc import Callable

import torch

from labkernels.kernels.call import Attention, Step, plan_of
from labkernels.kernels.packed_gqa.call import PackedCall, schedule_of
from labkernels.variant import FULL, AttentionVariant


def prepare(call: PackedCall, queries: Callable[[slice], torch.Tensor]) -> Step[Attention]:
    """Prepare the torch operations. Requested splits are ignored.

    queries(tokens) gives the queries of some tokens, with K's channels.
    """
    plan = plan_of(
        call,
        blocks=len(schedule_of(call).work),
        keys_per_split=max(1, int(call.lengths.kv.max())),
        batch_invariant=call.batch_invariant,
    )
    dtype = torch.float64 if call.choice.instance.policy.p == "fp64" else call.q.dtype

    def run() -> None:
        first = 0
        for i, n in enumerate(call.lengths.q.tolist()):
            tokens = slice(first, first + n)
            q, (k, v) = queries(tokens), call.kv.of_request(i)
            call.out[tokens], call.lse2[tokens] = attend(
                *(x.to(dtype) for x in (q, k, v)), scale=call.scale, variant=call.variant
            )
            first += n

    return Step(run, call.outputs, plan)


def attend(
    q, k, v, *, scale: float, variant: AttentionVariant
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out and lse2 of some queries over their keys; each product rounds to q's dtype.

    Shapes: q [tokens, q_heads, D], k [keys, kv_heads, D], v [keys, kv_heads, Dv]; out [tokens,
    q_heads, Dv]; lse2 [tokens, q_heads] float64, base 2.
    A row without keys has only scores of -inf, for which softmax gives NaN; its output is set to
    zero.
    """
    k, v = (x.transpose(0, 1) for x in (k, v))
    q = q.transpose(0, 1).unflatten(0, (len(k), q.shape[1] // len(k)))
    s = q @ k.unsqueeze(1).transpose(2, 3) * scale
    n, n_keys = s.shape[-2:]
    if variant != FULL:
        query, key = (
            torch.arange(n, device=s.device)[:, None],
            torch.arange(n_keys, device=s.device),
        )
        begin, end = (find(query, n, n_keys) for find in (variant.begin, variant.end))
        s = s.masked_fill((key < begin) | (key >= end), -math.inf)
    p = torch.softmax(s, dim=-1).nan_to_num()
    out = (p @ v.unsqueeze(1)).flatten(0, 1).transpose(0, 1)
    lse = torch.logsumexp(s.to(torch.float64), dim=-1)
    return out, (lse / math.log(2)).flatten(0, 1).transpose(0, 1)
