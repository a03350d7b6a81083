"""Plain torch attention, one request at a time, over K and V gathered from their pages."""

import math

import torch

from labkernels.kernels.call import Attention, Step, plan_of
from labkernels.kernels.decode.call import DecodeCall


def prepare(call: DecodeCall) -> Step[Attention]:
    """Prepare the torch operations of a decode, which read the lengths when they run."""
    cache = call.cache
    plan = plan_of(
        call,
        blocks=cache.batch * cache.kv_heads,
        keys_per_split=max(1, cache.max_kv_len),
        batch_invariant=call.keys_per_split is not None,
    )

    def run() -> None:
        for i, length in enumerate(cache.kv_len.tolist()):
            _attend(call, i, length)

    return Step(run, call.outputs, plan)


def _attend(call: DecodeCall, i: int, length: int) -> None:
    cache, policy = call.cache, call.choice.instance.policy
    if length == 0:
        call.out[i], call.lse2[i] = 0.0, -math.inf
        return
    dtype = torch.float64 if policy.p == "fp64" else call.q.dtype
    k, v = (x.to(dtype).transpose(0, 1) for x in cache.of_request(i))
    q = call.q[i].reshape(cache.kv_heads, call.group, -1).to(dtype)
    s = q @ k.transpose(1, 2) * call.scale
    p = torch.softmax(s, dim=-1)
    call.out[i] = (p @ v).reshape(call.out[i].shape)
    lse = torch.logsumexp(s.to(torch.float64), dim=-1)
    call.lse2[i] = (lse / math.log(2)).reshape(-1)
