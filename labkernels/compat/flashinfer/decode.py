"""FlashInfer's decode: one query token per request."""

import torch

from labkernels.compat import caches
from labkernels.compat.arguments import (
    Fixed,
    keeps_fixed,
    refusal,
    require_dims,
    variant_options,
)
from labkernels.compat.flashinfer.planned import LAYOUTS, Wrapper, results
from labkernels.kernels.checks import KV_DTYPES
from labkernels.kernels.decode.api import decode
from labkernels.units import require_choice

KERNELS = {False: "decode_fma", True: "decode_mma"}  # by use_tensor_cores


class BatchDecodeWithPagedKVCacheWrapper(Wrapper):
    """Decode over pages: `plan` once, then `run` in each layer.

    use_tensor_cores: the lab's decode_mma if True, and decode_fma if False, the default.
    `plan` takes the pages of all requests as one list: request i has pages indices[indptr[i]] to
    indices[indptr[i + 1] - 1], of which the last has last_page_len[i] keys. fixed_split_size counts
    pages. A cache of 8 bits is planned by kv_data_type, and `run` takes its k_scale and v_scale:
    numbers, or tensors of one number or of one for each KV head.
    Shapes: indptr [batch + 1], indices [pages in use], last_page_len [batch] int32; q [batch,
    num_qo_heads, head_dim]; paged_kv_cache one tensor or two, as `caches.pools` takes them -> out
    as q; with return_lse, out and lse [batch, num_qo_heads] fp32.
    Units: sm_scale multiplies q k (default 1 / sqrt(head_dim)); lse is in base 2.
    Raises: ValueError naming the argument, its value and what is allowed.

    >>> wrapper = BatchDecodeWithPagedKVCacheWrapper(torch.empty(0), use_tensor_cores=True)
    >>> indptr, indices = torch.tensor([0, 2, 3]).int(), torch.tensor([2, 0, 1]).int()
    >>> wrapper.plan(indptr, indices, torch.tensor([4, 9]).int(), 8, 2, 64, 16)
    >>> wrapper.run(torch.randn(2, 8, 64).half(), torch.randn(3, 2, 16, 2, 64).half()).shape
    torch.Size([2, 8, 64])
    """

    kernels = dict.fromkeys(("auto", "fa2"))

    @keeps_fixed
    def __init__(
        self, float_workspace_buffer: torch.Tensor, kv_layout="NHD", use_cuda_graph: Fixed = False,
        use_tensor_cores=False, paged_kv_indptr_buffer: Fixed = None,
        paged_kv_indices_buffer: Fixed = None, paged_kv_last_page_len_buffer: Fixed = None,
        backend="auto", jit_args: Fixed = None,
    ):  # fmt: skip
        super().__init__(float_workspace_buffer, backend, kv_layout)
        self.use_tensor_cores = use_tensor_cores

    @keeps_fixed
    def plan(
        self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size,
        pos_encoding_mode: Fixed = "NONE", window_left=-1, logits_soft_cap=None,
        q_data_type="float16", kv_data_type=None, o_data_type=None, data_type=None, sm_scale=None,
        rope_scale=None, rope_theta=None, non_blocking=True, block_tables: Fixed = None,
        seq_lens: Fixed = None, fixed_split_size=None, disable_split_kv=False,
        q_len_per_req: Fixed = 1, window_right: Fixed = 0, is_causal: Fixed = None,
    ):  # fmt: skip
        """Read the lists of pages, and keep the options for `run`."""
        table = caches.page_table(indptr, indices)
        pages = fixed_split_size if (fixed_split_size or -1) > 0 else None
        pages = max(1, table.shape[1]) if disable_split_kv else pages
        kv_type = getattr(torch, kv_data_type) if isinstance(kv_data_type, str) else kv_data_type
        self._narrow = kv_type if kv_type in KV_DTYPES else None
        self._keep(
            table,
            caches.kv_lengths(indptr, last_page_len, page_size),
            options={
                "scale": sm_scale,
                "kernel": KERNELS[bool(self.use_tensor_cores)],
                "keys_per_split": pages and pages * page_size,
                **variant_options(window_left, soft_cap=logits_soft_cap),
            },
            dtypes=(data_type or q_data_type, None if self._narrow else kv_type, o_data_type),
            num_qo_heads=num_qo_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            page_size=page_size,
            window_left=window_left,
        )

    @keeps_fixed
    def run(
        self, q, paged_kv_cache, *, q_scale: Fixed = None, k_scale=None, v_scale=None, out=None,
        lse=None, return_lse=False, enable_pdl=None, window_left=None, sinks=None,
        q_len_per_req: Fixed = None, skip_softmax_threshold_scale_factor: Fixed = None,
        kv_cache_sf: Fixed = None,
    ):  # fmt: skip
        """Attend from q [batch, num_qo_heads, head_dim] to the planned pages of this cache."""
        k, v = caches.pools(paged_kv_cache, self._layout)
        require_dims(q=(q, "[batch, num_qo_heads, head_dim]"))
        self._require(
            num_qo_heads=q.shape[1],
            num_kv_heads=k.shape[2],
            head_dim=q.shape[2],
            page_size=k.shape[1],
            q_data_type=q.dtype,
            **({} if window_left is None else {"window_left": window_left}),
        )
        if k.dtype != (self._narrow or q.dtype):
            raise refusal("paged_kv_cache.dtype", k.dtype, f"{self._narrow or q.dtype}, as planned")
        options = self._options | variant_options(sinks=sinks)
        cache = caches.in_pages(k, v, *self._tensors, k_scale=k_scale, v_scale=v_scale)
        step = decode(q, cache, out=out, **options)
        return results(step.outputs(), return_lse, lse)


@keeps_fixed
def single_decode_with_kv_cache(
    q, k, v, kv_layout="NHD", pos_encoding_mode: Fixed = "NONE", use_tensor_cores=False,
    q_scale: Fixed = None, k_scale: Fixed = None, v_scale: Fixed = None, window_left=-1,
    logits_soft_cap=None, sm_scale=None, rope_scale=None, rope_theta=None, return_lse=False,
):  # fmt: skip
    """Decode one request whose keys lie one after another.

    Shapes: q [num_qo_heads, head_dim]; k, v [kv_len, num_kv_heads, head_dim] in layout NHD,
    [num_kv_heads, kv_len, head_dim] in layout HND -> out as q; with return_lse, out and lse
    [num_qo_heads] fp32 in base 2.
    Raises: ValueError naming the argument, its value and what is allowed.

    >>> k, v = torch.randn(2, 40, 2, 64).half()
    >>> single_decode_with_kv_cache(torch.randn(8, 64).half(), k, v).shape
    torch.Size([8, 64])
    """
    require_choice("kv_layout", kv_layout, LAYOUTS)
    dims = "[kv_len, num_kv_heads, head_dim]"
    require_dims(q=(q, "[num_qo_heads, head_dim]"), k=(k, dims), v=(v, dims))
    k, v = caches.pools((k, v), kv_layout)
    step = decode(
        q[None],
        caches.contiguous(k[None], v[None], len(k)),
        kernel=KERNELS[bool(use_tensor_cores)],
        scale=sm_scale,
        **variant_options(window_left, soft_cap=logits_soft_cap),
    )
    out, lse = (x[0] for x in step.outputs())
    return (out, lse) if return_lse else out
