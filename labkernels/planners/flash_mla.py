"""FlashMLA's dense decode: parts of the GPU take an equal share of all blocks, in order."""

from itertools import pairwise

from labkernels.hardware import Gpu
from labkernels.planners.cut import Batch, Cut, NotKnown, ceil, one_length

BLOCK_KEYS, BLOCK_ROWS = 64, 64
OVERHEAD = 5  # blocks that a piece of a request counts more


def flash_mla(batch: Batch, gpu: Gpu) -> Cut:
    """Return the cut of flash_mla_with_kvcache, where the requests before one move its splits.

    How it rounds P in its two warpgroups was not read, so that no heads are predicted.
    Raises: NotKnown outside sm_90, and if query lengths differ.
    Source: deepseek-ai/FlashMLA, csrc/api/dense_decode.h and
    csrc/smxx/decode/get_decoding_sched_meta/get_decoding_sched_meta.cu, 9241ae3.

    >>> from labkernels.hardware import gpu
    >>> flash_mla(Batch((4096,), 128, 1, 576), gpu("h200")).label()
    '64 x 64, 32 splits of 128'
    """
    if gpu.arch != "sm_90":
        raise NotKnown(f"FlashMLA's dense decode on {gpu.arch}")
    rows = one_length(batch.queries, "q_lens") * batch.group
    parts = max(gpu.sm_count // batch.kv_heads // ceil(rows, BLOCK_ROWS), 1)
    blocks = [max(ceil(n, BLOCK_KEYS), 1) for n in batch.kv_lens]
    share = ceil(sum(blocks) + OVERHEAD * batch.size, parts) + OVERHEAD
    ends: list[list[int]] = [[0] for _ in blocks]
    left = share
    for of, n in zip(ends, blocks, strict=True):
        while left < n - of[-1] + OVERHEAD:
            if left > OVERHEAD:
                of.append(of[-1] + left - OVERHEAD)
            left = share
        left -= n - of[-1] + OVERHEAD
        of.append(n)
    splits = tuple(
        tuple((a * BLOCK_KEYS, min(b * BLOCK_KEYS, n)) for a, b in pairwise(of))
        for of, n in zip(ends, batch.kv_lens, strict=True)
    )
    return Cut("FlashMLA", BLOCK_ROWS, BLOCK_KEYS, splits, "ascending", p="")
