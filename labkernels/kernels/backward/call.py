"""A backward pass that has been checked, and its schedule and plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from labkernels.kernels.backward import schedule
from labkernels.kernels.backward.schedule import BackwardSchedule
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.kernels.call import Call, Gradients, Plan, SinkGradients, plan_of
from labkernels.kernels.packed_gqa.schedule import Lengths
from labkernels.variant import AttentionVariant


@dataclass(frozen=True, eq=False, kw_only=True)
class BackwardCall(Call):
    """A backward pass that has been checked: tensors, and the lengths as numbers.

    group: query heads per KV head. ordered: every sum has one order, so that the same call gives
    the same bits. A call that is kept for later has blank gradients; dsinks is None without sinks.
    """

    lengths: Lengths
    variant: AttentionVariant
    group: int
    kv_heads: int
    ordered: bool
    scale: float
    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor
    dsinks: torch.Tensor | None = None
    dout: torch.Tensor | None = None
    q: torch.Tensor | None = None
    kv: RaggedKV | None = None
    out: torch.Tensor | None = None
    lse2: torch.Tensor | None = None
    cu_seqlens_q: torch.Tensor | None = None
    variant_tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def outputs(self) -> Gradients | SinkGradients:
        """Return the tensors that a run writes."""
        if self.dsinks is None:
            return Gradients(self.dq, self.dk, self.dv)
        return SinkGradients(self.dq, self.dk, self.dv, self.dsinks)


def schedule_of(call: BackwardCall, **how: bool) -> BackwardSchedule:
    """Return the blocks of a call; see `schedule.schedule` for how."""
    return schedule.schedule(
        call.lengths,
        call.choice.instance.tile,
        kv_heads=call.kv_heads,
        group=call.group,
        head_dims=(call.q.shape[2], call.kv.head_dim_v),
        variant=call.variant,
        l2_bytes=call.gpu.l2_bytes,
        **how,
    )


def plan_backward(call: BackwardCall, *, blocks: int, launches: int) -> Plan:
    """Return the plan of a call, for its main launch and that launch's number of blocks."""
    return plan_of(
        call,
        blocks=blocks,
        keys_per_split=int(call.lengths.kv.max(initial=0)),
        batch_invariant=call.ordered,
        launches=launches,
    )
