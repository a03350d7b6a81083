"""The public verbs. Tensors on a GPU run the GPU kernel, tensors on a CPU its CPU build."""

from labkernels.kernels.append.api import append, append_step
from labkernels.kernels.backward.api import backward, backward_step
from labkernels.kernels.caches.mask import pack_mask
from labkernels.kernels.call import Attention, Gradients, Plan, Step
from labkernels.kernels.checks import DEFAULT_TARGET, MAX_BATCH
from labkernels.kernels.decode.api import decode, decode_step
from labkernels.kernels.merge_states.api import merge_states, merge_states_step
from labkernels.kernels.mla.api import mla_decode, mla_decode_step
from labkernels.kernels.prefill.api import prefill, prefill_step, varlen_qkvpacked
from labkernels.kernels.prefill.fp8 import RaggedCodes, prefill_fp8, prefill_fp8_step
from labkernels.ops import torch_ops
from labkernels.ops.attention import attention
from labkernels.ops.cascade import cascade_decode, cascade_decode_step
from labkernels.ops.with_kvcache import with_kvcache

__all__ = [
    "DEFAULT_TARGET",
    "MAX_BATCH",
    "Attention",
    "Gradients",
    "Plan",
    "RaggedCodes",
    "Step",
    "append",
    "append_step",
    "attention",
    "backward",
    "backward_step",
    "cascade_decode",
    "cascade_decode_step",
    "decode",
    "decode_step",
    "merge_states",
    "merge_states_step",
    "mla_decode",
    "mla_decode_step",
    "pack_mask",
    "prefill",
    "prefill_fp8",
    "prefill_fp8_step",
    "prefill_step",
    "torch_ops",
    "varlen_qkvpacked",
    "with_kvcache",
]
