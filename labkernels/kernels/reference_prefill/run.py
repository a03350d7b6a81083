"""The prefill in plain torch."""

from labkernels.kernels import torch_attention
from labkernels.kernels.prefill_step import PrefillRequest
from labkernels.kernels.step import Step


def prepare(request: PrefillRequest) -> Step:
    """Fix the torch operations of a prefill. Splits that are asked for are not made."""
    return torch_attention.prepare(request, lambda tokens: request.q[tokens])
