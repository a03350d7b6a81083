"""An attention function of transformers, by which published models run on the lab's kernels.

After `register()`, from_pretrained(name, attn_implementation="labkernels") loads such a model.
"""

from collections.abc import Callable
from typing import Any

import torch

from labkernels.compat.arguments import Fixed, keeps_fixed, refusal, variant_options
from labkernels.compat.dense import dense_attention

SERVED = (torch.float16, torch.bfloat16)


def register(name: str = "labkernels") -> None:
    """Let models of transformers run on the lab's kernels with attn_implementation=`name`.

    Causal and full attention, sliding windows, soft caps, sinks, and fewer heads of K and V are
    served. fp32, dropout, padding, packed sequences, static caches and masks of other kinds are
    refused by name when the model runs. Attention weights are not returned.

    Raises: ModuleNotFoundError without transformers.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, no_mask)


@keeps_fixed
def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Fixed = None,
    dropout: Fixed = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: Fixed = None,
    cu_seq_lens_q: Fixed = None,
    cu_seq_lens_k: Fixed = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Compute the attention of a layer, as transformers calls it; more: what changes no result.

    sliding_window counts the query's own key. s_aux: one sink [heads] per query head.
    Shapes: query [batch, heads, tokens, head_dim], key, value [batch, kv_heads, keys, head_dim] ->
    out [batch, tokens, heads, head_dim of value], None.
    Raises: ValueError naming the argument, its value and what is allowed.

    >>> query, key, value = torch.randn(3, 1, 4, 8, 64).half()
    >>> attend(torch.nn.Module(), query, key, value, None)[0].shape
    torch.Size([1, 8, 4, 64])
    """
    if query.dtype not in SERVED and not torch.is_autocast_enabled(query.device.type):
        raise refusal("query.dtype", query.dtype, "torch.float16, torch.bfloat16, or autocast")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if sliding_window is not None and not causal:
        raise refusal("sliding_window", sliding_window, "None without a causal mask")
    left = -1 if sliding_window is None else sliding_window - 1
    variant = variant_options(left, soft_cap=softcap, sinks=s_aux)
    rows = (x.transpose(1, 2) for x in (query, key, value))
    out, _ = dense_attention(*rows, causal=causal, scale=scaling, **variant)
    return out, None


def no_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., torch.Tensor] | None = None,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    **more: Any,
) -> None:
    """Return no mask, since `attend` needs none, once no other mask is meant.

    Of each row of the mask the keys beside both edges of a causal window are looked at, which tells
    packed sequences, chunks, images and prefixes from it; nothing of the size of a mask is made.
    Raises: ValueError naming the argument, its value and what is allowed.
    """
    if attention_mask is not None and not attention_mask[:, -kv_length:].all():
        raise refusal("attention_mask", attention_mask, "a mask of ones: no padding")
    place = torch.arange(q_length) + torch.as_tensor(q_offset).cpu()
    first, last = kv_offset, kv_offset + kv_length - 1
    request, head = torch.arange(batch_size)[:, None], torch.tensor(0)

    def seen(key: torch.Tensor) -> torch.Tensor:
        return mask_function(request, head, place, key.clamp(first, last))

    oldest = (place - (local_size or last + 1) + 1).clamp(min=first)
    causal = seen(oldest) & seen(place)
    causal &= (oldest == first) | ~seen(oldest - 1)
    causal &= (place == last) | ~seen(place + 1)
    full = seen(torch.full_like(place, first)) & seen(torch.full_like(place, last))
    if not full.all() and not (causal.all() and place[-1] == last):
        raise refusal("mask_function", mask_function, "causal, sliding or full, without packing")
