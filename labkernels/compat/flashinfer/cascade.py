"""FlashInfer's merges of attention states."""

import torch

from labkernels.kernels.merge_states.api import merge_states as merge


def merge_state(
    v_a: torch.Tensor, s_a: torch.Tensor, v_b: torch.Tensor, s_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge two attention states of the same queries.

    Shapes: v_a, v_b [seq_len, num_heads, head_dim]; s_a, s_b [seq_len, num_heads] fp32, base 2 ->
    v, s of the same shapes. The first state is added first.
    Raises: ValueError naming the argument of the lab's `merge_states`.

    >>> v, s = torch.ones(3, 2, 64).half(), torch.zeros(3, 2)
    >>> merged, lse = merge_state(v, s, 3 * v, s)
    >>> merged.unique(), lse.unique()
    (tensor([2.], dtype=torch.float16), tensor([1.]))
    """
    merged = merge(torch.stack([v_a, v_b]), torch.stack([s_a, s_b]))
    return merged.out, merged.lse2


def merge_states(v: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge several attention states of the same queries, in their order.

    Shapes: v [seq_len, num_states, num_heads, head_dim]; s [seq_len, num_states, num_heads] fp32,
    base 2 -> v, s without the states.
    Raises: ValueError naming the argument of the lab's `merge_states`.

    >>> v, s = torch.ones(3, 5, 2, 64).half(), torch.zeros(3, 5, 2)
    >>> merge_states(v, s)[0].shape
    torch.Size([3, 2, 64])
    """
    merged = merge(v.transpose(0, 1), s.transpose(0, 1))
    return merged.out, merged.lse2
