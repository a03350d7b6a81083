"""The two roads of torch SDPA and FlashInfer: a whole prefill, and the last tokens alone."""

import math
from collections.abc import Callable

from labkernels.measure import peers
from labkernels.measure.roads import HEAD_DIM, HEADS, Samples

SCALE = 1 / math.sqrt(HEAD_DIM)


def torch_whole(given: Samples):
    """torch's flash backend on each sample's tokens. Shapes: [samples, HEADS, HEAD_DIM]."""
    return _torch(given, last=False)


def torch_last(given: Samples):
    """The same on the last token of each sample and all its keys."""
    return _torch(given, last=True)


def _torch(given: Samples, *, last: bool):
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    outs = []
    for i in range(len(given.lengths)):
        q, k, v = (x.transpose(0, 1)[None] for x in given.one(i).qkv.unbind(1))
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            out = torch.nn.functional.scaled_dot_product_attention(
                q[:, :, -1:] if last else q, k, v, is_causal=not last, scale=SCALE
            )
        outs.append(out[0, :, -1])
    return torch.stack(outs)


def torch_last_of_copies(given: Samples, copies: int):
    """The last token of the first sample, in a batch of copies of it: all alike, or not."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (x.transpose(0, 1)[None] for x in given.one(0).qkv.unbind(1))
    many = [x.expand(copies, -1, -1, -1).contiguous() for x in (q[:, :, -1:], k, v)]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return torch.nn.functional.scaled_dot_product_attention(*many, scale=SCALE)[:, :, 0]


def flashinfer_whole(given: Samples):
    """FlashInfer's ragged prefill, fa2, on all tokens; the last ones' outputs."""
    import flashinfer

    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(
        _workspace(given), "NHD", backend="fa2"
    )
    wrapper.plan(
        given.ends,
        given.ends,
        HEADS,
        HEADS,
        HEAD_DIM,
        causal=True,
        sm_scale=SCALE,
        q_data_type=given.qkv.dtype,
    )
    q, k, v = (x.contiguous() for x in given.qkv.unbind(1))
    return wrapper.run(q, k, v)[given.last_tokens]


def flashinfer_step(given: Samples, cache, *, tensor_cores: bool, **knobs) -> Callable[[], object]:
    """FlashInfer's paged decode of the last tokens over a cache that holds them.

    `knobs` go to its plan: fixed_split_size, disable_split_kv.
    """
    import flashinfer
    import torch

    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        _workspace(given),
        "NHD",
        use_tensor_cores=tensor_cores,
        backend="fa2" if tensor_cores else "auto",
    )
    q = given.qkv[given.last_tokens, 0].contiguous()
    wrapper.plan(
        *peers.page_lists(cache),
        HEADS,
        HEADS,
        HEAD_DIM,
        cache.k.shape[1],
        q_data_type=q.dtype,
        kv_data_type=q.dtype,
        sm_scale=SCALE,
        **knobs,
    )
    out = torch.empty_like(q)
    return lambda: wrapper.run(q, (cache.k, cache.v), out=out)


def _workspace(given: Samples):
    import torch

    return torch.empty(peers.FLASHINFER_WORKSPACE_BYTES, dtype=torch.uint8, device=given.qkv.device)
