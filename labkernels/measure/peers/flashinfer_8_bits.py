"""FlashInfer's kernels that multiply in 8 bits: FA3, which is given a query in e4m3, and XQA.

XQA, a decode, rounds the query to e4m3 itself, and both round P. So both are right for a query
whose numbers e4m3 holds, such as that of `inputs`.
"""

from dataclasses import replace

import torch

from labkernels.kernels.call import Attention, Step, nothing
from labkernels.kernels.decode.inputs import DecodeInputs, decode_inputs
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.prefill.inputs import PrefillInputs
from labkernels.kernels.random_inputs import Draw
from labkernels.measure.peers import flashinfer
from labkernels.measure.peers.peer import PEER_POLICY, Peer, Refused

# apart from decode and prefill, whose benchmarks have other queries
OPERATION, PREFILL = "decode_8_bits", "prefill_8_bits"
POLICY = replace(PEER_POLICY, p="e4m3", denominator="unrounded")  # both sum P in fp32
CODES = torch.float8_e4m3fn


def inputs(workload: Decode, draw: Draw) -> DecodeInputs:
    """Return a decode's inputs with a query whose numbers e4m3 holds."""
    found = decode_inputs(workload, draw)
    found.q.copy_(found.q.to(CODES))
    return found


def _fa3(given: DecodeInputs) -> Step:
    how = {"scale": given.scale, "o_data_type": given.q.dtype, "backend": "fa3"}
    return flashinfer.decode_step(given.q.to(CODES), given.cache, tensor_cores=True, **how)


def _fa3_prefill(given: PrefillInputs) -> Step:
    import flashinfer as library

    if len(given.kv.cu_seqlens) != 2:
        raise Refused("its prefill in 8 bits is called for one request")
    codes = [x.to(CODES) for x in (given.q, given.kv.k, given.kv.v)]
    how = {"o_dtype": given.q.dtype, "sm_scale": given.scale, "causal": given.workload.causal}
    made = {}  # each call returns an output of its own

    def run() -> None:
        made["out"] = library.single_prefill_with_kv_cache(*codes, backend="fa3", **how)

    step = flashinfer.planned(None, nothing, run, None)
    return replace(step, outputs=lambda: Attention(made["out"]))


def _xqa(given: DecodeInputs) -> Step:
    from flashinfer.decode import xqa_batch_decode_with_kv_cache as xqa

    q, cache = given.arguments
    out, space = torch.full_like(q, float("nan")), flashinfer.workspace(q).zero_()
    k_scale, v_scale = (float(scale[0]) for scale in (cache.k_scale, cache.v_scale))
    where = (space, cache.page_table.contiguous(), cache.kv_len.view(torch.uint32))

    def run() -> None:
        pools, scale = (cache.k, cache.v), given.scale * k_scale
        xqa(q, pools, *where, cache.max_kv_len, scale, v_scale, out=out)

    return flashinfer.planned(None, nothing, run, out)


PEERS = tuple(
    Peer(name, flashinfer.LIBRARY, idea, POLICY, steps, flashinfer.missing)
    for name, idea, steps in (
        (
            "flashinfer_fa3_e4m3",
            'backend="fa3", with Q in e4m3',
            {OPERATION: _fa3, PREFILL: _fa3_prefill},
        ),
        (
            "flashinfer_xqa",
            "xqa_batch_decode_with_kv_cache, which rounds Q to e4m3",
            {OPERATION: _xqa},
        ),
    )
)
