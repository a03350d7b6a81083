"""What the Triton MLA decode is launched with."""

from labkernels.kernels import triton_packed
from labkernels.kernels.latent_kv import LATENT_DIM, ROPE_DIM
from labkernels.kernels.mla_step import MlaRequest
from labkernels.kernels.step import Step
from labkernels.kernels.triton_packed import Inputs


def prepare(request: MlaRequest) -> Step:
    """List the blocks, allocate the splits' partial States and fix the launches.

    Raises: RuntimeError if Triton is missing, or was imported without its interpreter on a CPU.
    """
    return triton_packed.prepare(request, _inputs)


def _inputs(request: MlaRequest) -> Inputs:
    kv, sums = request.kv, request.cu_seqlens_q
    parts = (request.q_nope, request.q_pe, kv.ckv, kv.kpe)
    strides = (stride for part in parts for stride in part.stride()[:2])
    return Inputs(
        tensors=(*parts, sums, kv.page_table, kv.kv_len),
        numbers=(*strides, kv.page_table.stride(0), kv.page_size),
        lengths=(sums, sums, kv.kv_len),
        constants={"D": LATENT_DIM, "D_PE": ROPE_DIM},
    )
