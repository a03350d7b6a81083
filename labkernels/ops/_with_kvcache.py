"""The verb `with_kvcache`: append new keys and values, then attend to all that a request has."""

import torch

from labkernels.kernels.paged_kv import PagedKV
from labkernels.ops import _append as appends
from labkernels.ops._arguments import Result
from labkernels.ops._prefill import prefill_step


def with_kvcache(
    q: torch.Tensor,
    cache: PagedKV,
    k_new: torch.Tensor,
    v_new: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    *,
    causal: bool = True,
    **options,
) -> Result:
    """Append the keys and values of new tokens to a cache, and attend from those tokens.

    Shapes: q [total, q_heads, head_dim]; k_new, v_new [total, kv_heads, channels of the cache];
    cu_seqlens_q [batch + 1] int32. Options as `prefill`: tile, splits, kernel, policy, scale, ...
    Raises: ValueError naming the argument, its value and what is allowed; then nothing is written.
    """
    chosen = {name: options[name] for name in ("target", "checks") if name in options}
    append = appends.append_step(cache, k_new, v_new, cu_seqlens_q, **chosen)
    kv_len = appends.check_append(cache, cu_seqlens_q, len(k_new))
    grown = PagedKV(cache.k, cache.v, cache.page_table, kv_len)
    step = prefill_step(q, grown, cu_seqlens_q, causal=causal, **options)
    append.run()
    step.run()
    return Result(step.out, step.lse2, step.plan)
