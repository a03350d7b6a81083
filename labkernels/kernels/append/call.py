"""An append that has been checked."""

from dataclasses import dataclass

import torch

from labkernels.kernels.caches.paged import PagedHeads
from labkernels.kernels.call import Call


@dataclass(frozen=True, eq=False, kw_only=True)
class AppendCall(Call):
    """An append that has been checked: the cache, the new rows, and the request of each row."""

    cache: PagedHeads | None = None
    k_new: torch.Tensor | None = None
    v_new: torch.Tensor | None = None
    cu_seqlens_new: torch.Tensor | None = None
