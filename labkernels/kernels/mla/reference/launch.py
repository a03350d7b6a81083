"""The MLA decode in plain torch, over latent rows."""

import torch

from labkernels.kernels.call import Attention, Step
from labkernels.kernels.mla.call import MlaCall
from labkernels.kernels.packed_gqa import reference


def prepare(call: MlaCall) -> Step[Attention]:
    """Prepare the torch operations of an MLA decode. Requested splits are ignored."""

    def queries(tokens: slice) -> torch.Tensor:
        return torch.cat([call.q[tokens], call.q_pe[tokens]], dim=-1)

    return reference.prepare(call, queries)
