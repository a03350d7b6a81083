"""The lab's own kernels, through their verbs; on a CPU each is the CPU build of the same source."""

from collections.abc import Iterator

from labkernels import __version__
from labkernels.kernels.kernel import Kernel
from labkernels.kernels.registry import discover
from labkernels.probing.targets.target import Function, Target, only
from labkernels.variant import AttentionVariant


def _version() -> str:
    return f"labkernels {__version__}"


def _decode(kernel: str):
    def make(variant: AttentionVariant) -> Function:
        only(variant)

        def run(q, k_pages, v_pages, page_table, kv_lens, **how):
            from labkernels import ops
            from labkernels.kernels.caches.paged import PagedKV

            cache = PagedKV(k_pages, v_pages, page_table, kv_lens)
            step = ops.decode(q, cache, kernel=kernel, **how)
            return step.out, step.lse2

        return run

    return make


def _prefill(kernel: str, *, paged: bool):
    def make(variant: AttentionVariant) -> Function:
        causal = only(variant, "causal").causal

        def ragged(q, k, v, cu_q, cu_k, **how):
            from labkernels import ops
            from labkernels.kernels.caches.ragged import RaggedKV

            step = ops.prefill(q, RaggedKV(k, v, cu_k), cu_q, causal=causal, kernel=kernel, **how)
            return step.out, step.lse2

        def pages(q, k_pages, v_pages, page_table, kv_lens, cu_q, **how):
            from labkernels import ops
            from labkernels.kernels.caches.paged import PagedKV

            cache = PagedKV(k_pages, v_pages, page_table, kv_lens)
            step = ops.prefill(q, cache, cu_q, causal=causal, kernel=kernel, **how)
            return step.out, step.lse2

        return pages if paged else ragged

    return make


def _mla(kernel: str):
    def make(variant: AttentionVariant) -> Function:
        only(variant, "causal")  # one query sees all keys, with or without a causal mask

        def run(q_nope, q_pe, c_pages, pe_pages, page_table, kv_lens, **how):
            from labkernels import ops
            from labkernels.kernels.caches.latent import LatentKV

            cache = LatentKV(c_pages, pe_pages, page_table, kv_lens)
            step = ops.mla_decode(q_nope, q_pe, cache, kernel=kernel, **how)
            return step.out, step.lse2

        return run

    return make


def _attention(variant: AttentionVariant) -> Function:
    causal = only(variant, "causal").causal

    def run(q, k, v, cu_q, cu_k, **how):
        from labkernels import ops

        return ops.attention(q, k, v, cu_q, cu_k, causal=causal, **how)

    return run


def _of(kernel: Kernel) -> Target | None:
    """Return a kernel as a target, or None for an operation that is no attention."""
    name = kernel.name
    ragged = {"ragged": _prefill(name, paged=False)}
    paged = {"paged_prefill": _prefill(name, paged=True)} if "paged" in kernel.layouts else {}
    make = {
        "decode": {"paged_decode": _decode(name)},
        "prefill": ragged | paged,
        "mla": {"mla": _mla(name)},
    }.get(kernel.operation)
    if make is None:
        return None
    knobs = {"paged_decode": {"keys_per_split": (None, 128)}}
    return Target(name, make, _version, knobs=knobs)


def _targets() -> Iterator[Target]:
    for kernel in discover().values():
        target = _of(kernel)
        if target is not None:
            yield target
    yield Target("labkernels:attention", {"ragged": _attention}, _version, gradients=True)


TARGETS = tuple(_targets())
