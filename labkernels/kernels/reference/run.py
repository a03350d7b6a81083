"""Plain torch attention, one request at a time, over K and V gathered from their pages."""

import math

import torch

from labkernels.kernels.decode_step import DecodeRequest, make_plan
from labkernels.kernels.step import Step


def prepare(request: DecodeRequest) -> Step:
    """Fix the torch operations of a decode; it reads the lengths when it runs."""
    plan = make_plan(
        request,
        keys_per_split=max(1, request.cache.max_kv_len),
        splits=1,
        blocks_per_sm=1,
        smem_bytes=0,
        registers=None,
        cpu="torch on the CPU",
    )

    def run() -> None:
        for i, length in enumerate(request.cache.kv_len.tolist()):
            _attend(request, i, length)

    return Step(run, request.out, request.lse2, plan)


def _attend(request: DecodeRequest, i: int, length: int) -> None:
    cache, policy = request.cache, request.instance.policy
    if length == 0:
        request.out[i], request.lse2[i] = 0.0, -math.inf
        return
    dtype = torch.float64 if policy.p == "fp64" else request.q.dtype
    k, v = (x.to(dtype).transpose(0, 1) for x in cache.of_request(i))
    q = request.q[i].reshape(cache.kv_heads, request.group, -1).to(dtype)
    s = q @ k.transpose(1, 2) * request.scale
    p = torch.softmax(s, dim=-1)
    request.out[i] = (p @ v).reshape(request.out[i].shape)
    lse = torch.logsumexp(s.to(torch.float64), dim=-1)
    request.lse2[i] = (lse / math.log(2)).reshape(-1)
