"""Imports a Triton kernel for this machine, and keeps what its launches need."""

import importlib
import os
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch

from labkernels.units import LOG2_E
from labkernels.variant import AttentionVariant


def load(kernel: str, *, on_gpu: bool) -> ModuleType:
    """Import the module of a kernel whose tensors are on a GPU, or on a CPU.

    Where the machine has a GPU, Triton stays a compiler, since one process cannot have both: a step
    on CPU tensors can then be planned, but not run.
    Raises: RuntimeError if Triton is missing, or was imported as a compiler on a machine without a
    GPU.
    """
    if on_gpu or torch.cuda.is_available():
        return _module(kernel)
    return interpreted(kernel)


def interpreted(kernel: str) -> ModuleType:
    """Import a kernel module under Triton's interpreter, for which Triton decides when imported.

    Raises: RuntimeError if Triton is missing, or was imported as a compiler.
    """
    if "triton" not in sys.modules:
        os.environ["TRITON_INTERPRET"] = "1"
    module = _module(kernel)
    if not sys.modules["triton"].knobs.runtime.interpret:
        raise RuntimeError(
            f"{kernel} on a CPU needs Triton's interpreter: start Python with TRITON_INTERPRET=1"
        )
    return module


def _module(kernel: str) -> ModuleType:
    try:
        importlib.import_module("triton")
    except ImportError as error:
        raise RuntimeError(f"{kernel} needs triton, which is not installed") from error
    return importlib.import_module(kernel)


def roundable(out: torch.Tensor) -> torch.Tensor:
    """Return an output, or a float32 copy where a store would round otherwise than to nearest even.

    The interpreter's store to bf16 does not round to nearest even; torch's conversion does.
    """
    narrow = not out.is_cuda and out.dtype == torch.bfloat16
    return out.to(torch.float32) if narrow else out


def constants(instance, *, on_gpu: bool) -> dict[str, Any]:
    """Return arguments that all launches of a compiled variant share: keys, engine, resources."""
    tile = instance.tile
    found = {
        "KEYS": tile.keys,
        "TENSOR_CORES": instance.policy.tensor_cores,
        "UPCAST": not on_gpu and instance.dtype == "bf16",
    }
    return found | ({"num_warps": tile.warps, "num_stages": tile.stages} if on_gpu else {})


def variant_arguments(
    variant: AttentionVariant, tensors: Mapping[str, torch.Tensor], scale: float
) -> dict[str, Any]:
    """Return a kernel's arguments of a variant, by name: None for what a variant does not have."""
    cap = variant.soft_cap
    return {
        "alibi": tensors.get("alibi"),
        "sinks": tensors.get("sinks"),
        "bias": tensors.get("bias"),
        "reach": variant.reach,
        "window_left": variant.window_left,
        "window_right": None if variant.causal else variant.window_right,
        "soft_cap_log2": None if cap is None else cap * LOG2_E,
        "exponent_of_cap": None if cap is None else -2 * LOG2_E * scale / cap,
    }


class Scratch:
    """The memory in which a kernel's blocks make tensor descriptors: allocated at the first launch.

    Later launches, and a CUDA graph's replays, find it again.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory = torch.empty(0, dtype=torch.int8, device=device)

    def __call__(self, n_bytes: int, alignment: int, stream: int | None) -> torch.Tensor:
        """Return what triton.set_allocator asks for."""
        del alignment, stream  # torch aligns to 512 bytes, and a step runs on one stream at a time
        if self._memory.numel() < n_bytes:
            self._memory = torch.empty(n_bytes, dtype=torch.int8, device=self._device)
        return self._memory
