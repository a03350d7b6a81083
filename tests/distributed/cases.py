"""A decode in parts, and a ring's parts, for error model and verdict."""

import functools

import torch

from labkernels.chapters import across_a_wire as chapter
from labkernels.distributed import Rows, decode_in_parts, shard, zigzag
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.ops import prefill


@functools.cache
def parts_of(ranks, carry="fp32"):
    """Return a decode, each rank's cache, and the decode in parts."""
    inputs = chapter.decode_of(1024, 1000)
    shards = [shard(inputs.cache, rank, ranks) for rank in range(ranks)]
    done = decode_in_parts(*inputs.arguments, ranks, carry=carry, scale=inputs.scale)
    return inputs, shards, done


def rows_of(ranks, tokens=48):
    """Return a prefill, and what each rank of a ring has of it and of its backward pass."""
    inputs = chapter.prefill_of(tokens)
    ends, cache = torch.tensor([0, tokens], dtype=torch.int32), inputs.kv
    out, lse2 = prefill(inputs.q, cache, ends, causal=True).outputs()
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    whole = Rows(dout, inputs.q, cache.k, cache.v, out, lse2)
    places = [zigzag(tokens, rank, ranks) for rank in range(ranks)]
    return inputs, whole, places, [Rows(*(x[place] for x in whole)) for place in places]


def ring_of(shift):
    """Return the rows of rank 1 of 2 over its own keys and over the chunk that both see.

    shift: keys by which the causal mask of its own keys is misaligned.
    """
    inputs = chapter.prefill_of(32)
    own, other = (zigzag(32, rank, 2) for rank in (1, 0))
    q, caches, done = inputs.q[own], [], []
    for keys, mask in ((own, {"window_right": shift}), (other[:8], {})):
        ends, of_q = (torch.tensor([0, len(x)], dtype=torch.int32) for x in (keys, own))
        caches.append(RaggedKV(inputs.kv.k[keys], inputs.kv.v[keys], ends))
        done.append(prefill(q, caches[-1], of_q, scale=inputs.scale, **mask).outputs())
    return q, of_q, caches, done
