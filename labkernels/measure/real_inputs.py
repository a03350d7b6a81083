"""Q, K and V of a trained model as inputs, where `random_inputs` draws them.

They are heads of SmolLM2-135M-Instruct (Apache 2.0), which has 30 layers of nine query heads and
three KV heads of 64 channels, on 8,192 tokens of Python's language reference. The model ran in
fp32; Q and K, turned by their place, and V are rounded to bf16. The prompts are beginnings of the
one text, and of each the last 64 queries are kept.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.kernels.decode.inputs import DecodeInputs, decode_inputs
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.prefill.inputs import PrefillInputs, prefill_inputs
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.random_inputs import DTYPES, Normal
from labkernels.records import store

GROUP, CHANNELS = 3, 64  # query heads of a KV head, and channels of each
QUERIES = 64  # kept of each prompt, its last


@dataclass(frozen=True)
class Head:
    """A KV head of the model with its query heads. lengths: tokens of its prompts, ascending."""

    layer: int
    kv_head: int
    words: str
    lengths: tuple[int, ...] = (256,)


HEADS = {
    "diffuse": Head(0, 0, "about half of all keys share the weight", (256, 2048)),
    "peaky": Head(1, 0, "the key before a query's own has most weight; scores fall to -31"),
    "own key": Head(11, 2, "one head sees its own key, two its neighbours"),
    "outlier channel": Head(10, 1, "a channel of K is six times as large as the middle one"),
    "first key": Head(18, 2, "the first key has nearly all weight, and its value is small"),
    "large values": Head(24, 2, "V reaches 14; the first key has half of the weight"),
    "long": Head(21, 2, "one head sees the first key, one its own, one many", (256, 2048, 8192)),
}


def prefill_of(
    lengths: Sequence[int] = (256,),
    heads: Sequence[str] = tuple(HEADS),
    *,
    queries: int = QUERIES,
    dtype: str = "bf16",
) -> PrefillInputs:
    """Return the last queries of prompts, causal: a request for each length, a KV head for each.

    Raises: ValueError if the queries of such a prompt are not kept.
    """
    n, kv_heads = len(lengths), len(heads)
    shape = {"q_heads": GROUP * kv_heads, "kv_heads": kv_heads, "head_dim": CHANNELS}
    work = Prefill((queries,) * n, tuple(lengths), **shape, causal=True, dtype=dtype)
    drawn = prefill_inputs(work, Normal(0, "cpu"))
    q = torch.cat([_queries(heads, length, queries) for length in lengths])
    k, v = (torch.cat([_keys(heads, length, part) for length in lengths]) for part in "kv")
    q, k, v = (x.to(DTYPES[dtype]) for x in (q, k, v))
    return replace(drawn, q=q, kv=RaggedKV(k, v, drawn.kv.cu_seqlens))


def decode_of(
    lengths: Sequence[int] = (256,), heads: Sequence[str] = tuple(HEADS), *, dtype: str = "bf16"
) -> DecodeInputs:
    """Return a decode of the last token of prompts: a request for each length.

    Raises: ValueError if the query of such a prompt is not kept.
    """
    shape = {"q_heads": GROUP * len(heads), "kv_heads": len(heads), "head_dim": CHANNELS}
    drawn = decode_inputs(Decode(tuple(lengths), **shape, dtype=dtype), Normal(0, "cpu"))
    for request, length in enumerate(lengths):
        drawn.q[request] = _queries(heads, length, 1)[0].to(drawn.q.dtype)
        page, slot = drawn.cache.places(request)
        for pool, part in zip(drawn.cache.pools, "kv", strict=True):
            pool[page, slot] = _keys(heads, length, part).to(pool.dtype)
    return drawn


def of_both(heads: Sequence[str], dtype: str = "bf16", queries: int = 8) -> dict[str, Any]:
    """Return a decode after 200, 228 and 256 tokens, and the last queries before each, in prefill.

    Chapters show their figures on these inputs, beside random ones.
    """
    lengths = (200, 228, 256)
    prefill = prefill_of(lengths, heads, queries=queries, dtype=dtype)
    return {"decode": decode_of(lengths, heads, dtype=dtype), "prefill": prefill}


def _keys(heads: Sequence[str], length: int, part: str) -> torch.Tensor:
    """Return the first keys or values, [length, heads, CHANNELS]."""
    return torch.stack([_kept(name, part)[:length] for name in heads], 1)


def _queries(heads: Sequence[str], length: int, queries: int) -> torch.Tensor:
    """Return the last queries of a prompt, [queries, GROUP * heads, CHANNELS]."""
    found = []
    for name in heads:
        prompts = HEADS[name].lengths
        places = [place for n in prompts for place in range(n - QUERIES, n)]
        if not set(range(length - queries, length)) <= set(places):
            raise ValueError(
                f"queries {length - queries} to {length - 1} are asked of {name!r}; "
                f"allowed: the last {QUERIES} before {', '.join(map(str, prompts))}"
            )
        end = places.index(length - 1) + 1
        found.append(_kept(name, "q")[end - queries : end])
    return torch.cat(found, 1)


@functools.cache
def _kept(name: str, part: str) -> torch.Tensor:
    """Return q [queries of all prompts, GROUP, CHANNELS], or k or v [tokens, CHANNELS]."""
    head = HEADS[name]
    with np.load(store.path_of("activations.npz")) as file:
        high, low = (file[f"{head.layer}.{head.kv_head}.{part}.{byte}"] for byte in ("high", "low"))
    bits = np.ascontiguousarray(high.astype(np.uint16) << 8 | low)
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
