"""The order of a sum across a wire: decodes in parts, rings, ranks on this CPU, and mutants."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from labkernels.audit.ranks import RanksVerdict, verdict_ranks
from labkernels.budget.roofline import least_time
from labkernels.chapters import live
from labkernels.distributed import (
    Ranks,
    context_parallel_decode,
    decode_in_parts,
    shard,
    zigzag,
)
from labkernels.distributed.decode import MERGES, Parts
from labkernels.distributed.ring import ring_rows
from labkernels.distributed.shards import SPLITS
from labkernels.hardware import Gpu
from labkernels.kernels.decode.inputs import DecodeInputs, decode_inputs, problem_of
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.merge_states.api import merge_states
from labkernels.kernels.prefill.inputs import PrefillInputs, prefill_inputs
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.random_inputs import ExactNormal
from labkernels.kernels.registry import kernels_of
from labkernels.numerics.error import merging
from labkernels.numerics.truth import oracle
from labkernels.policy import TENSOR_CORES

SHAPE = {"q_heads": 4, "kv_heads": 2, "head_dim": 64, "dtype": "bf16"}
LENGTHS = (1024, 1021, 700, 512)
CARRIES = {
    "fp32": ("fp32", False),
    "bf16, once": ("input", False),
    "bf16, at every hop": ("input", True),
}


def decode_of(lengths: Sequence[int] = LENGTHS) -> DecodeInputs:
    """Return a decode whose bits are the same on every machine."""
    return decode_inputs(Decode(tuple(lengths), **SHAPE), ExactNormal(0, "cpu"))


def prefill_of(tokens: int = 64, requests: int = 2) -> PrefillInputs:
    """Return a causal prefill of some requests of equal length."""
    lengths = (tokens,) * requests
    return prefill_inputs(Prefill(lengths, lengths, causal=True, **SHAPE), ExactNormal(1, "cpu"))


def in_parts(inputs: DecodeInputs, ranks: int, carry: str, **options) -> torch.Tensor:
    """Return the output of a decode over ranks whose parts travel in a way of CARRIES."""
    how, hops = CARRIES[carry]
    done = decode_in_parts(*inputs.arguments, ranks, carry=how, scale=inputs.scale, **options)
    if not hops:
        return done.out
    out, lse2 = done.outs[0], done.lse2s[0]
    for part, of_part in zip(done.outs[1:], done.lse2s[1:], strict=True):
        out, lse2 = merge_states(torch.stack([out, part]), torch.stack([lse2, of_part])).outputs()
    return out


def ring(inputs: PrefillInputs, ranks: int, carry: str, **options) -> torch.Tensor:
    """Return the output of ring prefills of each request, all ranks in this process."""
    tokens = inputs.workload.q_lens[0]
    owned = [zigzag(tokens, rank, ranks) for rank in range(ranks)]
    out = torch.empty_like(inputs.q)
    for request in range(len(inputs.workload.q_lens)):
        rows = slice(request * tokens, (request + 1) * tokens)
        q, k, v, to = (x[rows] for x in (inputs.q, inputs.kv.k, inputs.kv.v, out))
        for rank, own in enumerate(owned):
            order = [(rank - step) % ranks for step in range(ranks)]
            blocks = iter([(j, k[owned[j]], v[owned[j]]) for j in order])
            how = {"causal": True, "carry": CARRIES[carry][0], "scale": inputs.scale, **options}
            to[own] = ring_rows(q[own], blocks, rank, **how).out
    return out


def growth(inputs: DecodeInputs, ranks: Sequence[int]) -> pd.DataFrame:
    """Return the rms error over ranks, found and predicted, of each carry: kind, x, y."""
    exact, rows = live.truth(inputs), []
    for n in ranks:
        shards = [shard(inputs.cache, rank, n) for rank in range(n)]
        parts = [problem_of(inputs.q, part, scale=inputs.scale).in_numpy() for part in shards]
        for carry, (how, hops) in CARRIES.items():
            out = in_parts(inputs, n, carry).double().numpy()
            wire = "bf16" if how == "input" else how
            model = merging.sigma_of_parts(parts, TENSOR_CORES.of("bf16"), wire, hops=hops)
            rows += [(f"{carry}, found", n, rms(out - exact))]
            rows += [(f"{carry}, predicted", n, rms(model))]
    return pd.DataFrame(rows, columns=["kind", "x", "y"])


def rms(values: np.ndarray) -> float:
    """Return the root mean square."""
    return float(np.sqrt((values**2).mean()))


def by_kernel(decode: DecodeInputs, prefill: PrefillInputs, ranks: int) -> pd.DataFrame:
    """Return the rms error of each kernel by how its parts travel: a column a carry."""
    rows = []
    for operation, inputs, run in (("decode", decode, in_parts), ("prefill", prefill, ring)):
        exact = live.truth(inputs)
        for kernel in live.KERNELS[operation]:
            alone = rms(live.output(operation, inputs, kernel) - exact)
            found = [
                rms(_wide(run(inputs, ranks, carry, kernel=kernel)) - exact)
                if _stores(operation, kernel, how) and (hops or run is in_parts or how == "fp32")
                else math.nan
                for carry, (how, hops) in CARRIES.items()
            ]
            rows.append((operation, kernel, alone, *found))
    return pd.DataFrame(rows, columns=["operation", "kernel", "one GPU", *CARRIES])


def _stores(operation: str, kernel: str, carry: str) -> bool:
    """Return whether a kernel can store its output in the format of a carry."""
    policies = kernels_of(operation)[kernel].policies
    return carry == "input" or replace(policies[0], out=carry) in policies


def _wide(out: torch.Tensor) -> np.ndarray:
    return out.double().numpy()


def places(decode: DecodeInputs, prefill: PrefillInputs, ranks: int) -> pd.DataFrame:
    """Return the relative error of each head and request, by rank.

    A rank's part of a decode is held against the attention over its own keys; a rank's rows of a
    ring prefill against the attention over all.
    """
    done = decode_in_parts(*decode.arguments, ranks, scale=decode.scale)
    cells, lengths = [], [1] * len(decode.workload.kv_lens)
    for rank in range(ranks):
        own = problem_of(decode.q, shard(decode.cache, rank, ranks), scale=decode.scale)
        outs, exact = {f"rank {rank}": _wide(done.outs[rank])}, oracle.attention(own)[0]
        cells.append(live.cells("decode", outs, np.asarray(exact), lengths))
    merged = {"merged": _wide(done.out)}
    cells.append(live.cells("decode", merged, live.truth(decode), lengths))
    tokens, found = prefill.workload.q_lens[0], _wide(ring(prefill, ranks, "fp32"))
    n, true = len(prefill.workload.q_lens), live.truth(prefill)
    for rank in range(ranks):
        mine = zigzag(tokens, rank, ranks).numpy()
        rows = (np.arange(n)[:, None] * tokens + mine).reshape(-1)
        own_rows = {f"rank {rank}": found[rows]}
        cells.append(live.cells("prefill", own_rows, true[rows], [len(mine)] * n))
    return pd.concat(cells).rename(columns={"way": "kind"})


def on_ranks(ranks: Ranks, lengths: Sequence[int]) -> list[tuple[str, str, float, float]]:
    """Return what a rank sees: pages, merge, and how many outputs differ, and by how much at most.

    It is compared with one process that has all pages.
    """
    inputs, rows = decode_of(lengths), []
    heads = SHAPE["q_heads"] // ranks.size
    mine = slice(ranks.rank * heads, (ranks.rank + 1) * heads)
    for by in SPLITS:
        own = shard(inputs.cache, ranks.rank, ranks.size, by)
        want = decode_in_parts(*inputs.arguments, ranks.size, by=by, scale=inputs.scale)
        for merge in MERGES:
            given = {"merge": merge, "scale": inputs.scale}
            done = context_parallel_decode(inputs.q, own, ranks, **given)
            pairs = [
                (x.double(), y.double())
                for x, y in zip(done.outputs(), want.outputs()[:2], strict=True)
            ]
            pairs = [(x, y if merge == "gather" else y[:, mine]) for x, y in pairs]
            off = [float((x != y).double().mean()) for x, y in pairs]
            rows.append((by, merge, *(100 * share for share in off)))
    return rows


def seen(found: Sequence[Sequence[tuple]]) -> pd.DataFrame:
    """Return the worst of what all ranks saw, a row for each split of the pages and merge."""
    columns = ["pages", "merge", "other outputs, %", "other LSEs, %"]
    rows = pd.concat(pd.DataFrame(each, columns=columns) for each in found)
    return rows.groupby(["pages", "merge"], sort=False).max().reset_index()


def floors(kv_len: int, ranks: Sequence[int], gpu: Gpu) -> pd.DataFrame:
    """Return the least time of a decode on a rank, as bars draw it, and the bytes of its message.

    Units: value in us.
    """
    rows, big = [], {"q_heads": 64, "kv_heads": 8, "head_dim": 128, "dtype": "bf16"}
    for n in ranks:
        work = Decode((kv_len // n,), **big)
        least = 1e6 * least_time(work, gpu, tensor_cores=True).time_s
        bytes_ = {f: Parts(1, 64, 128, d).n_bytes for f, d in _WIRES.items()}
        sent = ", ".join(f"{b / 1024:.0f} KiB in {f}" for f, b in bytes_.items())
        words = f"{least:.0f} µs" + f"; sends {sent}" * (n > 1)
        rows.append((f"{n} GPUs" if n > 1 else "1 GPU", least, words))
    return pd.DataFrame(rows, columns=["name", "value", "words"])


_WIRES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def mistakes(inputs: DecodeInputs, ranks: int = 4) -> pd.DataFrame:
    """Return what the verdict says about mistakes that were planted: mistake, answer, why."""
    q, cache = inputs.arguments
    shards = [shard(cache, rank, ranks) for rank in range(ranks)]
    done = decode_in_parts(q, cache, ranks, scale=inputs.scale)
    outs, lse2s, weights = list(done.outs), list(done.lse2s), torch.exp2(done.lse2s.double())

    def merged(changed: torch.Tensor) -> torch.Tensor:
        shares = changed / changed.sum(0)
        return (shares[..., None] * done.outs.double()).sum(0).to(q.dtype)

    def judged(outs=outs, lse2s=lse2s, out=done.out) -> RanksVerdict:
        return verdict_ranks(outs, lse2s, q, shards, out=out, scale=inputs.scale)

    twice = torch.tensor([1, 2, 1, 1])[:ranks, None, None]
    stale = [outs[0], outs[1], outs[1], *outs[3:]], [lse2s[0], lse2s[1], lse2s[1], *lse2s[3:]]
    natural = [x * math.log(2) if rank == 2 else x for rank, x in enumerate(lse2s)]
    found = {
        "none": judged(),
        "rank 2 gives a natural LSE": judged(lse2s=natural),
        "the merge takes base 2 for base e": judged(out=merged(torch.exp(done.lse2s.double()))),
        "the merge does not weigh": judged(out=merged(torch.ones_like(weights))),
        "rank 1 counts twice": judged(out=merged(weights * twice)),
        "rank 2 sends rank 1's part": judged(*stale),
    }
    rows = [(name, v.answer, v.why.partition(";")[0]) for name, v in found.items()]
    return pd.DataFrame(rows, columns=["planted mistake", "verdict", "why"])


def shifted(tokens: int = 32) -> str:
    """Return the verdict on a ring whose causal mask is one key off between two chunks."""
    from labkernels import ops
    from labkernels.kernels.caches.ragged import RaggedKV

    inputs = prefill_of(tokens, 1)
    own, other = (zigzag(tokens, rank, 2) for rank in (1, 0))
    chunks = (own, other[: tokens // 4])
    caches, done = [], []
    for keys, mask in zip(chunks, ({"window_right": 1}, {}), strict=True):
        ends, of_q = (torch.tensor([0, len(x)], dtype=torch.int32) for x in (keys, own))
        kv = RaggedKV(inputs.kv.k[keys], inputs.kv.v[keys], ends)
        done.append(ops.prefill(inputs.q[own], kv, of_q, scale=inputs.scale, **mask))
        caches.append(kv)
    how = {"causal": [True, False], "cu_seqlens_q": of_q, "scale": inputs.scale}
    outs, lse2s = [x.out for x in done], [x.lse2 for x in done]
    return verdict_ranks(outs, lse2s, inputs.q[own], caches, **how).why.partition(";")[0]
