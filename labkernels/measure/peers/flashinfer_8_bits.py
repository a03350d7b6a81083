"""FlashInfer's decodes that multiply in 8 bits: FA3, which is given a query in e4m3, and XQA.

XQA rounds the query to e4m3 itself, and both round P to e4m3. So both compute the attention of a
query only if e4m3 holds its numbers, and refuse every other query.
"""

from dataclasses import replace
from typing import Any

from labkernels.kernels.caches.paged import QuantizedKV
from labkernels.kernels.call import Attention, Step
from labkernels.kernels.decode.inputs import DecodeInputs
from labkernels.measure.peers.flashinfer import (
    LIBRARY,
    missing,
    page_lists,
    planned,
    version,
    workspace,
)
from labkernels.measure.peers.peer import PEER_POLICY, Peer, Refused, one_line, refusals

OPERATION = "decode_8_bits"  # apart from decode, whose benchmarks have other queries
POLICY = replace(PEER_POLICY, p="e4m3", denominator="unrounded")  # both sum P in fp32
HEAD_DIM, PAGE_SIZE, GROUP = 128, 16, 4  # of the modules that `build` compiles


def build() -> str | None:
    """Compile the modules of all of FlashInfer's decodes of e4m3 beside bf16, in one build.

    Returns why FlashInfer cannot run here, or None.
    """
    reason = missing()
    if reason is None:
        try:
            from flashinfer.jit.core import build_jit_specs

            build_jit_specs(list(_modules()), verbose=False)
        except Exception as error:  # a build can fail in many ways
            reason = f"FlashInfer did not build: {one_line(error)}"
    return reason


def _modules():
    import torch
    from flashinfer.decode import gen_batch_decode_module
    from flashinfer.jit import gen_batch_prefill_module
    from flashinfer.jit.attention import modules
    from flashinfer.jit.xqa import gen_xqa_module

    wide, codes = torch.bfloat16, torch.float8_e4m3fn
    shape = (wide, torch.int32, HEAD_DIM, HEAD_DIM, 0, False, False)
    fa2 = getattr(modules, "_gen_batch_prefill_primary_module", gen_batch_prefill_module)
    yield gen_batch_decode_module(wide, codes, *shape)
    yield fa2("fa2", wide, codes, *shape, False)
    yield gen_batch_prefill_module("fa3", codes, codes, *shape, False)
    yield gen_xqa_module(wide, codes, PAGE_SIZE, HEAD_DIM, GROUP, False, wide)


def _codes(inputs: DecodeInputs) -> tuple[Any, float, float]:
    """Return the query in e4m3, and the cache's scale of K and of V.

    Raises: Refused unless e4m3 holds the query, and each scale is of all heads.
    """
    import torch

    q, cache = inputs.q, inputs.cache
    codes = q.to(torch.float8_e4m3fn)
    if not isinstance(cache, QuantizedKV) or cache.of_blocks or cache.k.dtype != codes.dtype:
        raise Refused("it takes a cache in e4m3 with one scale for all heads")
    if not torch.equal(codes.to(q.dtype), q):
        raise Refused("it rounds the query to e4m3, which does not hold this one")
    return codes, float(cache.k_scale[0]), float(cache.v_scale[0])


def _fa3(inputs: DecodeInputs) -> Step:
    """Prepare the wrapper's decode on tensor cores with backend="fa3"."""
    import flashinfer
    import torch

    (q, *scales), cache = _codes(inputs), inputs.cache
    out, lists = torch.full_like(inputs.q, float("nan")), page_lists(cache)
    sizes = (q.shape[1], cache.kv_heads, q.shape[2], cache.page_size)
    types = {"q_data_type": q.dtype, "kv_data_type": cache.k.dtype, "o_data_type": out.dtype}
    with refusals(Exception):
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            workspace(q), "NHD", use_tensor_cores=True, backend="fa3"
        )
    return planned(
        wrapper,
        lambda: wrapper.plan(*lists, *sizes, **types, sm_scale=inputs.scale),
        lambda: wrapper.run(q, (cache.k, cache.v), 1.0, *scales, out=out),
        out,
    )


def _xqa(inputs: DecodeInputs) -> Step:
    """Prepare XQA, which the package also chooses for a Hopper GPU on its own."""
    import torch
    from flashinfer.decode import xqa_batch_decode_with_kv_cache as xqa

    (_, k_scale, v_scale), q, cache = _codes(inputs), inputs.q, inputs.cache
    out, space = torch.full_like(q, float("nan")), workspace(q).zero_()
    lengths = cache.kv_len.view(torch.uint32)
    given = (q, (cache.k, cache.v), space, cache.page_table.contiguous(), lengths)
    how = {"max_seq_len": cache.max_kv_len, "bmm1_scale": inputs.scale * k_scale}

    def run() -> None:
        xqa(*given, **how, bmm2_scale=v_scale, out=out)

    with refusals(Exception):  # the library's FFI raises exceptions of its own classes
        run()
        torch.cuda.synchronize()
    return Step(run, lambda: Attention(out), version=version())


PEERS = (
    Peer(
        "flashinfer_fa3_e4m3",
        LIBRARY,
        'the decode wrapper\'s backend="fa3" with Q in e4m3',
        POLICY,
        {OPERATION: _fa3},
        missing,
    ),
    Peer(
        "flashinfer_xqa",
        LIBRARY,
        "xqa_batch_decode_with_kv_cache, whose kernel for Hopper rounds Q to e4m3",
        POLICY,
        {OPERATION: _xqa},
        missing,
    ),
)
