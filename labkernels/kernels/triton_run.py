"""Imports a Triton kernel for the machine at hand, and keeps what its launches need."""

import importlib
import os
import sys
from types import ModuleType

import torch


def load(name: str, *, interpret: bool) -> ModuleType:
    """The kernel module of a folder. Triton decides when it is imported whether it interprets.

    Raises: RuntimeError if Triton is missing, or was imported without its interpreter on a CPU.
    """
    if interpret and "triton" not in sys.modules:
        os.environ["TRITON_INTERPRET"] = "1"
    try:
        import triton
    except ImportError as error:
        raise RuntimeError(f"{name} needs triton, which is not installed") from error
    if interpret and not triton.knobs.runtime.interpret:
        raise RuntimeError(
            f"{name} on a CPU needs Triton's interpreter: start Python with TRITON_INTERPRET=1"
        )
    return importlib.import_module(f"labkernels.kernels.{name}.kernel")


class Scratch:
    """The memory in which a kernel's blocks make tensor descriptors: allocated at the first launch.

    Later launches, and a CUDA graph's replays, find it again.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory = torch.empty(0, dtype=torch.int8, device=device)

    def __call__(self, n_bytes: int, alignment: int, stream: int | None) -> torch.Tensor:
        """What triton.set_allocator asks for."""
        del alignment, stream  # torch aligns to 512 bytes, and a step runs on one stream at a time
        if self._memory.numel() < n_bytes:
            self._memory = torch.empty(n_bytes, dtype=torch.int8, device=self._device)
        return self._memory
