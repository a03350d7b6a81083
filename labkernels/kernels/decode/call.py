"""A decode that has been checked, and its schedule and plan."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from labkernels.kernels.caches.paged import PagedHeads
from labkernels.kernels.call import Attention, Call, Plan, plan_of
from labkernels.kernels.checks import MAX_SPLITS
from labkernels.kernels.decode.schedule import (
    invariant_keys_per_split,
    keys_per_split,
    most_invariant_splits,
)
from labkernels.variant import AttentionVariant


@dataclass(frozen=True, eq=False, kw_only=True)
class DecodeCall(Call):
    """A decode that has been checked. group: query heads per KV head.

    by_length: whether each request's splits follow from its own length alone. A call that is kept
    for later has blank out and lse2.
    """

    group: int
    scale: float
    keys_per_split: int | None
    by_length: bool
    variant: AttentionVariant
    out: torch.Tensor
    lse2: torch.Tensor
    q: torch.Tensor | None = None
    cache: PagedHeads | None = None
    variant_tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def outputs(self) -> Attention:
        """Return the tensors that a run writes."""
        return Attention(self.out, self.lse2)


def plan_decode(
    call: DecodeCall, *, step: int, merged_rows: int = 1, launches_to_merge: int = 0
) -> Plan:
    """Cut the decode into blocks: by its shapes, by call.keys_per_split, or by each length.

    Raises: ValueError if keys_per_split makes more splits than a grid can have.
    """
    choice, held = call.choice, call.cache.page_table.shape[1] * call.cache.k.shape[1]
    longest = call.variant.seen(0, 1, held)  # keys that a query sees at most
    slices = -(-call.group // choice.instance.rows)  # blocks that share a KV head's query heads
    units = call.q.shape[0] * call.cache.k.shape[2] * slices
    if call.by_length:
        keys, splits = invariant_keys_per_split(longest), max(1, most_invariant_splits(longest))
    else:
        keys = call.keys_per_split or keys_per_split(
            units=units,
            max_kv_len=longest,
            slots=choice.slots,
            sm_count=call.gpu.sm_count,
            step=step,
            merged_rows=merged_rows,
            converts=choice.instance.kv_dtype is not None,
        )
        splits = max(1, math.ceil(longest / keys))
    if splits > MAX_SPLITS:
        raise ValueError(
            f"keys_per_split = {keys}, allowed: at least {math.ceil(longest / MAX_SPLITS)} for"
            f" {longest} keys, which is {MAX_SPLITS} splits"
        )
    return plan_of(
        call,
        blocks=units * splits,
        splits=splits,
        keys_per_split=keys,
        batch_invariant=call.by_length or call.keys_per_split is not None,
        splits_by_length=call.by_length,
        launches=1 + launches_to_merge * (splits > 1),
    )
