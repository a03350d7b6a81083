"""A trial of this machine: one kernel of a few lines is compiled and run."""

from __future__ import annotations

import ctypes
import secrets

import numpy as np

from labkernels.cuda.compiler import nvrtc
from labkernels.cuda.host import build

HEADER, INSTANCE, PARAMS = "lab/probes.cuh", "lab::probe_ex2", "lab::Ex2Params"
THREADS = 256  # lab::probe_threads
_FAILURES = (RuntimeError, ValueError, OSError)


class Ex2Params(ctypes.Structure):
    """lab::Ex2Params."""

    _fields_ = (("x", ctypes.c_void_p), ("y", ctypes.c_void_p))


def why_not_on_cpu() -> str | None:
    """Compile the kernel for this machine's CPU and run it; return what is wrong in one line."""
    x, y = _inputs(), np.zeros(THREADS, np.float32)
    ranges = [
        build.GlobalRange("x", x.ctypes.data, x.nbytes, writable=False),
        build.GlobalRange("y", y.ctypes.data, y.nbytes, writable=True),
    ]
    try:
        kernel = build.build(HEADER, instance=INSTANCE, params=PARAMS, defines=_once())
        kernel.library.unlink(missing_ok=True)  # it is loaded already and will not be needed again
        params = Ex2Params(x.ctypes.data, y.ctypes.data)
        shape = {"grid": (1, 1, 1), "threads": THREADS, "smem_bytes": 0}
        kernel.launch(**shape, params=params, ranges=ranges, host_threads=1)
    except _FAILURES as error:
        return _one_line(error)
    return _why_wrong(x, y)


def why_not_compiled(arch: str) -> str | None:
    """Compile the kernel for an architecture; return what is wrong in one line."""
    try:
        nvrtc.compile_kernel(HEADER, instance=INSTANCE, defines=_once(), arch=arch)
    except _FAILURES as error:
        return _one_line(error)
    return None


def why_not_on_gpu(arch: str) -> str | None:
    """Compile the kernel for the first GPU and run it there; return what is wrong in one line."""
    import torch

    from labkernels.cuda.gpu.kernel import load

    try:
        compiled = nvrtc.compile_kernel(HEADER, instance=INSTANCE, defines=_once(), arch=arch)
        x = torch.from_numpy(_inputs()).to("cuda:0")
        y = torch.zeros_like(x)
        stream = torch.cuda.current_stream(0).cuda_stream
        params = Ex2Params(x.data_ptr(), y.data_ptr())
        load(compiled, device=0).launch(
            grid=(1, 1, 1), threads=THREADS, smem_bytes=0, params=params, stream=stream
        )
        return _why_wrong(_inputs(), y.cpu().numpy())
    except _FAILURES as error:
        return _one_line(error)


def _once() -> dict[str, str]:
    """Return a new definition for each compile, so that no cache has an entry for it."""
    return {"LAB_TRIAL": f"0x{secrets.token_hex(8)}"}


def _inputs() -> np.ndarray:
    return np.linspace(-8, 8, THREADS, endpoint=False, dtype=np.float32)


def _why_wrong(x: np.ndarray, y: np.ndarray) -> str | None:
    """Return what is wrong if 2^x is off by more than two units in the last place, or None."""
    exact = np.exp2(x.astype(np.float64))
    worst = float(np.max(np.abs(y / exact - 1)))
    if worst <= 2.0**-22:  # NaN is not
        return None
    return f"a kernel gives wrong results: 2^x is off by {worst:.1e}"


def _one_line(error: Exception) -> str:
    """Return the first line that says what is wrong; a compiler's words begin with its command."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    saying = [line for line in lines if "error" in line.lower()]
    return (saying or lines or [type(error).__name__])[0][:300]
