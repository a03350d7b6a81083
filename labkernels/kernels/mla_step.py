"""An MLA decode made ready: what every runner takes. It is cut as a prefill of one KV head."""

from dataclasses import dataclass

import torch

from labkernels.kernels.latent_kv import LatentKV
from labkernels.kernels.prefill_step import (
    PrefillRequest,
    cut,
    make_plan,
    partial_states,
    work_list,
)

__all__ = ["MlaRequest", "cut", "make_plan", "partial_states", "work_list"]


@dataclass(frozen=True, eq=False, kw_only=True)
class MlaRequest(PrefillRequest):
    """An MLA decode that has been checked: a prefill whose queries have a second part."""

    q_pe: torch.Tensor
    kv: LatentKV

    @property
    def q_nope(self) -> torch.Tensor:
        """The part of the query that goes with V's channels."""
        return self.q
