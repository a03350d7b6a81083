"""FlashInfer's wrappers: decode on CUDA cores, fa2 and fa3 for prefill, and both for MLA."""

from functools import cache
from operator import attrgetter

import torch

from labkernels.kernels.caches.latent import LatentKV
from labkernels.kernels.caches.paged import PagedKV
from labkernels.measure.peers import flashinfer as peer
from labkernels.probing.targets import Target, installed, maker, on_gpu
from labkernels.variant import AttentionVariant


def _options(variant: AttentionVariant) -> dict:
    """Return a variant in the words of FlashInfer's plan: -1 and 0 mean none."""
    left = -1 if variant.window_left is None else variant.window_left
    return {"window_left": left, "logits_soft_cap": variant.soft_cap or 0.0}


@cache
def _wrapper(name: str, device, **how):
    """Return a wrapper of FlashInfer by its class; each call plans it anew.

    Making one takes 0.1 s, mostly for memory that the host pins.
    """
    import flashinfer

    workspace = torch.empty(peer.WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    layout = () if "MLA" in name else ("NHD",)
    return attrgetter(name)(flashinfer)(workspace, *layout, **how)


def _decode(variant: AttentionVariant, q, k_pages, v_pages, page_table, kv_lens, *, how, **knobs):
    wrapper = _wrapper("BatchDecodeWithPagedKVCacheWrapper", q.device, **how)
    lists = peer.page_lists(PagedKV(k_pages, v_pages, page_table, kv_lens))
    sizes = (q.shape[1], k_pages.shape[2], q.shape[2], k_pages.shape[1])
    dtypes = {"q_data_type": q.dtype, "kv_data_type": k_pages.dtype}
    wrapper.plan(*lists, *sizes, **dtypes, **_options(variant), **knobs)
    return wrapper.run(q, (k_pages, v_pages), return_lse=True)


def _ragged(variant: AttentionVariant, q, k, v, cu_q, cu_k, *, backend, **knobs):
    wrapper = _wrapper("BatchPrefillWithRaggedKVCacheWrapper", q.device, backend=backend)
    how = {"causal": variant.causal, "q_data_type": q.dtype, "head_dim_vo": v.shape[-1]} | knobs
    wrapper.plan(cu_q, cu_k, q.shape[1], k.shape[1], q.shape[2], **_options(variant), **how)
    return wrapper.run(q, k, v, return_lse=True)


def _paged(variant, q, k_pages, v_pages, page_table, kv_lens, cu_q, *, backend, **knobs):
    wrapper = _wrapper("BatchPrefillWithPagedKVCacheWrapper", q.device, backend=backend)
    lists = peer.page_lists(PagedKV(k_pages, v_pages, page_table, kv_lens))
    sizes = (q.shape[1], k_pages.shape[2], q.shape[2], k_pages.shape[1])
    how = {"causal": variant.causal, "q_data_type": q.dtype} | knobs
    wrapper.plan(cu_q, *lists, *sizes, **_options(variant), **how)
    return wrapper.run(q, (k_pages, v_pages), return_lse=True)


def _mla(variant, q_nope, q_pe, c_pages, pe_pages, page_table, kv_lens, *, backend):
    latent = LatentKV(c_pages, pe_pages, page_table, kv_lens)
    wrapper = _wrapper("mla.BatchMLAPagedAttentionWrapper", q_nope.device, backend=backend)
    indptr, indices, _ = peer.page_lists(latent)
    ends = torch.arange(len(q_nope) + 1, dtype=torch.int32, device=q_nope.device)
    sizes = (q_nope.shape[1], q_nope.shape[2], q_pe.shape[2], c_pages.shape[1])
    how = (variant.causal, latent.default_scale, q_nope.dtype, c_pages.dtype)
    wrapper.plan(ends, indptr, indices, kv_lens, *sizes, *how)
    return wrapper.run(q_nope, q_pe, c_pages, pe_pages, return_lse=True)


def _decode_by(tensor_cores: bool, backend: str) -> dict:
    how = {"use_tensor_cores": tensor_cores, "backend": backend}
    return {"paged_decode": maker(_decode, *_FIELDS, how=how)}


def _others_by(backend: str) -> dict:
    prefill = {"ragged": _ragged, "paged_prefill": _paged}
    make = {name: maker(f, "causal", *_FIELDS, backend=backend) for name, f in prefill.items()}
    return make | {"mla": maker(_mla, "causal", backend=backend)}


_FIELDS = ("window_left", "soft_cap")
_MAKE = {
    "cuda_cores": _decode_by(False, "auto"),
    "fa2": _decode_by(True, "fa2") | _others_by("fa2"),
    "fa3": _others_by("fa3"),
}
_HOW = installed("FlashInfer", "flashinfer-python"), on_gpu("FlashInfer", peer.missing)
TARGETS = tuple(Target(f"flashinfer:{name}", make, *_HOW) for name, make in _MAKE.items())
