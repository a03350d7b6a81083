"""The order of a sum across a wire: decodes and rings by how their parts travel."""

import itertools
from collections.abc import Sequence

import torch

from labkernels import distributed
from labkernels.distributed.decode import MERGES
from labkernels.distributed.shards import SPLITS
from labkernels.kernels.decode.inputs import DecodeInputs, decode_inputs
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.merge_states.api import merge_states
from labkernels.kernels.prefill.inputs import PrefillInputs, prefill_inputs
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.random_inputs import ExactNormal

SHAPE = {"q_heads": 4, "kv_heads": 2, "head_dim": 64, "dtype": "bf16"}
CARRIES = {"fp32": ("fp32", False), "bf16 once": ("input", False), "bf16 hops": ("input", True)}


def decode_of(*lengths: int) -> DecodeInputs:
    """Return a decode whose bits are the same on every machine."""
    return decode_inputs(Decode(lengths, **SHAPE), ExactNormal(0, "cpu"))


def prefill_of(*lengths: int) -> PrefillInputs:
    """Return a causal prefill whose bits are the same on every machine."""
    return prefill_inputs(Prefill(lengths, lengths, causal=True, **SHAPE), ExactNormal(1, "cpu"))


def in_parts(inputs: DecodeInputs, ranks: int, carry: str, **options) -> torch.Tensor:
    """Return the output of a decode over ranks whose parts travel in a way of CARRIES."""
    how, hops = CARRIES[carry]
    options |= {"carry": how, "scale": inputs.scale}
    done = distributed.decode_in_parts(*inputs.arguments, ranks, **options)
    if not hops:
        return done.out
    out, lse2 = done.outs[0], done.lse2s[0]
    for part, of_part in zip(done.outs[1:], done.lse2s[1:], strict=True):
        out, lse2 = merge_states(torch.stack([out, part]), torch.stack([lse2, of_part])).outputs()
    return out


def ring(inputs: PrefillInputs, ranks: int, carry: str, **options) -> torch.Tensor:
    """Return the output of a ring prefill of each request, all ranks in this process."""
    out, ends = torch.empty_like(inputs.q), inputs.cu_seqlens_q.tolist()
    options |= {"carry": CARRIES[carry][0], "scale": inputs.scale, "causal": True}
    for first, end in itertools.pairwise(ends):
        q, k, v, to = (x[first:end] for x in (inputs.q, inputs.kv.k, inputs.kv.v, out))
        owned = [distributed.zigzag(end - first, rank, ranks) for rank in range(ranks)]
        for rank, own in enumerate(owned):
            order = [(rank - step) % ranks for step in range(ranks)]
            blocks = [distributed.Block(j, k[owned[j]], v[owned[j]]) for j in order]
            step = distributed.ring_rows_step(q[own], blocks, rank, **options)
            step.run()
            to[own] = step.out
    return out


def on_ranks(ranks: distributed.Ranks, lengths: Sequence[int]) -> list[tuple]:
    """Return pages, merge, and the shares of outputs and LSEs with other bits, in percent.

    A rank's results are compared with those of one process that has all pages.
    """
    inputs, rows = decode_of(*lengths), []
    heads = inputs.workload.q_heads // ranks.size
    mine = slice(ranks.rank * heads, (ranks.rank + 1) * heads)
    for by in SPLITS:
        how = {"scale": inputs.scale}
        want = distributed.decode_in_parts(*inputs.arguments, ranks.size, by=by, **how)
        own = distributed.shard(inputs.cache, ranks.rank, ranks.size, by)
        for merge in MERGES:
            done = distributed.context_parallel_decode(inputs.q, own, ranks, merge=merge, **how)
            right = [x if merge == "gather" else x[:, mine] for x in want.outputs()[:2]]
            pairs = zip(done.outputs(), right, strict=True)
            rows.append((by, merge, *(100 * float((x != y).double().mean()) for x, y in pairs)))
    return rows
