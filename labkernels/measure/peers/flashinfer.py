"""FlashInfer's kernels for paged decode, prefill and MLA decode, by its wrappers."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from labkernels.kernels.caches.paged import PagedKV, QuantizedKV
from labkernels.kernels.call import Attention, Step
from labkernels.kernels.decode.inputs import DecodeInputs
from labkernels.kernels.mla.inputs import MlaInputs
from labkernels.kernels.prefill.inputs import PrefillInputs
from labkernels.kernels.random_inputs import DTYPES
from labkernels.measure.peers.peer import (
    PEER_POLICY,
    Peer,
    Refused,
    not_installed,
    one_line,
    refusals,
)

LIBRARY = "flashinfer"
WORKSPACE_BYTES = 2**29
# The head_dims that the prefill is built for; each further one would add minutes of compilation.
PREFILL_HEAD_DIMS = {"fa2": (128,), "fa3": (64, 128, 256)}


def missing() -> str | None:
    """Return the reason why FlashInfer cannot run here, or None."""
    import torch

    reason = not_installed("flashinfer", "flashinfer-python")
    return reason or (None if torch.cuda.is_available() else "there is no CUDA GPU")


def build(operation: str, shapes: Iterable[tuple[str, int]]) -> str | None:
    """Compile an operation's modules for dtypes and head_dims, all in one parallel build.

    Prefill modules also serve decode on tensor cores. The first build of a module takes 20 to 100
    seconds; later calls find the module in FlashInfer's cache. Returns why FlashInfer cannot run
    here, or None.
    """
    reason = missing()
    if reason is None:
        try:
            from flashinfer.jit.core import build_jit_specs

            build_jit_specs(list(_modules(operation, shapes)), verbose=False)
        except Exception as error:  # a build can fail in many ways
            reason = f"FlashInfer did not build: {one_line(error)}"
    return reason


def _modules(operation: str, shapes: Iterable[tuple[str, int]]):
    import torch
    from flashinfer.decode import gen_batch_decode_module
    from flashinfer.jit import gen_batch_mla_module, gen_batch_prefill_module
    from flashinfer.jit.attention import modules

    # Since 0.7.2 fa2 runs a module that is made for K and V of equal strides, of another generator.
    fa2 = getattr(modules, "_gen_batch_prefill_primary_module", gen_batch_prefill_module)
    prefill_module = {"fa2": fa2, "fa3": gen_batch_prefill_module}
    hopper = torch.cuda.get_device_capability()[0] == 9
    backends = ("fa2", "fa3") if hopper else ("fa2",)
    shapes = sorted(set(shapes))
    if operation == "mla":
        for element in {DTYPES[dtype] for dtype, _ in shapes}:
            for name in backends:
                yield gen_batch_mla_module(
                    name, element, element, element, torch.int32, 512, 64, False
                )
        return
    for dtype, head_dim in shapes:
        element = DTYPES[dtype]
        # Position encoding 0 means none; False: no sliding window, no soft cap. The prefill's last
        # False: no fp16 scores.
        shape = (element, element, element, torch.int32, head_dim, head_dim, 0, False, False)
        if operation == "decode":
            yield gen_batch_decode_module(*shape)
        for name in backends:
            if operation == "decode" or head_dim in PREFILL_HEAD_DIMS[name]:
                yield prefill_module[name](name, *shape, False)


def page_lists(cache):
    """Return the page table in FlashInfer's form: indptr, indices, last_page_len.

    Shapes: indptr [B + 1] int32; indices [pages in use] int32; last_page_len [B] int32
    Raises: Refused if a request holds no key, for which FlashInfer has no last page.
    """
    import torch

    page_size = cache.page_size
    lengths = cache.kv_len.to(torch.int64)
    if not bool((lengths > 0).all()):
        raise Refused("a request without keys has no last page")
    pages = (lengths + page_size - 1) // page_size
    indptr = torch.zeros(len(pages) + 1, dtype=torch.int32, device=pages.device)
    indptr[1:] = torch.cumsum(pages, 0)
    used = torch.arange(cache.page_table.shape[1], device=pages.device) < pages[:, None]
    last_page_len = (lengths - (pages - 1) * page_size).to(torch.int32)
    return indptr, cache.page_table[used].to(torch.int32), last_page_len


def decode_step(
    q, cache, *, scale: float, tensor_cores: bool, backend: str, **knobs
) -> Step[Attention]:
    """Plan FlashInfer's paged decode and return its step; knobs go to its plan.

    Shapes: q [B, Hq, D]; cache.k and cache.v [pages, page_size, Hkv, D], layout NHD. A QuantizedKV
    has one scale for all heads of K, and one for V; q may then be codes, with an o_data_type.
    Raises: Refused with FlashInfer's own words.
    """
    import flashinfer
    import torch

    pages = page_lists(cache)
    out = torch.full_like(q, float("nan"), dtype=knobs.get("o_data_type"))
    with refusals(Exception):
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            workspace(q), "NHD", use_tensor_cores=tensor_cores, backend=backend
        )

    def plan() -> None:
        heads = (q.shape[1], cache.k.shape[2], q.shape[2])
        dtypes = {"q_data_type": q.dtype, "kv_data_type": cache.k.dtype}
        wrapper.plan(*pages, *heads, cache.k.shape[1], **dtypes, sm_scale=scale, **knobs)

    scales, folded = {}, []
    if isinstance(cache, QuantizedKV):  # it takes one number for all heads
        if cache.of_blocks:
            raise Refused("FlashInfer takes no scales of blocks of keys")
        scales = {name: float(getattr(cache, name)[0]) for name in ("k_scale", "v_scale")}
        if q.dtype == cache.k.dtype:  # its kernel takes them, after that of the query
            folded, scales = [1.0, *scales.values()], {}
    pools = (cache.k, cache.v)
    return planned(wrapper, plan, lambda: wrapper.run(q, pools, *folded, out=out, **scales), out)


def prefill_step(
    q, kv, cu_seqlens_q, *, causal: bool, scale: float, backend: str, sinks=None, **knobs
) -> Step[Attention]:
    """Plan FlashInfer's prefill, ragged or paged, and return its step; knobs go to its plan.

    Shapes: q [total_q, Hq, D]; kv a RaggedKV or PagedKV; cu_seqlens_q [B + 1]; sinks [Hq] or None
    Raises: Refused with FlashInfer's own words.
    """
    import flashinfer

    out = q.new_full((*q.shape[:2], kv.v.shape[-1]), float("nan"))
    heads = (q.shape[1], kv.k.shape[-2], q.shape[2])
    options = {"causal": causal, "sm_scale": scale, "q_data_type": q.dtype, **knobs}
    if isinstance(kv, PagedKV):
        name, where = "BatchPrefillWithPagedKVCacheWrapper", (*page_lists(kv), *heads, kv.page_size)
        tensors = (q, (kv.k, kv.v))
    else:
        name, where = "BatchPrefillWithRaggedKVCacheWrapper", (kv.cu_seqlens, *heads)
        options["head_dim_vo"] = kv.v.shape[-1]
        tensors = (q, kv.k, kv.v)
    more: dict[str, Any] = {}
    if sinks is not None:
        tensors, more = (*tensors, sinks, scale), _with_sinks(q, "window_left" in knobs, backend)
    with refusals(Exception):
        wrapper = getattr(flashinfer, name)(workspace(q), "NHD", backend=backend, **more)
    return planned(
        wrapper,
        lambda: wrapper.plan(cu_seqlens_q, *where, **options),
        lambda: wrapper.run(*tensors, out=out),
        out,
    )


def _with_sinks(q, window: bool, backend: str) -> dict[str, Any]:
    """Return the options of a wrapper that make it compile FlashInfer's variant with sinks.

    Its own wrapper with sinks reads pages alone, and names its modules without their head_dim.
    """
    import torch
    from flashinfer.jit.attention.variants import attention_sink_decl

    name, dim = f"sinks_{q.dtype}_{q.shape[2]}_{window}_{backend}".replace(".", "_"), q.shape[2]
    types = (*[q.dtype] * 3, torch.int32, dim, dim)
    added = (["sink"], ["float"], ["sm_scale"], ["double"])
    how: dict[str, Any] = {"use_sliding_window": window}
    if backend == "fa2":  # as that wrapper asks
        how["paged_kv_stride_mode"] = "independent"
    args = [name, *types, *added, "AttentionSink", attention_sink_decl[backend]]
    return {"jit_args": args, "jit_kwargs": how}


def planned(wrapper, plan: Callable[[], object], run: Callable[[], object], out) -> Step[Attention]:
    """Plan and run a wrapper, or a function without a plan, once, and return its step."""
    import flashinfer
    import torch

    with refusals(Exception):  # the library's FFI raises exceptions of its own classes
        plan()
        run()
        torch.cuda.synchronize()
    version = f"FlashInfer {flashinfer.__version__}"
    return Step(run, lambda: Attention(out), version=version)


def workspace(like):
    """Return the scratch memory that a wrapper plans in, on a tensor's device."""
    import torch

    return torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=like.device)


def _asked(inputs: DecodeInputs | PrefillInputs) -> dict[str, Any]:
    """Return what a plan is told of the inputs' variant."""
    variant, asked = inputs.variant, dict[str, Any]()
    if variant.window_left is not None:
        asked["window_left"] = variant.window_left
    if variant.soft_cap is not None:
        asked["logits_soft_cap"] = variant.soft_cap
    if variant.sinks:
        asked["sinks"] = inputs.options["sinks"]
    return asked | {"scale": inputs.scale}


def _decode(tensor_cores: bool, backend: str) -> Callable[[DecodeInputs], Step]:
    def prepare(inputs: DecodeInputs) -> Step:
        import torch

        how = {"backend": backend, **_asked(inputs)}
        if inputs.variant.sinks:  # its prefill alone has them
            ends = torch.arange(len(inputs.q) + 1, dtype=torch.int32, device=inputs.q.device)
            return prefill_step(*inputs.arguments, ends, causal=False, **how)
        return decode_step(*inputs.arguments, tensor_cores=tensor_cores, **how)

    return prepare


def _prefill(backend: str) -> Callable[[PrefillInputs], Step]:
    def prepare(inputs: PrefillInputs) -> Step:
        if inputs.workload.head_dim not in PREFILL_HEAD_DIMS[backend]:
            built = ", ".join(map(str, PREFILL_HEAD_DIMS[backend]))
            raise Refused(f"built for head_dim {built} alone")
        how = {"causal": inputs.variant.causal, "backend": backend, **_asked(inputs)}
        return prefill_step(*inputs.arguments, **how)

    return prepare


def _mla(backend: str) -> Callable[[MlaInputs], Step]:
    def prepare(inputs: MlaInputs) -> Step:
        import flashinfer
        import torch

        work, cache, q = inputs.workload, inputs.cache, (inputs.q_nope, inputs.q_pe)
        out = torch.full_like(inputs.q_nope, float("nan"))
        with refusals(Exception):
            wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(workspace(out), backend=backend)
            indptr, indices, _ = page_lists(cache)
        where = (inputs.cu_seqlens_q, indptr, indices, cache.kv_len)
        sizes = (work.q_heads, work.latent_dim, work.rope_dim, work.page_size)
        how = (work.causal, inputs.scale, out.dtype, cache.ckv.dtype)
        return planned(
            wrapper,
            lambda: wrapper.plan(*where, *sizes, *how),
            lambda: wrapper.run(*q, cache.ckv, cache.kpe, out=out),
            out,
        )

    return prepare


def _peer(name: str, idea: str, policy=PEER_POLICY, **steps) -> Peer:
    features = ("window", "soft_cap", *(["sinks"] if "prefill" in steps else []))
    return Peer(name, LIBRARY, idea, policy, steps, missing, features)


PEERS = (
    _peer(
        "flashinfer_cuda_cores",
        "decode with use_tensor_cores=False",
        replace(PEER_POLICY, accumulate="fma"),
        decode=_decode(False, "auto"),
    ),
    _peer(
        "flashinfer_fa2",
        'the wrappers\' backend="fa2", decode with use_tensor_cores=True',
        decode=_decode(True, "fa2"),
        prefill=_prefill("fa2"),
        mla=_mla("fa2"),
    ),
    _peer(
        "flashinfer_fa3",
        'the wrappers\' backend="fa3"',
        prefill=_prefill("fa3"),
        mla=_mla("fa3"),
    ),
    _peer(
        "flashinfer_auto",
        'decode with use_tensor_cores=True, backend="auto", which is fa2 in 16 bits',
        decode=_decode(True, "auto"),
    ),
)
BUILDS = {LIBRARY: build}
