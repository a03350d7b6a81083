"""Parts of a decode and of a ring prefill, right and wrong, for error model and verdict."""

import functools
from dataclasses import replace

import torch

from labkernels.distributed import decode_in_parts, shard, zigzag
from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.ops import merge_states, prefill
from labkernels.policy import TENSOR_CORES

KEYS, PAGE, HEADS, TOKENS = 512, 4, 4, 32
FP32_OUT = replace(TENSOR_CORES, out="fp32")


@functools.cache
def decode_of(ranks, carry="fp32", dtype=torch.bfloat16):
    """Return the query, each rank's cache, and the decode in parts."""
    generator = torch.Generator().manual_seed(ranks)
    pages = 2 * KEYS // PAGE
    pools = torch.randn(2, pages, PAGE, 2, 64, generator=generator).to(dtype)
    table = torch.randperm(pages, generator=generator).int().view(2, -1)
    cache = PagedKV(*pools, table, torch.tensor([KEYS, KEYS - 3], dtype=torch.int32))
    q = torch.randn(2, HEADS, 64, generator=generator).to(dtype)
    return (
        q,
        [shard(cache, i, ranks) for i in range(ranks)],
        decode_in_parts(q, cache, ranks, carry=carry),
    )


def by_hops(outs, lse2s):
    """Return the merge of one part after the other, each rounded to the format of outs."""
    out, lse2 = outs[0], lse2s[0]
    for part, of_part in zip(outs[1:], lse2s[1:], strict=True):
        done = merge_states(torch.stack([out, part]), torch.stack([lse2, of_part]))
        out, lse2 = done.outputs()
    return out


@functools.cache
def ring_of(shift=0):
    """Return the rows of rank 1 of 2 and the keys of each part, with the parts' outputs.

    Rank 1 has chunks 1 and 2 of 4, and its last chunk sees chunk 0 of rank 0, too. shift: places by
    which the causal mask of its own keys is misaligned.
    """
    generator = torch.Generator().manual_seed(5)
    q, k, v = torch.randn(3, TOKENS, 2, 64, generator=generator).half()
    own, other = (zigzag(TOKENS, rank, 2) for rank in (1, 0))
    rows, quarter = own, TOKENS // 4
    parts = [(k[own], v[own], True), (k[other][:quarter], v[other][:quarter], False)]
    outs, lse2s, caches = [], [], []
    for keys, values, causal in parts:
        ends, of_q = (torch.tensor([0, n], dtype=torch.int32) for n in (len(keys), len(rows)))
        kv = RaggedKV(keys, values, ends)
        how = {"window_right": shift} if causal and shift else {"causal": causal}
        done = prefill(q[rows], kv, of_q, policy=FP32_OUT, **how)
        outs.append(done.out)
        lse2s.append(done.lse2)
        caches.append(kv)
    return q[rows], of_q, caches, outs, lse2s
