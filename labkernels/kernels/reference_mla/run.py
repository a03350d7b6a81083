"""The MLA decode in plain torch, over latent rows."""

import torch

from labkernels.kernels import torch_attention
from labkernels.kernels.mla_step import MlaRequest
from labkernels.kernels.step import Step


def prepare(request: MlaRequest) -> Step:
    """Fix the torch operations of an MLA decode. Splits that are asked for are not made."""

    def queries(tokens: slice) -> torch.Tensor:
        return torch.cat([request.q_nope[tokens], request.q_pe[tokens]], dim=-1)

    return torch_attention.prepare(request, queries)
