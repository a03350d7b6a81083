"""FlashInfer's wrappers: decode on CUDA cores, fa2 and fa3 for prefill, and both for MLA."""

from functools import cache

from labkernels.measure.peers import flashinfer as peer
from labkernels.probing.targets.target import Function, Target, only
from labkernels.variant import AttentionVariant

_WINDOW_AND_CAP = ("causal", "window_left", "soft_cap")
_SPLITS = {"disable_split_kv": (False, True)}  # fa2 alone; its MLA has no such option


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
    import torch

    kind = flashinfer
    for part in name.split("."):
        kind = getattr(kind, part)
    workspace = torch.empty(peer.WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    layout = () if "MLA" in name else ("NHD",)
    return kind(workspace, *layout, **how)


def _lists(k_pages, v_pages, page_table, kv_lens):
    from labkernels.kernels.caches.paged import PagedKV

    return peer.page_lists(PagedKV(k_pages, v_pages, page_table, kv_lens))


def _decode(*, tensor_cores: bool, backend: str):
    def make(variant: AttentionVariant) -> Function:
        options = _options(only(variant, "window_left", "soft_cap"))

        def run(q, k_pages, v_pages, page_table, kv_lens, **knobs):
            how = {"use_tensor_cores": tensor_cores, "backend": backend}
            wrapper = _wrapper("BatchDecodeWithPagedKVCacheWrapper", q.device, **how)
            heads = (q.shape[1], k_pages.shape[2], q.shape[2])
            dtypes = {"q_data_type": q.dtype, "kv_data_type": k_pages.dtype}
            lists = _lists(k_pages, v_pages, page_table, kv_lens)
            wrapper.plan(*lists, *heads, k_pages.shape[1], **dtypes, **options, **knobs)
            return wrapper.run(q, (k_pages, v_pages), return_lse=True)

        return run

    return make


def _ragged(backend: str):
    def make(variant: AttentionVariant) -> Function:
        options = _options(only(variant, *_WINDOW_AND_CAP)) | {"causal": variant.causal}

        def run(q, k, v, cu_q, cu_k, **knobs):
            name = "BatchPrefillWithRaggedKVCacheWrapper"
            wrapper = _wrapper(name, q.device, backend=backend)
            how = options | {"q_data_type": q.dtype, "head_dim_vo": v.shape[-1]} | knobs
            wrapper.plan(cu_q, cu_k, q.shape[1], k.shape[1], q.shape[2], **how)
            return wrapper.run(q, k, v, return_lse=True)

        return run

    return make


def _paged(backend: str):
    def make(variant: AttentionVariant) -> Function:
        options = _options(only(variant, *_WINDOW_AND_CAP)) | {"causal": variant.causal}

        def run(q, k_pages, v_pages, page_table, kv_lens, cu_q, **knobs):
            name = "BatchPrefillWithPagedKVCacheWrapper"
            wrapper = _wrapper(name, q.device, backend=backend)
            lists = _lists(k_pages, v_pages, page_table, kv_lens)
            heads = (q.shape[1], k_pages.shape[2], q.shape[2])
            how = options | {"q_data_type": q.dtype} | knobs
            wrapper.plan(cu_q, *lists, *heads, k_pages.shape[1], **how)
            return wrapper.run(q, (k_pages, v_pages), return_lse=True)

        return run

    return make


def _mla(backend: str):
    def make(variant: AttentionVariant) -> Function:
        only(variant, "causal")

        def run(q_nope, q_pe, c_pages, pe_pages, page_table, kv_lens):
            import torch

            from labkernels.kernels.caches.latent import LatentKV

            latent = LatentKV(c_pages, pe_pages, page_table, kv_lens)
            name = "mla.BatchMLAPagedAttentionWrapper"
            wrapper = _wrapper(name, q_nope.device, backend=backend)
            indptr, indices, _ = peer.page_lists(latent)
            ends = torch.arange(len(q_nope) + 1, dtype=torch.int32, device=q_nope.device)
            sizes = (q_nope.shape[1], q_nope.shape[2], q_pe.shape[2], c_pages.shape[1])
            how = (variant.causal, latent.default_scale, q_nope.dtype, c_pages.dtype)
            wrapper.plan(ends, indptr, indices, kv_lens, *sizes, *how)
            return wrapper.run(q_nope, q_pe, c_pages, pe_pages, return_lse=True)

        return run

    return make


def _version() -> str:
    import flashinfer

    return f"FlashInfer {flashinfer.__version__}"


def _missing(device: str) -> str | None:
    return peer.missing() if device != "cpu" else "FlashInfer has no kernels for a CPU"


TARGETS = (
    Target(
        "flashinfer:cuda_cores",
        {"paged_decode": _decode(tensor_cores=False, backend="auto")},
        _version,
        _missing,
    ),
    Target(
        "flashinfer:fa2",
        {
            "paged_decode": _decode(tensor_cores=True, backend="fa2"),
            "ragged": _ragged("fa2"),
            "paged_prefill": _paged("fa2"),
            "mla": _mla("fa2"),
        },
        _version,
        _missing,
        dict.fromkeys(("paged_decode", "ragged", "paged_prefill"), _SPLITS),
    ),
    Target(
        "flashinfer:fa3",
        {"ragged": _ragged("fa3"), "paged_prefill": _paged("fa3"), "mla": _mla("fa3")},
        _version,
        _missing,
    ),
)
