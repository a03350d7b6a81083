"""The roads of libraries to the last tokens of Two roads: in a full pass, and over a cache."""

from collections.abc import Callable
from typing import Any

from labkernels.chapters.two_roads import SCALE, Samples
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.measure.peers import flash_attention_2, flashinfer, torch_sdpa
from labkernels.measure.peers.peer import Tensors

FLASH = "FLASH_ATTENTION"


def torch_whole(given: Samples):
    """Run torch's flash backend on each sample's tokens. Shapes: [samples, HEADS, HEAD_DIM]."""
    return _torch(given, last=False)


def torch_last(given: Samples):
    """Run the same backend on the last token of each sample and all its keys."""
    return _torch(given, last=True)


def _torch(given: Samples, *, last: bool):
    import torch

    outs = []
    for i in range(len(given.lengths)):
        q, k, v = _dense(given.one(i))
        rows = q[:, :, -1:] if last else q
        out = torch_sdpa.attention(FLASH, rows, k, v, is_causal=not last, scale=SCALE)
        outs.append(out[0, :, -1])
    return torch.stack(outs)


def torch_last_of_copies(given: Samples, copies: int):
    """Run the first sample's last token in a batch of its copies, whose bits may differ."""
    q, k, v = _dense(given.one(0))
    many = [x.expand(copies, -1, -1, -1).contiguous() for x in (q[:, :, -1:], k, v)]
    return torch_sdpa.attention(FLASH, *many, scale=SCALE)[:, :, 0]


def _dense(given: Samples):
    """Return q, k and v of one sample. Shapes: [1, HEADS, length, HEAD_DIM]."""
    return (x.transpose(0, 1)[None] for x in given.qkv.unbind(1))


def flash_attention_whole(given: Samples):
    """Run FlashAttention-2's full pass on all tokens; return the outputs of the last ones."""
    how = {"longest": max(given.lengths), "scale": SCALE}
    return flash_attention_2.packed(given.qkv, given.ends, **how)[given.last_tokens]


def flash_attention_last(given: Samples, *, num_splits: int = 0):
    """Append the last tokens to FlashAttention-2's cache, which has room for the longest sample."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    q, k, v = (x[given.last_tokens, None] for x in given.qkv.unbind(1))
    caches = pad_sequence(given.qkv.split(given.lengths), batch_first=True).unbind(2)
    before = torch.tensor(given.lengths, dtype=torch.int32, device=q.device) - 1
    cache = Tensors(q, caches[1].contiguous(), caches[2].contiguous(), SCALE, True)
    how = {"new": (k, v), "kv_len": before, "num_splits": num_splits}
    return flash_attention_2.kvcache(cache, **how)[:, 0]


def flashinfer_whole(given: Samples):
    """Run FlashInfer's ragged prefill, fa2, on all tokens; return the outputs of the last ones."""
    q, k, v = (x.contiguous() for x in given.qkv.unbind(1))
    how = {"causal": True, "scale": SCALE, "backend": "fa2"}
    step = flashinfer.prefill_step(q, RaggedKV(k, v, given.ends), given.ends, **how)
    return step.outputs().out[given.last_tokens]


def flashinfer_step(given: Samples, cache, *, tensor_cores: bool, **knobs) -> Callable[[], Any]:
    """Return FlashInfer's paged decode of the last tokens, over a cache that holds them.

    `knobs` go to its plan: fixed_split_size, disable_split_kv.
    """
    q = given.qkv[given.last_tokens, 0].contiguous()
    how = {"tensor_cores": tensor_cores, "backend": "fa2" if tensor_cores else "auto"}
    return flashinfer.decode_step(q, cache, scale=SCALE, **how, **knobs).run
