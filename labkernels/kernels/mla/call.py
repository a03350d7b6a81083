"""An MLA decode that has been checked."""

from dataclasses import dataclass

import torch

from labkernels.kernels.caches.latent import LatentKV
from labkernels.kernels.packed_gqa.call import PackedCall


@dataclass(frozen=True, eq=False, kw_only=True)
class MlaCall(PackedCall):
    """An MLA decode that has been checked: q holds the channels that meet ckv.

    q_pe: the channels that carry positions.
    """

    q_pe: torch.Tensor | None = None
    kv: LatentKV | None = None

    def queries(self, tokens: slice) -> torch.Tensor:
        """Return the queries of some tokens, both parts side by side."""
        return torch.cat([self.q[tokens], self.q_pe[tokens]], dim=-1)
