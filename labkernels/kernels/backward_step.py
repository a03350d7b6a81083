"""A backward pass made ready: what every runner takes and gives, and how it is cut."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from labkernels.hardware import Gpu
from labkernels.kernels import backward_plan
from labkernels.kernels.backward_plan import BackwardCut
from labkernels.kernels.prefill_plan import Lengths
from labkernels.kernels.ragged_kv import RaggedKV
from labkernels.kernels.spec import Instance, KernelSpec
from labkernels.kernels.step import Plan


@dataclass(frozen=True, eq=False)
class BackwardRequest:
    """A backward pass that has been checked: tensors, lengths, the variant to run, and the GPU.

    why says how the kernel was chosen. On a CPU, `gpu` is the GPU whose plan and tensor-core
    arithmetic the CPU build follows, and `checks` turns its race and uninitialised-read checker on.
    """

    spec: KernelSpec
    why: str
    instance: Instance
    dout: torch.Tensor
    q: torch.Tensor
    kv: RaggedKV
    out: torch.Tensor
    lse2: torch.Tensor
    cu_seqlens_q: torch.Tensor
    lengths: Lengths
    causal: bool
    scale: float
    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor
    gpu: Gpu
    checks: bool

    @property
    def group(self) -> int:
        """Query heads a KV head."""
        return self.q.shape[1] // self.kv.kv_heads

    @property
    def ordered(self) -> bool:
        """Whether every sum has one order, so that the same call gives the same bits."""
        return self.instance.tile.dq == "ordered"

    @property
    def on_gpu(self) -> bool:
        """Whether the tensors live on a GPU."""
        return self.q.device.type == "cuda"


@dataclass(frozen=True, eq=False)
class BackwardStep:
    """A backward pass that runs again and again on the same tensors, with nothing left to plan.

    run() enqueues it on the current stream (or finishes it, on a CPU), checks nothing, allocates
    nothing, and can be captured in a CUDA graph. The lengths must stay as they were.
    """

    run: Callable[[], None]
    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor
    plan: Plan


def cut(request: BackwardRequest, *, last_keys_first: bool = False) -> BackwardCut:
    """The blocks of a request."""
    return backward_plan.cut(
        request.lengths,
        request.instance.tile,
        kv_heads=request.kv.kv_heads,
        group=request.group,
        head_dim=request.q.shape[2],
        causal=request.causal,
        l2_bytes=request.gpu.l2_bytes,
        last_keys_first=last_keys_first,
    )


def make_plan(
    request: BackwardRequest,
    *,
    blocks: int,
    blocks_per_sm: int,
    smem_bytes: int,
    registers: int | None,
    launches: int,
    cpu: str,
) -> Plan:
    """The plan of a request that has been cut; `cpu` names the machine that is not a GPU."""
    return Plan(
        kernel=request.spec.name,
        tile=request.instance.tile.label,
        policy=request.instance.policy.label,
        machine=request.gpu.name if request.on_gpu else cpu,
        splits=1,
        keys_per_split=int(request.lengths.kv.max(initial=0)),
        blocks=blocks,
        blocks_per_sm=blocks_per_sm,
        waves=blocks / (blocks_per_sm * request.gpu.sm_count),
        smem_bytes=smem_bytes,
        registers=registers,
        launches=launches,
        batch_invariant=request.ordered,
        why=request.why,
    )


def workspace(request: BackwardRequest, made: BackwardCut, adds: bool) -> dict[str, torch.Tensor]:
    """What the launches tell one another, uninitialised, as BackwardParams names it.

    adds: whether dq adds up there.
    """
    heads, head_dim, device = request.q.shape[1], request.q.shape[2], request.q.device
    shape = (heads, made.padded_rows)
    found = {
        name: torch.empty(shape, dtype=torch.float32, device=device)
        for name in ("row_lse2", "row_delta")
    }
    if adds:
        found["dq_accum"] = torch.empty((*shape, head_dim), dtype=torch.float32, device=device)
    return found
