"""Random inputs of a prefill workload, the same for every implementation."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from labkernels.kernels.caches.mask import pack_mask, unpacked
from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.random_inputs import (
    Draw,
    arrays,
    int32,
    n_pages,
    problem_of_rows,
    scattered,
    sums,
    variant_options,
    variant_tensors,
)
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.truth.variant import VariantTensors
from labkernels.variant import AttentionVariant


@dataclass(frozen=True, eq=False)
class PrefillInputs:
    """Tensors of one workload on one device.

    Shapes: q [total_q, Hq, D]; kv a RaggedKV, or a PagedKV whose pages lie in random order;
    cu_seqlens_q [B + 1]. options: of the verb, those that say which attention, besides causal.
    """

    workload: Prefill
    q: torch.Tensor
    kv: Any  # RaggedKV or PagedKV
    cu_seqlens_q: torch.Tensor
    scale: float
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def variant(self) -> AttentionVariant:
        """Which attention the workload asks for."""
        return self.workload.variant

    @property
    def arguments(self) -> tuple:
        """The arguments of the verb, in its order."""
        return self.q, self.kv, self.cu_seqlens_q

    def problem(self, rows: Sequence[int] | None = None) -> Problem:
        """Return the attention of all or some query tokens as a numerics problem on this device."""
        kv, ends = self.kv, self.cu_seqlens_q.cpu().numpy()
        how = {"scale": self.scale, "cu_seqlens_q": ends, "causal": self.workload.causal}
        w = self.workload
        how["variant"] = masked_variant(self.options, w.q_lens, w.kv_lens)
        q, k, v = arrays(self.q, kv.k, kv.v)
        if isinstance(kv, RaggedKV):
            whole = Problem.packed(q, k, v, kv.cu_seqlens, **how)
        else:
            whole = Problem(q, k, v, kv.page_table, kv.kv_len, **how)
        return problem_of_rows(whole, rows)


def masked_variant(
    options: Mapping[str, Any], q_lens: Sequence[int], kv_lens: Sequence[int]
) -> VariantTensors | None:
    """Return the variant of the options of a prefill for numerics; None for plain attention."""
    others = variant_tensors({name: x for name, x in options.items() if name != "mask"})
    if options.get("mask") is None:
        return others
    return replace(others or VariantTensors(), mask=unpacked(options["mask"], q_lens, kv_lens))


def prefill_inputs(workload: Prefill, draw: Draw) -> PrefillInputs:
    """Draw random q, K and V, in scattered pages if the workload has pages; then the variant's.

    Raises: ValueError if the workload's dtype is not fp16 or bf16.
    """
    w = workload
    q = draw.tensor(w.dtype, sum(w.q_lens), w.q_heads, w.head_dim)
    paged = w.page_size is not None
    rows = (n_pages(w.kv_lens, w.page_size), w.page_size) if paged else (sum(w.kv_lens),)
    k, v = (draw.tensor(w.dtype, *rows, w.kv_heads, dim) for dim in (w.head_dim, w.head_dim_v))
    if paged:
        kv = PagedKV(k, v, scattered(w.kv_lens, w.page_size, draw), int32(w.kv_lens, draw))
    else:
        kv = RaggedKV(k, v, sums(w.kv_lens, draw))
    options = variant_options(w.variant, w.q_heads, draw)
    if w.variant.mask:  # shows about half of the keys
        pairs = zip(w.q_lens, w.kv_lens, strict=True)
        options["mask"] = pack_mask([draw.tensor(w.dtype, n, keys) > 0 for n, keys in pairs])
    return PrefillInputs(w, q, kv, sums(w.q_lens, draw), 1 / math.sqrt(w.head_dim), options)
