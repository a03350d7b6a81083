"""A prefill made ready: what every runner takes, and how it is cut."""

from dataclasses import dataclass

import torch

from labkernels.hardware import Gpu
from labkernels.kernels import prefill_plan
from labkernels.kernels.paged_kv import PagedKV
from labkernels.kernels.prefill_plan import Cut, Lengths
from labkernels.kernels.ragged_kv import RaggedKV
from labkernels.kernels.spec import Instance, KernelSpec
from labkernels.kernels.step import Plan


@dataclass(frozen=True, eq=False, kw_only=True)
class PrefillRequest:
    """A prefill that has been checked: tensors, their lengths, the variant to run, and the GPU.

    keys_per_split or splits, not both, may be given; batch_invariant says whether neither they nor
    the tile depend on the batch; why says how the kernel was chosen. On a CPU, `gpu` is the GPU
    whose plan and tensor-core arithmetic the CPU build follows, and `checks` turns its race and
    uninitialised-read checker on.
    """

    spec: KernelSpec
    why: str
    instance: Instance
    q: torch.Tensor
    kv: RaggedKV | PagedKV
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
    def group(self) -> int:
        """Query heads a KV head."""
        return self.q.shape[1] // self.kv.kv_heads

    @property
    def on_gpu(self) -> bool:
        """Whether the tensors live on a GPU."""
        return self.q.device.type == "cuda"


def cut(request: PrefillRequest, *, blocks_per_sm: int) -> Cut:
    """The blocks of a request, with so many on an SM.

    Raises: ValueError if keys_per_split makes more splits than partial States are made for.
    """
    return prefill_plan.cut(
        request.lengths,
        request.instance.tile,
        kv_heads=request.kv.kv_heads,
        group=request.group,
        slots=blocks_per_sm * request.gpu.sm_count,
        causal=request.causal,
        splits=request.splits,
        keys_per_split=request.keys_per_split,
    )


def make_plan(
    request: PrefillRequest,
    made: Cut,
    *,
    blocks_per_sm: int,
    smem_bytes: int,
    registers: int | None,
    cpu: str,
    launches: int = 1,
) -> Plan:
    """The plan of a request that has been cut; `cpu` names the machine that is not a GPU."""
    return Plan(
        kernel=request.spec.name,
        tile=request.instance.tile.label,
        policy=request.instance.policy.label,
        machine=request.gpu.name if request.on_gpu else cpu,
        splits=made.splits,
        keys_per_split=made.keys_per_split,
        blocks=len(made.work),
        blocks_per_sm=blocks_per_sm,
        waves=len(made.work) / (blocks_per_sm * request.gpu.sm_count),
        smem_bytes=smem_bytes,
        registers=registers,
        launches=launches,
        batch_invariant=request.batch_invariant,
        why=request.why,
    )


def work_list(request: PrefillRequest, made: Cut) -> torch.Tensor:
    """The blocks in launch order, where the kernel reads them: int32 [blocks, 4]."""
    return torch.from_numpy(made.work).to(request.q.device)


def partial_states(request: PrefillRequest, made: Cut) -> dict[str, torch.Tensor]:
    """Partial States of every split, uninitialised, and tickets at rest, as PrefillParams names."""
    if made.splits == 1:
        return {}
    total, q_heads, head_dim_v = request.out.shape
    shape, device = (total, q_heads, made.splits), request.q.device
    return {
        "partial_o": torch.empty((*shape, head_dim_v), dtype=torch.float32, device=device),
        "partial_m": torch.empty(shape, dtype=torch.float32, device=device),
        "partial_l": torch.empty(shape, dtype=torch.float32, device=device),
        "tickets": torch.zeros(made.tickets, dtype=torch.int32, device=device),
    }
