"""Compiles a small CUDA kernel for the CPU, with every check, and runs it on NumPy arrays."""

import ctypes
import functools
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from labkernels.cuda.host import build as host

FOLDER = Path(__file__).parent
_SCALARS = {int: ctypes.c_int, float: ctypes.c_float}


def run(
    header: str,
    kernel: str,
    arguments: Mapping[str, np.ndarray | int | float],
    *,
    grid: tuple[int, ...],
    threads: int,
    smem_bytes: int = 0,
    writes: Iterable[str] = (),
    folders: tuple[Path, ...] = (FOLDER,),
) -> None:
    """Run a kernel on the CPU machine; the arrays that `writes` names hold what it wrote.

    `arguments` are the fields of the kernel's `Params`, in their order. `kernel` is named with its
    namespace, in which `Params` stands too.
    Raises: HostKernelError naming block, thread and line of a race, a read of unwritten memory, an
    access out of bounds or a barrier that some threads miss; ValueError for arrays with gaps.
    """
    fields, values = [], []
    for name, value in arguments.items():
        if isinstance(value, np.ndarray):
            if not value.flags.c_contiguous:
                raise ValueError(f"{name} has gaps, allowed: a contiguous array")
            fields.append((name, ctypes.c_void_p))
            values.append(value.ctypes.data)
        else:
            fields.append((name, _SCALARS[type(value)]))
            values.append(value)
    params = type("Params", (ctypes.Structure,), {"_fields_": fields})(*values)
    written = set(writes)
    ranges = [
        host.GlobalRange(name, value.ctypes.data, value.nbytes, name in written)
        for name, value in arguments.items()
        if isinstance(value, np.ndarray)
    ]
    _built(header, kernel, folders).launch(
        grid=(*grid, 1, 1)[:3],
        threads=threads,
        smem_bytes=smem_bytes,
        params=params,
        ranges=ranges,
        host_threads=1,
    )


def aligned(values: np.ndarray) -> np.ndarray:
    """A copy that begins at a multiple of 16 bytes, as vectors of four words need it."""
    room = np.zeros(values.nbytes + 16, np.uint8)
    start = -room.ctypes.data % 16
    copy = room[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy


@functools.cache
def _built(header: str, kernel: str, folders: tuple[Path, ...]) -> host.HostKernel:
    namespace = kernel.partition("::")[0]
    return host.build(
        header,
        instance=kernel,
        params=f"{namespace}::Params",
        checks=True,
        include_dirs=folders,
    )
