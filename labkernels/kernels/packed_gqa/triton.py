"""Launches a Triton kernel with packed rows and the merge of its splits; on a CPU, interpreted."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from labkernels.cuda import triton_run
from labkernels.kernels.call import Attention, Step, nothing, partial_states
from labkernels.kernels.packed_gqa.call import PackedCall, begins_of, plan_packed, schedule_of
from labkernels.kernels.packed_gqa.schedule import Schedule
from labkernels.units import LOG2_E


@dataclass(frozen=True, eq=False)
class Inputs:
    """A kernel's own arguments: tensors before the work list, numbers after the outputs.

    lengths: cu_seqlens_q, cu_seqlens_k and kv_len; the ones that a layout does not use get any
    pointer.
    """

    tensors: tuple[torch.Tensor, ...]
    numbers: tuple[int, ...]
    lengths: tuple[torch.Tensor, ...]
    constants: Mapping[str, Any]


def prepare(call: PackedCall, inputs: Inputs) -> Step[Attention]:
    """List the blocks, allocate the splits' partial states and fix the launches.

    Raises: RuntimeError as triton_run.load does.
    """
    source = f"{call.choice.kernel.package}.kernel"
    kernel = triton_run.load(source, on_gpu=call.on_gpu)
    made = schedule_of(call)
    launches = 0 if len(made.work) == 0 else 1 if made.splits == 1 else 2
    plan = plan_packed(call, made, launches=launches)
    run = _Run(kernel, call, made, inputs) if launches else nothing
    return Step(run, call.outputs, plan)


class _Run:
    """Launches the kernel with the name of its operation, and the merge, on the current stream."""

    def __init__(self, kernel: ModuleType, call: PackedCall, made: Schedule, own: Inputs) -> None:
        instance = call.choice.instance
        self._kernel, self._call = getattr(kernel, call.choice.kernel.operation), call
        self._grid = (len(made.work),)
        self._out = triton_run.roundable(call.out)
        partials = partial_states(call, made.splits)
        written = (made.on(call.device), self._out, call.lse2, *partials)
        cut_in = (call.q.shape[1], call.group, made.keys_per_split, made.splits)
        self._arguments = (*own.tensors, *written, *own.numbers, *cut_in, call.scale * LOG2_E)
        self._merge_arguments = (*own.lengths, *written, *cut_in)
        shared = {"ROWS": instance.tile.q_rows, "CAUSAL": call.variant.causal}
        varied = triton_run.variant_arguments(call.variant, call.variant_tensors, call.scale)
        self._split = made.splits > 1
        usual = triton_run.constants(instance, on_gpu=call.on_gpu)
        self._constants = shared | usual | {"SPLIT": self._split} | dict(own.constants)
        if call.choice.kernel.features:
            self._constants |= varied | {"mask": call.variant_tensors.get("mask")}
            self._constants["mask_begins"] = begins_of(call).get("mask_begins")
        self._merge = shared | {"D_V": instance.head_dim_v, "WIDTH": instance.width_v}
        self._merge["PAGED"] = instance.layout == "paged"
        self._merge |= {name: varied[name] for name in ("sinks", "window_left", "window_right")}
        self._merge["STEP"] = instance.tile.keys
        self._scratch = triton_run.Scratch(call.device)

    def __call__(self) -> None:
        import triton

        triton.set_allocator(self._scratch)
        self._kernel[self._grid](*self._arguments, **self._constants)
        if self._split:
            from labkernels.kernels.packed_gqa.triton_rows import merge_splits

            merge_splits[self._grid](*self._merge_arguments, **self._merge)
        if self._out is not self._call.out:
            self._call.out.copy_(self._out)
