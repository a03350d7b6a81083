"""An append that has been checked."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from labkernels.kernels.caches.paged import PagedHeads
from labkernels.kernels.call import Call


@dataclass(frozen=True, eq=False, kw_only=True)
class AppendCall(Call):
    """An append that has been checked: the cache, what is read, and the request of each row.

    read: k_new and v_new, and of an append that rotates also cos, sin and maybe q, by name. rotated
    is then where q goes; in_order: as q_in_order of `append_step`.
    """

    cache: PagedHeads | None = None
    read: Mapping[str, torch.Tensor] | None = None
    cu_seqlens_new: torch.Tensor | None = None
    rotated: torch.Tensor | None = None
    in_order: bool = True
