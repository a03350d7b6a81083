"""Kernels, right and mutated, as functions of tensors that the probe calls."""

from collections.abc import Callable

import torch

from labkernels import ops
from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.kernels.kernel import Kernel
from labkernels.measure.mutants import decode
from labkernels.probing import Datasheet, probe

KEYS_PER_SPLIT = 64  # so that requests of the probe are cut into several splits


def of_decode(kernel: str | Kernel) -> Callable:
    """Return a decode kernel as the probe calls one, over pages of keys and values."""

    def call(q, k_pages, v_pages, page_table, kv_lens):
        # the lab's kernels take rows whose channels are neighbours
        cache = PagedKV(k_pages.contiguous(), v_pages.contiguous(), page_table, kv_lens)
        how = {"kernel": kernel, "keys_per_split": KEYS_PER_SPLIT}
        step = ops.decode(q.contiguous(), cache, out=torch.zeros(q.shape, dtype=q.dtype), **how)
        return step.out, step.lse2

    return call


def of_prefill(kernel: str | Kernel) -> Callable:
    """Return a prefill kernel without a mask as the probe calls one, over ragged tokens."""

    def call(q, k, v, cu_q, cu_k):
        kv = RaggedKV(k.contiguous(), v.contiguous(), cu_k)
        step = ops.prefill(q.contiguous(), kv, cu_q, kernel=kernel, causal=False)
        return step.out, step.lse2

    return call


def mutant(name: str) -> Kernel:
    """Return decode_mma with a bug of `measure.mutants` built in."""
    return decode.MUTANTS[name].spec("decode_mma")


def sheet(kernel: str | Kernel, layout: str, name: str) -> Datasheet:
    """Return the datasheet of a kernel in bf16, by few and small calls."""
    call = {"paged_decode": of_decode, "ragged": of_prefill}[layout](kernel)
    return probe(call, layout, "bf16", heads=(4, 2), head_dim=64, name=name, quick=True)


def facts(sheets: list[Datasheet]) -> list[dict[str, str]]:
    """Return what was read of each kernel, a row per fact and a column per kernel."""
    names = dict.fromkeys(name for each in sheets for name in each.facts)
    rows = [
        {"fact": name} | {s.name: s.facts[name].value if name in s.facts else "–" for s in sheets}
        for name in names
    ]
    defects = {
        s.name: "; ".join(f"{d.kind}: {d.where}" for d in s.defects) or "none" for s in sheets
    }
    return [{"fact": "defect"} | defects, *rows]
