"""FlashInfer's MLA decode over latent rows: `flashinfer.mla`."""

import torch

from labkernels.compat import caches
from labkernels.compat.arguments import Fixed, keeps_fixed, require_dims
from labkernels.compat.flashinfer.planned import Wrapper, results
from labkernels.kernels.caches.latent import LatentKV
from labkernels.kernels.checks import resolved
from labkernels.kernels.mla.api import mla_decode

KERNELS = {"auto": None, "fa2": "mla_mma", "fa3": "mla_wgmma"}  # by backend


class BatchMLAPagedAttentionWrapper(Wrapper):
    """MLA decode, absorbed, of up to 128 query tokens per request: `plan` once, then `run`.

    `plan` takes the pages of all requests as one list: request i has pages
    kv_indices[kv_indptr[i]] to kv_indices[kv_indptr[i + 1] - 1], which hold kv_len_arr[i] keys. The
    lists are taken by themselves (qo_indptr, kv_indptr, kv_indices, kv_len_arr); as `metadata` they
    are refused. A causal mask is aligned to the end of the keys.
    Shapes: qo_indptr, kv_indptr [batch + 1], kv_indices [pages in use], kv_len_arr [batch] int32;
    q_nope [qo_indptr[-1], num_heads, 512], q_pe [qo_indptr[-1], num_heads, 64]; ckv_cache [pages,
    page_size, 512], kpe_cache [pages, page_size, 64] -> out as q_nope; with return_lse, out and lse
    [qo_indptr[-1], num_heads] fp32.
    Units: sm_scale multiplies q k (default 1 / sqrt(192)); lse is in base 2, or natural if
    return_lse_base_on_e.
    Raises: ValueError naming the argument, its value and what is allowed.

    >>> wrapper = BatchMLAPagedAttentionWrapper(torch.empty(0))
    >>> one_each, pages = torch.tensor([0, 1, 2]).int(), torch.tensor([0, 2, 3]).int()
    >>> indices, lens, half = torch.tensor([2, 0, 1]).int(), torch.tensor([20, 9]).int(), "float16"
    >>> wrapper.plan(one_each, pages, indices, lens, 16, 512, 64, 16, True, 192**-0.5, half, half)
    >>> q, cache = torch.randn(2, 16, 576).half(), torch.randn(3, 16, 576).half()
    >>> wrapper.run(*q.split([512, 64], -1), *cache.split([512, 64], -1)).shape
    torch.Size([2, 16, 512])
    """

    kernels = KERNELS

    @keeps_fixed
    def __init__(
        self, float_workspace_buffer: torch.Tensor, use_cuda_graph: Fixed = False,
        qo_indptr: Fixed = None, kv_indptr: Fixed = None, kv_indices: Fixed = None,
        kv_len_arr: Fixed = None, backend="auto",
    ):  # fmt: skip
        super().__init__(float_workspace_buffer, backend)

    @keeps_fixed
    def plan(
        self, qo_indptr=None, kv_indptr=None, kv_indices=None, kv_len_arr=None, num_heads=None,
        head_dim_ckv=None, head_dim_kpe=None, page_size=None, causal=None, sm_scale=None,
        q_data_type=None, kv_data_type=None, use_profiler: Fixed = False, *, metadata: Fixed = None,
        cum_seq_lens_q: Fixed = None, block_tables: Fixed = None, seq_lens: Fixed = None,
        max_q_len: Fixed = None, query_layout: Fixed = None, kv_cache_layout: Fixed = None,
        lse_mode: Fixed = "none", output_dtype=None, output_scale: Fixed = "none",
        scale_mode: Fixed = "default", skip_softmax: Fixed = False, enable_pdl=None,
        use_sinks: Fixed = False,
    ):  # fmt: skip
        """Read the lists of pages, and keep the options for `run`."""
        self._keep(
            qo_indptr,
            caches.page_table(kv_indptr, kv_indices),
            kv_len_arr,
            options={"causal": causal, "scale": sm_scale},
            dtypes=(q_data_type, kv_data_type, output_dtype),
            num_heads=num_heads,
            head_dim_ckv=head_dim_ckv,
            head_dim_kpe=head_dim_kpe,
            page_size=page_size,
        )

    @keeps_fixed
    def run(
        self, q_nope=None, q_pe=None, ckv_cache=None, kpe_cache=None, out=None, lse=None,
        return_lse=False, profiler_buffer: Fixed = None, kv_len: Fixed = None,
        page_table: Fixed = None, return_lse_base_on_e=False, o_scale: Fixed = None, *,
        query: Fixed = None, kv_cache: Fixed = None, ckv_scale: Fixed = None,
        ckv_scale_arr: Fixed = None, kpe_scale: Fixed = None, sinks: Fixed = None,
        skip_softmax_threshold_scale_factor: Fixed = None, bmm1_scale: Fixed = None,
        bmm2_scale: Fixed = None,
    ):  # fmt: skip
        """Attend from q_nope and q_pe to the planned pages of these latent rows."""
        require_dims(
            q_nope=(q_nope, "[tokens, num_heads, head_dim_ckv]"),
            q_pe=(q_pe, "[tokens, num_heads, head_dim_kpe]"),
            ckv_cache=(ckv_cache, "[pages, page_size, head_dim_ckv]"),
        )
        self._require(
            num_heads=q_nope.shape[1],
            head_dim_ckv=q_nope.shape[2],
            head_dim_kpe=q_pe.shape[2],
            page_size=ckv_cache.shape[1],
            q_data_type=q_nope.dtype,
        )
        qo_indptr, *pages = self._tensors
        cache = LatentKV(resolved(ckv_cache), resolved(kpe_cache), *pages)
        done = mla_decode(q_nope, q_pe, cache, qo_indptr, out=out, **self._options).outputs()
        return results(done, return_lse, lse, "ln" if return_lse_base_on_e else "log2")
