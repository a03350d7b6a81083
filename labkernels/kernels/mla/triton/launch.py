"""Prepares the launches of the Triton MLA decode."""

from labkernels.kernels.caches.latent import LATENT_DIM, ROPE_DIM
from labkernels.kernels.call import Attention, Step
from labkernels.kernels.mla.call import MlaCall
from labkernels.kernels.packed_gqa import triton
from labkernels.kernels.packed_gqa.triton import Inputs


def prepare(call: MlaCall) -> Step[Attention]:
    """List the blocks, allocate the splits' partial states and fix the launches.

    Raises: RuntimeError if Triton is missing, or was imported without its interpreter on a CPU.
    """
    return triton.prepare(call, _inputs(call))


def _inputs(call: MlaCall) -> Inputs:
    kv, sums = call.kv, call.cu_seqlens_q
    parts = (call.q, call.q_pe, kv.ckv, kv.kpe)
    strides = (stride for part in parts for stride in part.stride()[:2])
    return Inputs(
        tensors=(*parts, sums, kv.page_table, kv.kv_len),
        numbers=(*strides, kv.page_table.stride(0), kv.page_size),
        lengths=(sums, sums, kv.kv_len),
        constants={"D": LATENT_DIM, "D_PE": ROPE_DIM},
    )
