"""A prefill or an MLA decode that has been checked, and its schedule and plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch

from labkernels.kernels import checks as arguments
from labkernels.kernels.caches.mask import mask_begins
from labkernels.kernels.call import (
    Asked,
    Attention,
    AttentionOptions,
    Call,
    Plan,
    check_options,
    plan_of,
)
from labkernels.kernels.choice import Ask, choose, chooses_alike
from labkernels.kernels.kernel import Shape, up_to_power_of_two
from labkernels.kernels.packed_gqa.schedule import Lengths, Schedule, schedule
from labkernels.variant import AttentionVariant


class SplitOptions(AttentionOptions, total=False):
    """The options of attention whose keys are split.

    splits or keys_per_split, not both: how a request's keys are split; by default chosen from the
    lengths. batch_invariant: a row's bits must not depend on the other requests, nor on the chunks
    in which its request's tokens come. Kernel and tile then follow from the heads alone. Without
    splits or keys_per_split a prefill is not split, and each split of an MLA decode has
    INVARIANT_KEYS_PER_SPLIT keys. With window_left it refuses keys_per_split.
    """

    splits: int | None
    keys_per_split: int | None
    batch_invariant: bool


class PackedOptions(SplitOptions, total=False):
    """The options of attention with many query rows.

    q_lens, kv_lens: the lengths of the requests, if the caller's host knows them. Given
    lengths are not read from a GPU, and the caller answers for them; with kv_lens, also for the
    page numbers of a cache.
    """

    causal: bool
    q_lens: object
    kv_lens: object


@dataclass(frozen=True, eq=False, kw_only=True)
class PackedCall(Call):
    """Attention of packed rows that has been checked: tensors, and the lengths as numbers.

    group: query heads per KV head. keys_per_split or splits may be given, not both.
    batch_invariant: whether neither the splits nor kernel and tile depend on the batch. A call that
    is kept for later has blank out and lse2.
    """

    lengths: Lengths
    variant: AttentionVariant
    group: int
    kv_heads: int
    scale: float
    splits: int | None
    keys_per_split: int | None
    batch_invariant: bool
    out: torch.Tensor
    lse2: torch.Tensor
    q: torch.Tensor | None = None
    kv: Any = None  # RaggedKV, PagedKV or LatentKV
    cu_seqlens_q: torch.Tensor | None = None
    variant_tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def queries(self, tokens: slice) -> torch.Tensor:
        """Return the queries of some tokens, with K's channels."""
        return self.q[tokens]

    def outputs(self) -> Attention:
        """Return the tensors that a run writes."""
        return Attention(self.out, self.lse2)


Packed = TypeVar("Packed", bound=PackedCall)


def packed_call(
    of: type[Packed],
    operation: str,
    q: torch.Tensor,
    lengths: Lengths,
    asked: Asked,
    *,
    kv_heads: int,
    most_tokens: int,
    default_scale: float | None = None,
    invariant_split: dict[str, int],
    **channels_and_layout: object,
) -> Packed:
    """Return the checked call of these arguments without its tensors: only their facts count.

    most_tokens: per request; if the call must not depend on its batch, kernel and tile are the same
    up to this length. invariant_split: splits or keys_per_split of a call that must not depend on
    its batch and gives neither. channels_and_layout: these fields of a Shape.
    """
    check_options(asked)
    arguments.check_splits(asked.splits, asked.keys_per_split, asked.batch_invariant)
    moves = asked.keys_per_split is not None and asked.variant.window_left is not None
    if moves and asked.batch_invariant:
        raise ValueError(
            f"keys_per_split = {asked.keys_per_split} with window_left and batch_invariant = True,"
            " allowed: splits = 1, since splits begin with the window of a tile's first row, which"
            " the chunks of a prefill move"
        )
    if asked.batch_invariant and asked.splits is None and asked.keys_per_split is None:
        asked = asked._replace(**invariant_split)
    gpu, group = arguments.target_gpu(q.device, asked.target), q.shape[1] // kv_heads
    tokens = most_tokens if asked.batch_invariant else max(1, int(lengths.q.max()))
    shape = Shape(
        dtype=arguments.DTYPES[q.dtype],
        group=group,
        rows=up_to_power_of_two(group * tokens),
        variant=replace(asked.variant, causal=asked.causal),
        **channels_and_layout,
    )
    ask = Ask(asked.kernel, asked.tile, asked.policy)
    choice = choose(operation, shape, gpu, ask)
    fixed = (asked.keys_per_split is not None and not moves) or asked.splits == 1
    scale = default_scale if asked.scale is None else asked.scale
    return of(
        choice=choice,
        gpu=gpu,
        device=q.device,
        checks=asked.checks,
        **arguments.blank_outputs(q, shape.head_dim_v, choice.instance.policy),
        lengths=lengths,
        variant=shape.variant,
        group=group,
        kv_heads=kv_heads,
        scale=arguments.scale_of(scale, shape.head_dim),
        splits=asked.splits,
        keys_per_split=asked.keys_per_split,
        batch_invariant=asked.batch_invariant
        or (fixed and chooses_alike(operation, shape, gpu, ask, group * most_tokens)),
    )


def schedule_of(
    call: PackedCall, *, tile_rows: int | None = None, cached_keys: int | None = None
) -> Schedule:
    """Return the blocks of a call; for a GPU, the list lies in its memory.

    Raises: ValueError if keys_per_split makes more splits than a grid can have (MAX_SPLITS).
    """
    return schedule(
        call.lengths,
        call.choice.instance.tile,
        kv_heads=call.kv_heads,
        group=call.group,
        slots=call.choice.slots,
        variant=call.variant,
        tile_rows=tile_rows,
        cached_keys=cached_keys,
        splits=call.splits,
        keys_per_split=call.keys_per_split,
    )


def begins_of(call: PackedCall) -> dict[str, torch.Tensor]:
    """Return where each request's bits of a mask begin, if there is one."""
    if not call.variant.mask:
        return {}
    first = 8 * mask_begins(call.lengths.q, call.lengths.kv)
    return {"mask_begins": torch.from_numpy(first).to(call.device)}


def plan_packed(call: PackedCall, made: Schedule, *, launches: int = 1) -> Plan:
    """Return the plan of a call that has been scheduled."""
    return plan_of(
        call,
        blocks=len(made.work),
        splits=made.splits,
        keys_per_split=made.keys_per_split,
        batch_invariant=call.batch_invariant,
        launches=launches,
    )
