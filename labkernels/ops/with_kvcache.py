"""The verb `with_kvcache`: append new keys and values, then attend to all keys of each request."""

from collections.abc import Sequence
from typing import Any, Unpack

import torch

from labkernels.kernels.append.api import append_step, lengths_after
from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.call import Attention, Step, in_graph, require_options
from labkernels.kernels.checks import read_lengths, refuse_kind, require_cu_seqlens, resolved
from labkernels.kernels.prefill.api import PrefillStepOptions, prefill_step


def with_kvcache(
    q: torch.Tensor,
    cache: PagedKV,
    k_new: torch.Tensor,
    v_new: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    *,
    causal: bool = True,
    rotary: Sequence[torch.Tensor] | None = None,
    interleaved: bool = False,
    q_lens: Sequence[int] | None = None,
    kv_lens: Sequence[int] | None = None,
    **options: Unpack[PrefillStepOptions],
) -> Step[Attention]:
    """Append the keys and values of new tokens to a cache, and attend from those tokens.

    Shapes: q [total, q_heads, head_dim]; k_new, v_new [total, kv_heads, channels of the cache];
    cu_seqlens_q [batch + 1] int32. Options as in `prefill`; kv_lens are the numbers of keys before
    the append. rotary, interleaved: as in `append`, for keys and queries; a query is rotated at the
    position of its token, but without a causal mask and a window, as in flash-attn, at that of its
    request's first new key.
    Raises: ValueError naming the argument, its value and what is allowed; then nothing is written.

    >>> pages, ends = torch.zeros(2, 1, 16, 1, 64).half(), torch.tensor([0, 2]).int()
    >>> cache = PagedKV(*pages, page_table=torch.zeros(1, 1).int(), kv_len=torch.tensor([3]).int())
    >>> q, k_new, v_new = torch.ones(3, 2, 1, 64).half()
    >>> step = with_kvcache(q, cache, k_new, v_new, ends)
    >>> cache.kv_len.item(), step.out.shape
    (5, torch.Size([2, 1, 64]))
    """
    if torch.compiler.is_compiling():
        given = (q, *cache.tensors.values(), k_new, v_new, cu_seqlens_q)
        asked = {"causal": causal, "q_lens": q_lens, "kv_lens": kv_lens, **options}
        asked |= {"rotary": rotary and list(rotary), "interleaved": interleaved}
        return in_graph("with_kvcache", Attention, *given, **asked)
    require_options("with_kvcache", options, PrefillStepOptions)
    if not isinstance(cache, PagedKV):
        refuse_kind("cache", cache, "PagedKV")
    q, k_new, v_new, cu_seqlens_q = map(resolved, (q, k_new, v_new, cu_seqlens_q))
    require_cu_seqlens("cu_seqlens_q", cu_seqlens_q, cache.k.device)
    chosen: dict[str, Any] = {"rotary": rotary, "interleaved": interleaved}
    chosen |= {name: x for name, x in options.items() if name in ("target", "checks")}
    if rotary is not None:
        ends = (options.get("window_left"), options.get("window_right"))
        chosen |= {"q": q, "q_in_order": causal or ends != (None, None)}
    append = append_step(cache, k_new, v_new, cu_seqlens_q, **chosen)
    if q_lens is not None:
        read_lengths("cu_seqlens_q", cu_seqlens_q, len(k_new), q_lens)
    after: Any = lengths_after(cache, cu_seqlens_q, len(k_new), q_lens, kv_lens, rotary)
    q = q if rotary is None else append.outputs()
    step = prefill_step(
        q, cache, cu_seqlens_q, causal=causal, q_lens=q_lens, kv_lens=after, **options
    )
    append.run()
    step.run()
    return step
