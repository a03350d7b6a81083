"""What each rank of the tests does; the processes import this module."""

import os
import time

import torch

from labkernels.distributed import (
    LostRank,
    Ranks,
    context_parallel_decode,
    decode_in_parts,
    ring_prefill,
    shard,
    zigzag,
)
from labkernels.distributed.decode import MERGES
from labkernels.distributed.ring import ring_rows
from labkernels.kernels.caches.paged import PagedKV

LENGTHS, PAGES, SIZE, HEADS, TOKENS = (170, 9, 97, 0), 11, 16, 8, 48
GRID = [(by, carry) for by in ("contiguous", "interleaved") for carry in ("fp32", "input")]


def drawn(dtype=torch.float16):
    """Return a query and a cache of four requests, one without keys."""
    generator = torch.Generator().manual_seed(0)
    pools = torch.randn(2, len(LENGTHS) * PAGES, SIZE, 2, 64, generator=generator).to(dtype)
    table = torch.randperm(len(LENGTHS) * PAGES, generator=generator).int().view(-1, PAGES)
    q = torch.randn(len(LENGTHS), HEADS, 64, generator=generator).to(dtype)
    return q, PagedKV(*pools, table, torch.tensor(LENGTHS, dtype=torch.int32))


def tokens():
    return torch.randn(3, TOKENS, 2, 64, generator=torch.Generator().manual_seed(1)).half()


def everything(ranks):
    """Return what one rank of four saw; the last one ends without a word."""
    pair = Ranks.join([0, 1], timeout_s=10)
    hasty = Ranks.join([0, 1], timeout_s=1)
    found = {4: same_bits(ranks), "refused": refusals(ranks)}
    if ranks.rank < 2:
        found[2] = same_bits(pair)
        found["timed out"] = said(lambda: patience(hasty))
    ranks.agree(lambda: (None, {}))
    if ranks.rank == 3:
        os._exit(7)
    start = time.monotonic()
    found["lost"] = said(lambda: context_parallel_decode(*drawn(), ranks))
    found["seconds"] = time.monotonic() - start
    return found


def said(call):
    """Return the kind and the words of an error."""
    try:
        call()
    except (LostRank, ValueError) as error:
        return type(error).__name__, str(error)
    return "", ""


def same_bits(ranks):
    """Return what differs from one process; scatter, whose order is the library's, is near."""
    (q, cache), wrong = drawn(), []
    heads = slice(ranks.rank * HEADS // ranks.size, (ranks.rank + 1) * HEADS // ranks.size)
    for by, carry in GRID:
        want = decode_in_parts(q, cache, ranks.size, by=by, carry=carry).outputs()[:2]
        for merge in MERGES:
            own = shard(cache, ranks.rank, ranks.size, by)
            got = context_parallel_decode(q, own, ranks, merge=merge, carry=carry).outputs()
            mine = [x if merge == "gather" else x[:, heads] for x in want]
            if merge == "scatter":
                near = (got.out - mine[0]).abs().max() <= (2e-3 if carry == "fp32" else 8e-3)
                alike = bool(near) and torch.allclose(got.lse2, mine[1], rtol=1e-6)
            else:
                alike = all(torch.equal(a, b) for a, b in zip(got, mine, strict=True))
            wrong += [(by, carry, merge)] * (not alike)
    return wrong + [carry for carry in ("fp32", "input") if not ring_alike(ranks, carry)]


def ring_alike(ranks, carry):
    """Return whether the ring has the bits of one process that takes the blocks in its order."""
    parts = [tokens()[:, zigzag(TOKENS, rank, ranks.size)] for rank in range(ranks.size)]
    q, k, v = parts[ranks.rank]
    got = ring_prefill(q, k, v, ranks, carry=carry)
    order = [(ranks.rank - step) % ranks.size for step in range(ranks.size)]
    blocks = iter([(origin, *parts[origin][1:]) for origin in order])
    want = ring_rows(q, blocks, ranks.rank, causal=True, carry=carry)
    return all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def refusals(ranks):
    """Return what each of four ranks says if rank 2 differs from the others."""
    odd = ranks.rank == 2
    q, cache = drawn()
    bf16, bf16_cache = drawn(torch.bfloat16)
    own = shard(cache, ranks.rank, 4)
    wide = shard(cache, ranks.rank, 3) if odd else own
    call = context_parallel_decode
    return [
        said(lambda: call(bf16 if odd else q, bf16_cache if odd else own, ranks)),
        said(lambda: call(q[:3] if odd else q, own, ranks)),
        said(lambda: call(q, wide, ranks)),
        said(lambda: call(q, own, ranks, carry="input" if odd else "fp32")),
        said(lambda: call(q, own, ranks, window_left=4)),
        said(lambda: ring_prefill(*tokens()[:, : 16 if odd else 8], ranks)),
    ]


def patience(ranks):
    """Ask the others for facts, of which rank 1 has none within the time."""
    if ranks.rank == 1:
        time.sleep(1.5)
        raise LostRank("late")
    ranks.agree(lambda: (None, {}))
