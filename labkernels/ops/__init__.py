"""The public verbs. Tensors on a GPU run the GPU kernel, tensors on a CPU its CPU build."""

from labkernels.ops._append import append, append_step
from labkernels.ops._arguments import DEFAULT_TARGET, MAX_BATCH, Result
from labkernels.ops._backward import Gradients, backward, backward_step
from labkernels.ops._decode import decode, decode_step
from labkernels.ops._mla import mla_decode, mla_decode_step
from labkernels.ops._prefill import prefill, prefill_step, varlen_qkvpacked
from labkernels.ops._torch import attention
from labkernels.ops._with_kvcache import with_kvcache

__all__ = [
    "DEFAULT_TARGET",
    "MAX_BATCH",
    "Gradients",
    "Result",
    "append",
    "append_step",
    "attention",
    "backward",
    "backward_step",
    "decode",
    "decode_step",
    "mla_decode",
    "mla_decode_step",
    "prefill",
    "prefill_step",
    "varlen_qkvpacked",
    "with_kvcache",
]
