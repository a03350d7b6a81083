"""The lab's own kernels, through their verbs; on a CPU each is the CPU build of the same source."""

from typing import Any

from labkernels import __version__, ops
from labkernels.kernels.caches.latent import LatentKV
from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.kernels.random_inputs import Normal, variant_options
from labkernels.kernels.registry import discover
from labkernels.probing.targets import Target, maker


def _options(variant, q) -> dict[str, Any]:
    """Return a variant as options of a verb; sinks are the same in each call."""
    return variant_options(variant, q.shape[1], Normal(0, str(q.device)))


def _decode(variant, q, k_pages, v_pages, page_table, kv_lens, **how):
    how = _options(variant, q) | how
    return ops.decode(q, PagedKV(k_pages, v_pages, page_table, kv_lens), **how)


def _ragged(variant, q, k, v, cu_q, cu_k, **how):
    how = _options(variant, q) | how
    return ops.prefill(q, RaggedKV(k, v, cu_k), cu_q, causal=variant.causal, **how)


def _paged(variant, q, k_pages, v_pages, page_table, kv_lens, cu_q, **how):
    cache, how = PagedKV(k_pages, v_pages, page_table, kv_lens), _options(variant, q) | how
    return ops.prefill(q, cache, cu_q, causal=variant.causal, **how)


def _mla(variant, q_nope, q_pe, c_pages, pe_pages, page_table, kv_lens, **how):
    """One query sees all keys, with or without a causal mask."""
    return ops.mla_decode(q_nope, q_pe, LatentKV(c_pages, pe_pages, page_table, kv_lens), **how)


def _attention(variant, q, k, v, cu_q, cu_k, **how):
    return ops.attention(q, k, v, cu_q, cu_k, causal=variant.causal, **how)


# By operation: each layout, with the function and the fields of a variant that every kernel
# computes; and those of each feature that a kernel may have.
_CALLS: dict[str, dict[str, tuple[Any, ...]]] = {
    "decode": {"paged_decode": (_decode,)},
    "prefill": {"ragged": (_ragged, "causal"), "paged_prefill": (_paged, "causal")},
    "mla": {"mla": (_mla, "causal")},
}
_FIELDS = {"window": ("window_left", "window_right"), "bias": ()}


def _version() -> str:
    return f"labkernels {__version__}"


def _targets():
    for kernel in discover().values():
        calls = _CALLS.get(kernel.operation, {})
        fields = [x for feature in kernel.features for x in _FIELDS.get(feature, (feature,))]
        make = {
            layout: maker(*call, *fields, kernel=kernel.name)
            for layout, call in calls.items()
            if layout != "paged_prefill" or "paged" in kernel.layouts
        }
        if make:
            yield Target(kernel.name, make, _version)
    make = {"ragged": maker(_attention, "causal")}
    yield Target("labkernels:attention", make, _version)


TARGETS = tuple(_targets())
