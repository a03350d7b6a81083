"""FlashInfer's prefill: many query tokens per request."""

import torch

from labkernels.compat import caches
from labkernels.compat.arguments import Fixed, keeps_fixed, refusal, require_dims, variant_options
from labkernels.compat.flashinfer.planned import LAYOUTS, Wrapper, mask_options, results
from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.kernels.prefill.api import prefill
from labkernels.units import require_choice

KERNELS = {"auto": None, "fa2": "prefill_mma", "fa3": "prefill_wgmma"}  # by backend


class BatchPrefillWithPagedKVCacheWrapper(Wrapper):
    """Prefill over pages: `plan` once, then `run` in each layer.

    The pages are told as in `BatchDecodeWithPagedKVCacheWrapper`; request i has the query tokens
    qo_indptr[i] to qo_indptr[i + 1] - 1. A causal mask is aligned to the end of the keys.
    Shapes: qo_indptr, paged_kv_indptr [batch + 1], paged_kv_indices [pages in use],
    paged_kv_last_page_len [batch] int32; q [qo_indptr[-1], num_qo_heads, head_dim_qk];
    paged_kv_cache one tensor or two, as `caches.pools` takes them -> out [qo_indptr[-1],
    num_qo_heads, head_dim_vo]; with return_lse, out and lse [qo_indptr[-1], num_qo_heads] fp32.
    custom_mask bool [sum of q_len * kv_len], or packed_custom_mask uint8, request by request from a
    byte of its own, takes the place of causal; a window counts beside it.
    Units: sm_scale multiplies q k (default 1 / sqrt(head_dim_qk)); lse is in base 2.
    Raises: ValueError naming the argument, its value and what is allowed.

    >>> wrapper = BatchPrefillWithPagedKVCacheWrapper(torch.empty(0), "HND")
    >>> tokens, pages = torch.tensor([0, 3, 5]).int(), torch.tensor([0, 2, 3]).int()
    >>> indices, last = torch.tensor([2, 0, 1]).int(), torch.tensor([4, 9]).int()
    >>> wrapper.plan(tokens, pages, indices, last, 8, 2, 64, 16, causal=True)
    >>> wrapper.run(torch.randn(5, 8, 64).half(), torch.randn(3, 2, 2, 16, 64).half()).shape
    torch.Size([5, 8, 64])
    """

    kernels = KERNELS

    @keeps_fixed
    def __init__(
        self, float_workspace_buffer: torch.Tensor, kv_layout="NHD", use_cuda_graph: Fixed = False,
        qo_indptr_buf: Fixed = None, paged_kv_indptr_buf: Fixed = None,
        paged_kv_indices_buf: Fixed = None, paged_kv_last_page_len_buf: Fixed = None,
        custom_mask_buf: Fixed = None, mask_indptr_buf: Fixed = None, backend="auto",
        jit_args: Fixed = None, jit_kwargs: Fixed = None, variant_owns_mask: Fixed = False,
    ):  # fmt: skip
        super().__init__(float_workspace_buffer, backend, kv_layout)

    @keeps_fixed
    def plan(
        self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads,
        num_kv_heads, head_dim_qk, page_size, head_dim_vo=None, custom_mask=None,
        packed_custom_mask=None, causal=False, pos_encoding_mode: Fixed = "NONE",
        use_fp16_qk_reduction: Fixed = False, sm_scale=None, window_left=-1, logits_soft_cap=None,
        rope_scale=None, rope_theta=None, q_data_type="float16", kv_data_type=None,
        o_data_type=None, non_blocking=True, prefix_len_ptr: Fixed = None,
        token_pos_in_items_ptr: Fixed = None, token_pos_in_items_len: Fixed = 0,
        max_item_len_ptr: Fixed = None, seq_lens: Fixed = None, seq_lens_q: Fixed = None,
        block_tables: Fixed = None, max_token_per_sequence: Fixed = None,
        max_sequence_kv: Fixed = None, fixed_split_size=None, disable_split_kv=False,
        uniform_q_len: Fixed = None,
    ):  # fmt: skip
        """Read the lists of pages, and keep the options for `run`; fixed_split_size in pages."""
        split = {"splits": 1} if disable_split_kv else {}
        if not split and fixed_split_size not in (None, -1):
            split = {"keys_per_split": fixed_split_size * page_size}
        variant = variant_options(window_left, soft_cap=logits_soft_cap)
        lens = caches.kv_lengths(paged_kv_indptr, paged_kv_last_page_len, page_size)
        variant |= self._mask(custom_mask, packed_custom_mask, qo_indptr, lens)
        self._keep(
            qo_indptr,
            caches.page_table(paged_kv_indptr, paged_kv_indices),
            lens,
            options={"causal": causal, "scale": sm_scale, **split, **variant},
            dtypes=(q_data_type, kv_data_type, o_data_type),
            num_qo_heads=num_qo_heads,
            num_kv_heads=num_kv_heads,
            head_dim_qk=head_dim_qk,
            head_dim_vo=head_dim_vo or head_dim_qk,
            page_size=page_size,
        )

    @keeps_fixed
    def run(
        self, q, paged_kv_cache, *, q_scale: Fixed = None, k_scale: Fixed = None,
        v_scale: Fixed = None, out=None, lse=None, return_lse=False, lse_base="log2",
        lse_layout="NH", enable_pdl=None, window_left=None, sinks=None, kv_cache_sf: Fixed = None,
        skip_softmax_threshold_scale_factor: Fixed = None, use_fp16_softmax: Fixed = None,
        uses_spcompress: Fixed = None,
    ):  # fmt: skip
        """Attend from q to the planned pages of this cache; window_left may differ from plan's."""
        k, v = caches.pools(paged_kv_cache, self._layout)
        self._require(**_sizes(q, k, v), page_size=k.shape[1])
        qo_indptr, *pages = self._tensors
        options = self._options | variant_options(sinks=sinks)
        if window_left is not None:
            options.pop("window_left", None)
            options |= variant_options(window_left)
        step = prefill(q, PagedKV(k, v, *pages), qo_indptr, out=out, **options)
        return results(step.outputs(), return_lse, lse, lse_base, lse_layout)


class BatchPrefillWithRaggedKVCacheWrapper(Wrapper):
    """Prefill over keys that lie one request after another: `plan` once, then `run` in each layer.

    Shapes: qo_indptr, kv_indptr [batch + 1] int32; q [qo_indptr[-1], num_qo_heads, head_dim_qk], k
    [kv_indptr[-1], num_kv_heads, head_dim_qk], v the same with head_dim_vo -> out [qo_indptr[-1],
    num_qo_heads, head_dim_vo]; with return_lse, out and lse [qo_indptr[-1], num_qo_heads] fp32.
    Units, masks: as in `BatchPrefillWithPagedKVCacheWrapper`.
    Raises: ValueError naming the argument, its value and what is allowed.

    >>> wrapper = BatchPrefillWithRaggedKVCacheWrapper(torch.empty(0))
    >>> ends = torch.tensor([0, 3, 8]).int()
    >>> wrapper.plan(ends, ends, 4, 4, 64, causal=True)
    >>> q, k, v = torch.randn(3, 8, 4, 64).half()
    >>> out, lse = wrapper.run_return_lse(q, k, v)
    >>> lse.shape
    torch.Size([8, 4])
    """

    kernels = KERNELS

    @keeps_fixed
    def __init__(
        self, float_workspace_buffer: torch.Tensor, kv_layout: Fixed = "NHD",
        use_cuda_graph: Fixed = False, qo_indptr_buf: Fixed = None, kv_indptr_buf: Fixed = None,
        custom_mask_buf: Fixed = None, mask_indptr_buf: Fixed = None, backend="auto",
        jit_args: Fixed = None, jit_kwargs: Fixed = None, variant_owns_mask: Fixed = False,
    ):  # fmt: skip
        super().__init__(float_workspace_buffer, backend, kv_layout)

    @keeps_fixed
    def plan(
        self, qo_indptr, kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo=None,
        custom_mask=None, packed_custom_mask=None, causal=False,
        pos_encoding_mode: Fixed = "NONE", use_fp16_qk_reduction: Fixed = False, window_left=-1,
        logits_soft_cap=None, sm_scale=None, rope_scale=None, rope_theta=None,
        q_data_type="float16", kv_data_type=None, o_data_type=None, non_blocking=True,
        prefix_len_ptr: Fixed = None, token_pos_in_items_ptr: Fixed = None,
        token_pos_in_items_len: Fixed = 0, max_item_len_ptr: Fixed = None,
        fixed_split_size: Fixed = None, disable_split_kv=False, seq_lens: Fixed = None,
        seq_lens_q: Fixed = None, max_token_per_sequence: Fixed = None,
        max_sequence_kv: Fixed = None, v_indptr: Fixed = None, o_indptr: Fixed = None,
        uniform_q_len: Fixed = None,
    ):  # fmt: skip
        """Keep the lengths and the options for `run`."""
        split = {"splits": 1} if disable_split_kv else {}
        variant = variant_options(window_left, soft_cap=logits_soft_cap)
        variant |= self._mask(custom_mask, packed_custom_mask, qo_indptr, kv_indptr.diff())
        self._keep(
            qo_indptr,
            kv_indptr,
            options={"causal": causal, "scale": sm_scale, **split, **variant},
            dtypes=(q_data_type, kv_data_type, o_data_type),
            num_qo_heads=num_qo_heads,
            num_kv_heads=num_kv_heads,
            head_dim_qk=head_dim_qk,
            head_dim_vo=head_dim_vo or head_dim_qk,
        )

    @keeps_fixed
    def run(
        self, q, k, v, *, q_scale: Fixed = None, k_scale: Fixed = None, v_scale: Fixed = None,
        o_scale: Fixed = None, out=None, lse=None, return_lse=False, lse_base="log2",
        lse_layout="NH", enable_pdl=None, kv_cache_sf: Fixed = None,
    ):  # fmt: skip
        """Attend from q to the keys and values of its requests."""
        self._require(**_sizes(q, k, v))
        qo_indptr, kv_indptr = self._tensors
        kv = RaggedKV(*caches.pools((k, v), "NHD"), kv_indptr)
        step = prefill(q, kv, qo_indptr, out=out, **self._options)
        return results(step.outputs(), return_lse, lse, lse_base, lse_layout)


def _sizes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict[str, object]:
    """Return what a plan promises of the tensors of `run`, by the names in `plan`."""
    require_dims(q=(q, "[tokens, num_qo_heads, head_dim_qk]"))
    return {
        "num_qo_heads": q.shape[1],
        "num_kv_heads": k.shape[-2],
        "head_dim_qk": q.shape[2],
        "head_dim_vo": v.shape[-1],
        "q_data_type": q.dtype,
    }


@keeps_fixed
def single_prefill_with_kv_cache(
    q, k, v, scale_q: Fixed = None, scale_k: Fixed = None, scale_v: Fixed = None, o_dtype=None,
    custom_mask=None, packed_custom_mask=None, causal=False, kv_layout="NHD",
    pos_encoding_mode: Fixed = "NONE", use_fp16_qk_reduction: Fixed = False, sm_scale=None,
    window_left=-1, logits_soft_cap=None, rope_scale=None, rope_theta=None, backend="auto",
    return_lse=False, kv_cache_sf: Fixed = None, k_scale: Fixed = None, v_scale: Fixed = None,
):  # fmt: skip
    """Prefill one request.

    Shapes: q [qo_len, num_qo_heads, head_dim_qk]; k, v [kv_len, num_kv_heads, head_dim] in layout
    NHD, [num_kv_heads, kv_len, head_dim] in layout HND -> out [qo_len, num_qo_heads, head_dim_vo];
    with return_lse, out and lse [qo_len, num_qo_heads] fp32 in base 2.
    Raises: ValueError naming the argument, its value and what is allowed.

    >>> q, k, v = torch.randn(3, 8, 4, 64).half()
    >>> out = single_prefill_with_kv_cache(q, k, v, causal=True)
    >>> torch.equal(out[0], v[0])  # the first token sees itself alone
    True
    """
    require_choice("backend", backend, KERNELS)
    require_choice("kv_layout", kv_layout, LAYOUTS)
    if o_dtype not in (None, q.dtype):
        raise refusal("o_dtype", o_dtype, f"{q.dtype}, as q")
    dims = "[tokens, heads, head_dim]"
    require_dims(q=(q, dims), k=(k, dims), v=(v, dims))
    k, v = caches.pools((k, v), kv_layout)
    of_q, of_k = (torch.tensor([0, len(x)], dtype=torch.int32, device=q.device) for x in (q, k))
    options = {"causal": causal, "scale": sm_scale, "kernel": KERNELS[backend]}
    options |= {"q_lens": (len(q),), "kv_lens": (len(k),)}
    options |= variant_options(window_left, soft_cap=logits_soft_cap)
    options |= mask_options(custom_mask, packed_custom_mask, [len(q)], [len(k)])
    step = prefill(q, RaggedKV(k, v, of_k), of_q, **options)
    return results(step.outputs(), return_lse)
