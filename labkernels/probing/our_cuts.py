"""How the lab's own plans cut a batch, in the words of `labkernels.planners`."""

from functools import partial
from typing import Any

from labkernels.hardware import Gpu
from labkernels.planners import Batch, Cut, NotKnown
from labkernels.planners.cut import ceil, even

NAME = "labkernels"


def cut_of(plan: Any, kv_lens: tuple[int, ...], *, head_dim: int, group: int, dtype: str) -> Cut:
    """Return how a plan of ours cuts a batch.

    Raises: NotKnown for a kernel whose tile the plan alone does not tell.
    """
    from labkernels.kernels.decode.schedule import invariant_keys_per_split
    from labkernels.kernels.registry import discover

    kernel = discover()[plan.kernel]
    shape, policy = kernel.shape(dtype=dtype, head_dim=head_dim, group=group), kernel.policies[0]
    tiles = [*kernel.tiles(shape, policy), *kernel.named_tiles(head_dim)]
    tile = next((tile for tile in tiles if tile.label == plan.tile), None)
    if tile is None:
        raise NotKnown(f"tile {plan.tile} of {plan.kernel}")
    by_length = invariant_keys_per_split if plan.splits_by_length else lambda n: plan.keys_per_split
    splits = tuple(even(n, by_length(n)) for n in kv_lens)
    rounded = policy.of(dtype).p
    how: dict[str, Any] = {"p": rounded if rounded in ("fp16", "bf16") else "fp32"}
    name = f"{plan.kernel} {plan.tile}"
    if hasattr(tile, "q_rows"):
        order: Any = getattr(tile, "key_order", "ascending")
        return Cut(name, tile.q_rows, tile.keys, splits, order=order, **how)
    how |= {"order": "ascending", "chains": tile.warps}
    return Cut(name, kernel.rows_of(shape, tile), tile.warps * tile.keys, splits, **how)


def labkernels(batch: Batch, gpu: Gpu, **options: Any) -> Cut:
    """Return the cut of `decode`, or of `prefill` if a request has several query tokens.

    options: those of the verb. Its tensors have no memory, and nothing runs.
    Raises: NotKnown for MLA; ValueError and TypeError as the verb does.

    >>> from labkernels.hardware import gpu
    >>> labkernels(Batch((8192,), 32, 8, 128, page_size=16), gpu("h200")).label()
    '8 x 64, 32 splits of 256'
    """
    import torch

    from labkernels import ops
    from labkernels.kernels.caches.paged import PagedKV
    from labkernels.kernels.caches.ragged import RaggedKV

    if batch.kv_heads == 1 and batch.head_dim > 256:
        raise NotKnown(f"head_dim = {batch.head_dim}: our cuts of an MLA decode")
    kind = {"fp16": torch.float16, "bf16": torch.bfloat16}[batch.dtype]
    tensor, ints = (partial(torch.empty, dtype=x, device="meta") for x in (kind, torch.int32))
    heads, lengths = (batch.kv_heads, batch.head_dim), batch.kv_lens
    q = tensor(sum(batch.queries), batch.q_heads, batch.head_dim)
    is_decode = batch.queries == (1,) * batch.size
    if is_decode or batch.page_size:
        size = batch.page_size or 16
        table, pool = ints(batch.size, ceil(max(lengths), size)), tensor(1, size, *heads)
        kv: Any = PagedKV(pool, pool, table, ints(batch.size))
    else:
        keys, ends = tensor(sum(lengths), *heads), ints(batch.size + 1)
        kv = RaggedKV(keys, keys, ends)
    how = {"target": gpu.key, **options, "kv_lens": lengths}
    if is_decode:
        plan = ops.decode_step(q, kv, **how).plan
    else:
        how |= {"causal": batch.causal, "q_lens": batch.queries}
        plan = ops.prefill_step(q, kv, ints(batch.size + 1), **how).plan
    shape: dict[str, Any] = {"head_dim": batch.head_dim, "group": batch.group, "dtype": batch.dtype}
    return cut_of(plan, lengths, **shape)
