"""A merge that has been checked."""

from dataclasses import dataclass

import torch

from labkernels.kernels.call import Call


@dataclass(frozen=True, eq=False, kw_only=True)
class MergeCall(Call):
    """A merge that has been checked.

    Shapes: outs [states, rows, q_heads, channels]; lse2s [states, rows, q_heads]; out, lse2 without
    the states.
    """

    outs: torch.Tensor | None = None
    lse2s: torch.Tensor | None = None
    out: torch.Tensor
    lse2: torch.Tensor
