"""The paged cache of MLA: one latent row per key for all heads, and its checks."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from labkernels.kernels.caches.paged import Paged
from labkernels.kernels.checks import require_formats

LATENT_DIM, ROPE_DIM = 512, 64  # DeepSeek's sizes: channels of ckv, which are also V, and of kpe
CHANNELS_BEFORE = 128 + 64  # of a head's q and k before absorption; they set the softmax scale


@dataclass(frozen=True, eq=False)
class LatentKV(Paged):
    """The latent rows of many requests, in pages anywhere in two pools.

    Shapes: ckv [pages, page_size, 512], kpe [pages, page_size, 64], fp16 or bf16, last dimension
    contiguous; page_table [batch, max_pages] int32; kv_len [batch] int32.
    Raises: ValueError naming the argument, its value and what is allowed, as for PagedKV.
    """

    ckv: torch.Tensor
    kpe: torch.Tensor
    page_table: torch.Tensor
    kv_len: torch.Tensor
    default_scale: ClassVar[float] = 1 / math.sqrt(CHANNELS_BEFORE)

    def check_tensors(self) -> None:
        """Raise ValueError unless shapes, strides, types and devices serve kernels."""
        layout = "[pages, page_size, channels]"
        require_formats(self.ckv, self.kpe, layout, names=("ckv", "kpe"))
        for name, channels in (("ckv", LATENT_DIM), ("kpe", ROPE_DIM)):
            pool = getattr(self, name)
            if pool.shape[2] != channels:
                raise ValueError(f"{name}.shape[2] = {pool.shape[2]}, allowed: {channels}")
        self.check_table()

    @property
    def pools(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The pool of ckv, which is also V, and the pool of kpe, the positions."""
        return self.ckv, self.kpe

    @property
    def kv_heads(self) -> int:
        """One: all query heads read the same rows."""
        return 1

    @property
    def head_dim(self) -> int:
        """Channels of K: both parts."""
        return self.ckv.shape[2] + self.kpe.shape[2]

    @property
    def head_dim_v(self) -> int:
        """Channels of V."""
        return self.ckv.shape[2]

    @property
    def k(self) -> torch.Tensor:
        """A copy of the pools as attention's K: [pages, page_size, 1, 576]."""
        return torch.cat([self.ckv, self.kpe], dim=-1).unsqueeze(2)

    @property
    def v(self) -> torch.Tensor:
        """The pool that is attention's V: [pages, page_size, 1, 512]."""
        return self.ckv.unsqueeze(2)

    def of_request(self, request: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the copies of one request's keys and values, in order: [kv_len, 1, 576 or 512]."""
        places = self.places(request)
        ckv = self.ckv[places]
        return torch.cat([ckv, self.kpe[places]], dim=-1).unsqueeze(1), ckv.unsqueeze(1)
