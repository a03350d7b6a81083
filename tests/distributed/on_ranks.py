"""What each rank of the tests does; the processes import this module."""

import itertools
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from labkernels.chapters import across_a_wire as chapter
from labkernels.distributed import (
    Block,
    LostRank,
    Ranks,
    context_parallel_decode,
    decode_in_parts,
    order_of_sums,
    ring_backward,
    ring_backward_in_turn,
    ring_prefill,
    ring_rows_step,
    shard,
    sums_in_order,
    zigzag,
)
from labkernels.distributed.decode import CARRIES, MERGES
from labkernels.distributed.shards import SPLITS
from labkernels.experiments.performance import ranks as recorded
from labkernels.kernels.caches.paged import PagedKV
from tests.distributed.cases import rows_of

LENGTHS, TOKENS, HEADS = (170, 9, 97, 0), 48, 4


def everything(ranks):
    """Return what one rank of four saw; the last one ends without a word."""
    pair, hasty = (Ranks.join([0, 1], timeout_s=limit) for limit in (20, 1))
    found = {4: other_bits(ranks), "refused": refusals(ranks)}
    if ranks.rank < 2:
        found[2] = other_bits(pair)
        if ranks.rank == 1:
            time.sleep(1.5)
        else:
            found["late"] = said(lambda: hasty.agree(lambda: (None, {})))
    ranks.agree(lambda: (None, {}))
    if ranks.rank == 3:
        os._exit(7)
    start = time.monotonic()
    found["lost"] = said(lambda: ranks.agree(lambda: (None, {})))
    return found | {"seconds": time.monotonic() - start}


def hangs(ranks):
    """Wait for a rank that does not answer."""
    time.sleep(1000 * (ranks.rank == 1))
    ranks.agree(lambda: (None, {}))


def ends(ranks, *signals):
    """End by a signal, rank 1 before rank 0, or hang."""
    time.sleep(0 if ranks.rank else 0.5)
    if signals[ranks.rank]:
        os.kill(os.getpid(), signals[ranks.rank])
    time.sleep(1000)


def said(call):
    """Return the kind and the words of an error."""
    try:
        call()
    except (LostRank, ValueError) as error:
        return type(error).__name__, str(error)
    return "", ""


def other_bits(ranks):
    """Return what differs from one process; scatter, whose order is the library's, is near."""
    inputs, wrong = chapter.decode_of(*LENGTHS), []
    mine = slice(ranks.rank * HEADS // ranks.size, (ranks.rank + 1) * HEADS // ranks.size)
    for by, carry in (("contiguous", "fp32"), ("interleaved", "fp32"), ("interleaved", "input")):
        own = shard(inputs.cache, ranks.rank, ranks.size, by)
        want = decode_in_parts(*inputs.arguments, ranks.size, by=by, carry=carry).outputs()[:2]
        for merge in MERGES:
            got = context_parallel_decode(inputs.q, own, ranks, merge=merge, carry=carry).outputs()
            pairs = zip(got, [x if merge == "gather" else x[:, mine] for x in want], strict=True)
            if merge == "scatter":  # weighted parts are rounded once more to bf16
                alike = all(torch.allclose(x, y, rtol=2**-6, atol=2**-8) for x, y in pairs)
            else:
                alike = all(torch.equal(x, y) for x, y in pairs)
            wrong += [(by, carry, merge)] * (not alike)
    wrong += [carry for carry in ("fp32", "input") if not ring_alike(ranks, carry)]
    for causal in (True, False):
        *_, rows = rows_of(ranks.size)
        got = ring_backward(*rows[ranks.rank], ranks, causal=causal)
        want = ring_backward_in_turn(rows, causal=causal)[ranks.rank]
        if not again(got, want):
            wrong.append(("gradients", causal))
    return wrong


def ring_alike(ranks, carry):
    """Return whether the ring has the bits of one process that takes the blocks in its order."""
    given = chapter.prefill_of(TOKENS)
    parts = [
        [x[zigzag(TOKENS, rank, ranks.size)] for x in (given.q, given.kv.k, given.kv.v)]
        for rank in range(ranks.size)
    ]
    q, k, v = parts[ranks.rank]
    order = [(ranks.rank - step) % ranks.size for step in range(ranks.size)]
    blocks = [Block(origin, *parts[origin][1:]) for origin in order]
    alone = ring_rows_step(q, blocks, ranks.rank, causal=True, carry=carry)
    alone.run()
    return again(ring_prefill(q, k, v, ranks, carry=carry), alone.outputs())


def again(step, want):
    """Return whether a step has these bits, and once more into memory that was cleared."""
    alike = True
    for run in (lambda: None, step.run):
        run()
        alike &= all(torch.equal(x, y) for x, y in zip(step.outputs(), want, strict=True))
        for x in step.outputs():
            x.zero_()
    return alike


def refusals(ranks):
    """Return what each of four ranks says if rank 2 differs from the others."""
    odd, inputs = ranks.rank == 2, chapter.decode_of(*LENGTHS)
    q, own = inputs.q, shard(inputs.cache, ranks.rank, 4)
    wide = shard(inputs.cache, ranks.rank, 3) if odd else own
    ring, rows = chapter.prefill_of(16 if odd else 8), rows_of(4)[-1][ranks.rank]
    return [
        said(lambda: context_parallel_decode(q.half() if odd else q, own, ranks)),
        said(lambda: context_parallel_decode(q, wide, ranks)),
        said(lambda: context_parallel_decode(q, own, ranks, carry="input" if odd else "fp32")),
        said(lambda: context_parallel_decode(q, own, ranks, window_left=4)),
        said(lambda: ring_prefill(ring.q, ring.kv.k, ring.kv.v, ranks)),
        said(lambda: ring_prefill(rows.q, rows.k, rows.v, ranks, kernel="none")),
        said(lambda: ring_backward(*rows, ranks, kernel="none")),
        said(lambda: ring_backward(*rows[:5], rows.lse2.double() if odd else rows.lse2, ranks)),
    ]


def sums(ranks, numbers):
    """Return the trees of sums that a probe saw, and how many sums are not as it saw them.

    The last two counts are sums that are not in the order of the ranks, and orders that changed.
    """
    draws = [torch.Generator().manual_seed(rank) for rank in range(ranks.size)]
    parts = torch.stack([torch.empty(numbers).normal_(generator=draw) for draw in draws])
    met, total = order_of_sums(ranks, parts[0]), parts[ranks.rank].clone()
    dist.all_reduce(total, group=ranks.group)
    again = order_of_sums(ranks, parts[0])
    found = (total != sums_in_order(parts, met), total != sum(parts), met != again)
    trees = [tree for tree, _ in itertools.groupby(met[:: numbers // 100].tolist())]
    return trees, *(int(x.sum()) for x in found)


def on_device(device):
    """Return a decode whose bits are the same on every machine, with its tensors on a device."""
    inputs = chapter.decode_of(1024, 1021, 700, 512)
    cache = PagedKV(*(x.to(device) for x in inputs.cache.tensors.values()))
    how = {"scale": inputs.scale} | ({"target": "h200"} if device == "cpu" else {})
    return inputs.q.to(device), cache, how


def parts(device, ranks):
    """Return the outputs of a decode in parts, and the parts, for each way to split and carry."""
    q, cache, how = on_device(device)
    ways = itertools.product(SPLITS, CARRIES)
    steps = [decode_in_parts(q, cache, ranks, by=by, carry=carry, **how) for by, carry in ways]
    return [x.cpu() for step in steps for x in step.outputs()]


def decoded(ranks, device):
    """Return the outputs on one rank that are merged in order, for each way to split and carry."""
    q, cache, how = on_device(device)
    found = []
    for by, carry, merge in itertools.product(SPLITS, CARRIES, MERGES[:2]):
        own = shard(cache, ranks.rank, ranks.size, by)
        step = context_parallel_decode(q, own, ranks, merge=merge, carry=carry, **how)
        found += [x.cpu() for x in step.outputs()]
    return found


def sums_with_a_log(ranks, *given):
    """Return the rows of sums, with a log like NCCL's that says what was told."""
    if ranks.rank == 0:
        algorithm, protocol, channels, _ = (os.environ[name] for name in recorded.TOLD)
        how = f"Algo {algorithm.upper()} proto {protocol.upper()} "
        how += f"channel{{Lo..Hi}}={{0..{int(channels) - 1}}}"
        log = os.environ["NCCL_DEBUG_FILE"].replace("%p", f"{os.getpid()}")
        Path(log).write_text(f"h:1:2 [0] NCCL INFO AllReduce: 4096 Bytes -> {how}\n")
    return recorded.sums(ranks, *given)
