"""What CUDA calls of the same facts share: made once, run on any tensors."""

import ctypes
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch

from labkernels.cuda.launch import Launch
from labkernels.cuda.workspace import Workspace
from labkernels.kernels.caches.paged import QuantizedKV
from labkernels.kernels.call import ALL_KEYS, Call, Plan, Step, nothing
from labkernels.units import LOG2_E
from labkernels.variant import AttentionVariant

PARTIALS = ("partial_o", "partial_m", "partial_l", "split_semaphores")
FP32_BYTES = 4
Params = TypeVar("Params", bound=ctypes.Structure)
NO_WORKSPACE = Workspace(torch.device("cpu"), {}, {})


@dataclass(frozen=True, eq=False)
class Program:
    """The plan of a call, its launches one after the other, and the memory that they share."""

    plan: Plan
    launches: tuple[Launch, ...] = ()
    workspace: Workspace = NO_WORKSPACE

    def step(self, tensors: Mapping[str, torch.Tensor], outputs: Callable) -> Step:
        """Return the step that runs on these tensors, by their names in the kernels' parameters."""
        space = self.workspace.take()
        runs = [launch.on(tensors, space) for launch in self.launches]
        run = runs[0] if len(runs) == 1 else _in_turn(runs)
        return Step(run, outputs, self.plan, clear=space.clear)


def _in_turn(runs: list[Callable[[], None]]) -> Callable[[], None]:
    def run() -> None:
        for each in runs:
            each()

    return run if runs else nothing


def launch_of(call: Call, *, params: ctypes.Structure, blocks: tuple[int, ...], **how) -> Launch:
    """Return one launch of a call, by default of its first specialization.

    blocks: numbers along x, y and z; how: other fields of Launch.
    """
    how.setdefault("specialization", call.choice.specializations[0])
    grid = (*blocks, 1, 1)[:3]
    where = {"gpu": call.gpu, "device": call.device, "checks": call.checks}
    return Launch(**how, **where, grid=grid, params=params)


def merge_workspace(
    call: Call, *, states: tuple[int, int, int], splits: int, semaphores: int, **counters: int
) -> Workspace:
    """Return the workspace of a call: partial states, if it is split, and further counters.

    states: rows, query heads and channels of the output.
    """
    if splits == 1:
        return Workspace(call.device, {}, counters)
    rows, heads, channels = states
    scalars = FP32_BYTES * rows * heads * splits
    arrays = dict(zip(PARTIALS, (channels * scalars, scalars, scalars), strict=False))
    return Workspace(call.device, arrays, {PARTIALS[3]: semaphores, **counters})


class VariantParams(ctypes.Structure):
    """Mirrors lab::VariantParams."""

    _fields_ = (
        ("alibi", ctypes.c_void_p),
        ("sinks", ctypes.c_void_p),
        ("window_left", ctypes.c_int),
        ("window_right", ctypes.c_int),
        ("soft_cap_log2", ctypes.c_float),
        ("exponent_of_cap", ctypes.c_float),
        ("mask", ctypes.c_void_p),
        ("mask_begins", ctypes.c_void_p),
        ("mask_words", ctypes.c_longlong),
        ("bias", ctypes.c_void_p),
        ("reach", ctypes.c_int),
    )


@functools.cache
def _extended(plain: type[Params], name: str, kind: type) -> type[Params]:
    return type(f"With_{name}", (plain,), {"_fields_": ((name, kind),)})


def with_field(params: Params, name: str, value: ctypes.Structure) -> Params:
    """Return a kernel's parameter with one more field, as a struct derived from it has in C++."""
    made = _extended(type(params), name, type(value))()
    ctypes.memmove(ctypes.byref(made), ctypes.byref(params), ctypes.sizeof(params))
    setattr(made, name, value)
    return made


def with_variant(
    params: Params, variant: AttentionVariant, *, scale: float, mask_words: int = 0
) -> Params:
    """Return a kernel's parameter with the numbers of a variant; unchanged for plain attention."""
    if not variant.features:
        return params
    right = 0 if variant.causal else variant.window_right
    ends = [ALL_KEYS if end is None else end for end in (variant.window_left, right)]
    cap = variant.soft_cap
    numbers = (0.0, 0.0) if cap is None else (cap * LOG2_E, -2 * LOG2_E * scale / cap)
    own = VariantParams(
        None, None, *ends, *numbers, None, None, mask_words, None, variant.reach or 0
    )
    return with_field(params, "variant", own)


class CacheScales(ctypes.Structure):
    """Mirrors lab::CacheScales."""

    _fields_ = (
        ("k_scale", ctypes.c_void_p),
        ("v_scale", ctypes.c_void_p),
        ("k_scale_stride", ctypes.c_longlong),
        ("v_scale_stride", ctypes.c_longlong),
    )


class BlockScales(ctypes.Structure):
    """Mirrors lab::BlockScales."""

    _fields_ = (
        ("k_scale", ctypes.c_void_p),
        ("v_scale", ctypes.c_void_p),
        ("stride_page", ctypes.c_longlong),
        ("stride_block", ctypes.c_longlong),
        ("stride_head", ctypes.c_longlong),
        ("keys", ctypes.c_int),
    )


def with_scales(params: ctypes.Structure, cache: QuantizedKV) -> ctypes.Structure:
    """Return a kernel's parameter with the strides of a cache's scales."""
    k, v = cache.scales()
    if cache.of_blocks:
        of = BlockScales(None, None, *k.stride(), cache.keys_per_scale)
        return with_field(params, "block_scales", of)
    return with_field(params, "scales", CacheScales(None, None, *k.stride(), *v.stride()))
