"""An MLA decode made ready: what every runner takes. It is cut as a prefill of one KV head."""

from dataclasses import dataclass

import torch

from labkernels.hardware import Gpu
from labkernels.kernels.latent_kv import LatentKV
from labkernels.kernels.prefill_plan import Lengths
from labkernels.kernels.prefill_step import cut, make_plan, partial_states, work_list
from labkernels.kernels.spec import Instance, KernelSpec

__all__ = ["MlaRequest", "cut", "make_plan", "partial_states", "work_list"]


@dataclass(frozen=True, eq=False)
class MlaRequest:
    """An MLA decode that has been checked: tensors, lengths, the variant to run, and the GPU.

    keys_per_split or splits, not both, may be given; batch_invariant says whether neither they nor
    the tile depend on the batch; why says how the kernel was chosen. On a CPU, `gpu` is the GPU
    whose plan and tensor-core arithmetic the CPU build follows, and `checks` turns its race and
    uninitialised-read checker on.
    """

    spec: KernelSpec
    why: str
    instance: Instance
    q_nope: torch.Tensor
    q_pe: torch.Tensor
    kv: LatentKV
    cu_seqlens_q: torch.Tensor
    lengths: Lengths
    causal: bool
    scale: float
    splits: int | None
    keys_per_split: int | None
    batch_invariant: bool
    out: torch.Tensor
    lse2: torch.Tensor
    gpu: Gpu
    checks: bool

    @property
    def q(self) -> torch.Tensor:
        """The part of the query that goes with V's channels."""
        return self.q_nope

    @property
    def group(self) -> int:
        """Query heads that share a latent row: all of them."""
        return self.q_nope.shape[1]

    @property
    def on_gpu(self) -> bool:
        """Whether the tensors live on a GPU."""
        return self.q_nope.device.type == "cuda"
