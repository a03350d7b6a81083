"""Launches the Triton backward pass; on a CPU it runs under Triton's interpreter."""

from types import ModuleType

import torch

from labkernels.cuda import triton_run
from labkernels.kernels.backward.call import BackwardCall, plan_backward, schedule_of
from labkernels.kernels.backward.schedule import BackwardSchedule
from labkernels.kernels.call import Gradients, Step
from labkernels.kernels.kernel import up_to_power_of_two
from labkernels.units import LOG2_E

DELTA_ROWS = 32  # tokens per program


def prepare(call: BackwardCall) -> Step[Gradients]:
    """List the blocks, allocate delta and fix the launches.

    Raises: RuntimeError as triton_run.load does.
    """
    kernel = triton_run.load(f"{__package__}.kernel", on_gpu=call.on_gpu)
    made = schedule_of(call)
    run = _Run(kernel, call, made)
    plan = plan_backward(call, blocks=len(made.keys), launches=run.launches)
    return Step(run, call.outputs, plan)


class _Run:
    """Launches delta, then dK and dV, then dq, on the current stream."""

    def __init__(self, kernel: ModuleType, call: BackwardCall, made: BackwardSchedule) -> None:
        self._kernel, self._call = kernel, call
        self._delta = torch.empty(call.q.shape[:2], dtype=torch.float32, device=call.q.device)
        names = ("dq", "dk", "dv")
        self._found = {name: triton_run.roundable(getattr(call, name)) for name in names}
        self._keys, self._rows = (made.on(call.device, work) for work in (made.keys, made.rows))
        instance = call.choice.instance
        self._of_v = {"D_V": instance.head_dim_v, "WIDTH_V": up_to_power_of_two(instance.width_v)}
        own = {"D": instance.head_dim, "WIDTH": up_to_power_of_two(instance.width), **self._of_v}
        own["ROWS"] = instance.tile.q_rows
        own["CAUSAL"] = call.variant.causal
        self._constants = own | triton_run.constants(instance, on_gpu=call.on_gpu)

    @property
    def launches(self) -> int:
        """How many of the three launches have blocks."""
        return (len(self._delta) > 0) + (len(self._keys) > 0) + (len(self._rows) > 0)

    def __call__(self) -> None:
        r, constants = self._call, self._constants
        options = {n: constants[n] for n in ("num_warps", "num_stages") if n in constants}
        total, heads, _ = r.q.shape
        if total:
            strides = (*r.out.stride()[:2], *r.dout.stride()[:2])
            self._kernel.delta[(-(-total // DELTA_ROWS), heads)](
                *(r.out, r.dout, self._delta, *strides, total, heads),
                ROWS=DELTA_ROWS,
                **self._of_v,
                **options,
            )
        lengths = (r.cu_seqlens_q, r.kv.cu_seqlens)
        given = (r.q, r.kv.k, r.kv.v, r.dout, r.lse2, self._delta, *lengths)
        parts = (r.q, r.kv.k, r.kv.v, r.dout)
        rest = (
            *(stride for part in parts for stride in part.stride()[:2]),
            *(heads, r.group, r.scale, r.scale * LOG2_E),
        )
        found = self._found
        if len(self._keys):
            outputs = (self._keys, found["dk"], found["dv"])
            self._kernel.keys[(len(self._keys),)](*given, *outputs, *rest, **constants)
        if len(self._rows):
            outputs = (self._rows, found["dq"])
            self._kernel.rows[(len(self._rows),)](*given, *outputs, *rest, **constants)
        for name, tensor in found.items():
            if tensor is not getattr(r, name):
                getattr(r, name).copy_(tensor)
