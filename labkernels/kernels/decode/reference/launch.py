"""Plain torch attention, one request at a time, over K and V gathered from their pages."""

import torch

from labkernels.kernels.call import Attention, Step, plan_of
from labkernels.kernels.decode.call import DecodeCall
from labkernels.kernels.packed_gqa.reference import softmax


def prepare(call: DecodeCall) -> Step[Attention]:
    """Prepare the torch operations of a decode, which read the lengths when they run."""
    cache = call.cache
    plan = plan_of(
        call,
        blocks=cache.batch * cache.kv_heads,
        keys_per_split=max(1, cache.max_kv_len),
        batch_invariant=call.by_length or call.keys_per_split is not None,
    )

    def run() -> None:
        for i in range(cache.batch):
            _attend(call, i)

    return Step(run, call.outputs, plan)


def _attend(call: DecodeCall, i: int) -> None:
    cache, policy = call.cache, call.choice.instance.policy
    dtype = torch.float64 if policy.p == "fp64" else call.q.dtype
    k, v = (x.to(dtype).transpose(0, 1) for x in cache.of_request(i))
    q = call.q[i].reshape(cache.kv_heads, call.group, -1).to(dtype)
    s = q @ k.transpose(1, 2) * call.scale
    p, lse2 = softmax(s[:, :, None], call.variant, call.variant_tensors)
    call.out[i] = (p[:, :, 0] @ v).reshape(call.out[i].shape)
    call.lse2[i] = lse2.reshape(-1)
