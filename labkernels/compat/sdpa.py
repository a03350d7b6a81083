"""torch's scaled_dot_product_attention on the lab's kernels."""

import torch

from labkernels.compat.arguments import Fixed, keeps_fixed, refusal, require_dims, variant_options
from labkernels.compat.dense import dense_attention

DIMS = "[batch, heads, tokens, head_dim]"


@keeps_fixed
def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: Fixed = None,
    dropout_p: Fixed = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Compute attention as torch.nn.functional.scaled_dot_product_attention does.

    is_causal is torch's: query i sees keys 0 to i, aligned to the top left, also if there are more
    keys or more queries. It can be differentiated, as far as `labkernels.attention` can.
    Shapes: query [batch, heads, tokens, head_dim], key, value [batch, heads, keys, head_dim], fp16
    or bf16, with fewer heads if enable_gqa -> [batch, heads, tokens, head_dim of value].
    Raises: ValueError naming the argument, its value and what is allowed.

    >>> query, key, value = torch.randn(3, 2, 4, 24, 64).half()
    >>> out = scaled_dot_product_attention(query, key, value, is_causal=True)
    >>> torch.equal(out[:, :, 0], value[:, :, 0])  # the first query sees the first key alone
    True
    """
    require_dims(query=(query, DIMS), key=(key, DIMS), value=(value, DIMS))
    if not enable_gqa and key.shape[1] != query.shape[1]:
        raise refusal("key.shape[1]", key.shape[1], f"{query.shape[1]}, or enable_gqa=True")
    tokens, keys = query.shape[2], key.shape[2]
    right = -1
    if is_causal and keys > tokens:  # no query sees the keys after the last query's
        key, value = (x[:, :, :tokens] for x in (key, value))
    elif is_causal and keys < tokens:  # a window that ends right of the bottom-right diagonal
        is_causal, right = False, tokens - keys
    rows = (x.transpose(1, 2) for x in (query, key, value))
    window = variant_options(window_right=right)
    out, _ = dense_attention(*rows, causal=is_causal, scale=scale, **window)
    return out.transpose(1, 2)
