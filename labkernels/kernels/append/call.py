"""An append that has been checked."""

from dataclasses import dataclass

import torch

from labkernels.kernels.caches.paged import PagedHeads
from labkernels.kernels.call import Call


@dataclass(frozen=True, eq=False)
class Rotary:
    """Cosines and sines by position, and the queries that are rotated like the new keys.

    in_order: whether the queries of a request have the positions of its new keys, or all of them
    that of the first. Shapes: cos, sin [positions, dim / 2]; q, rotated [total_new, q_heads, D].
    """

    cos: torch.Tensor
    sin: torch.Tensor
    interleaved: bool = False
    q: torch.Tensor | None = None
    rotated: torch.Tensor | None = None
    in_order: bool = True

    @property
    def read(self) -> dict[str, torch.Tensor]:
        """The tensors that the kernel reads, by their names."""
        return {"cos": self.cos, "sin": self.sin} | ({} if self.q is None else {"q": self.q})


@dataclass(frozen=True, eq=False, kw_only=True)
class AppendCall(Call):
    """The cache, the new rows, the request of each row, and what rotates the keys, if anything."""

    cache: PagedHeads | None = None
    k_new: torch.Tensor | None = None
    v_new: torch.Tensor | None = None
    cu_seqlens_new: torch.Tensor | None = None
    rotary: Rotary | None = None
