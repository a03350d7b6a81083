"""Compiles a small CUDA kernel for the CPU, with every check, and runs it on NumPy arrays.

`on_gpu` runs it on this machine's GPU instead.
"""

import contextlib
import ctypes
import functools
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from labkernels.budget import Ledger, Line
from labkernels.cuda.compiler.specialization import Specialization
from labkernels.cuda.host import build as host

# On a GPU printf is a word of the compiler.
DECLARES_PRINTF = '#ifndef __CUDACC_RTC__\nextern "C" int printf(const char*, ...);\n#endif\n'
PRINTS = True  # a kernel's printf reaches `printed`
FOLDER = Path(__file__).parent
_SCALARS = {int: ctypes.c_int, float: ctypes.c_float}
_ON_GPU: ContextVar[bool] = ContextVar("_ON_GPU", default=False)
_WATCHED: ContextVar[list[dict] | None] = ContextVar("_WATCHED", default=None)


@dataclass(frozen=True)
class SmallKernel:
    """A kernel of a primer: its source, its block, and what a thread and a block of it hold."""

    header: str
    instance: str
    threads: int
    registers: Ledger
    smem: Ledger

    @classmethod
    def of(
        cls, header: str, instance: str, threads: int, registers: tuple[Line, ...], *smem: Line
    ) -> "SmallKernel":
        """Return a kernel by the lines of its ledgers."""
        thread = Ledger("Registers per thread", "registers", registers)
        block = Ledger("Shared memory of a block", "bytes", smem)
        return cls(header, instance, threads, thread, block)

    @property
    def name(self) -> str:
        """The name without its namespace."""
        return self.instance.rpartition("::")[2]

    def made(self, folders: tuple[Path, ...]) -> Specialization:
        """Return the kernel as a compiler gets it, with the sources of these folders."""
        params = f"{self.instance.partition('::')[0]}::Params"
        block = (self.threads, self.smem.total)
        return Specialization(self.header, self.instance, params, *block, include_dirs=folders)

    def run(
        self,
        arguments: Mapping[str, np.ndarray | int | float],
        *,
        grid: tuple[int, ...],
        writes: Iterable[str],
        folders: tuple[Path, ...] = (FOLDER,),
        before: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Run the kernel on the CPU machine; see `run` of this module."""
        block = {"threads": self.threads, "smem_bytes": self.smem.total}
        how = {"grid": grid, "writes": writes, "folders": folders, "before": before}
        run(self.header, self.instance, arguments, **block, **how)


def has_gpu(arch: str = "") -> bool:
    """Return whether this machine has a GPU for the small kernels, or one of this architecture."""
    try:
        ctypes.CDLL("libcuda.so.1")  # to import torch takes seconds
    except OSError:
        return False
    import torch

    if not torch.cuda.is_available():
        return False
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}" == arch if arch else major >= 8


def uses_gpu() -> bool:
    """Return whether this is a context of `on_gpu`."""
    return _ON_GPU.get()


@contextlib.contextmanager
def on_gpu() -> Iterator[None]:
    """Let answers run on the GPU in this context, without checks."""
    before = _ON_GPU.set(True)
    try:
        yield
    finally:
        _ON_GPU.reset(before)


@contextlib.contextmanager
def printed() -> Iterator[list[str]]:
    """Give a list, which at the end of this context has the lines that kernels printed in it."""
    lines: list[str] = []
    flush = ctypes.CDLL(None).fflush
    sys.stdout.flush()
    with tempfile.TemporaryFile() as kept:
        flush(None)
        before = os.dup(1)
        os.dup2(kept.fileno(), 1)
        try:
            yield lines
        finally:
            flush(None)
            os.dup2(before, 1)
            os.close(before)
            kept.seek(0)
            lines += kept.read().decode(errors="replace").splitlines()


@contextlib.contextmanager
def watched() -> Iterator[list[dict]]:
    """Give a list that gets the arguments, grid and threads of each launch in this context."""
    launches: list[dict] = []
    before = _WATCHED.set(launches)
    try:
        yield launches
    finally:
        _WATCHED.reset(before)


def fields(
    arguments: Mapping[str, np.ndarray | int | float],
    before: Mapping[str, int] = MappingProxyType({}),
) -> list[dict[str, object]]:
    """Return the fields of a kernel's `Params` as a page writes them, each of four bytes."""
    rows: list[dict[str, object]] = []
    for at, (name, value) in enumerate(arguments.items()):
        kind: dict[str, object] = {"type": "i32", "value": repr(value)}
        if isinstance(value, float):
            kind["type"] = "f32"
        if isinstance(value, np.ndarray):
            kind = {"type": "pointer", "tensor": name, "byte": -before.get(name, 0)}
        rows.append({"name": name, "at": 4 * at, **kind})
    return rows


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
    before: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Run a kernel on the CPU machine; the arrays that `writes` names hold what it wrote.

    `arguments` are the fields of the kernel's `Params`, in their order. The name `kernel` includes
    its namespace, in which `Params` stands too. `before` says of arrays by how many bytes the
    kernel's pointer lies before them, as in a larger array of which only the end is memory.
    Raises: HostKernelError naming block, thread and line of a race, a read of unwritten memory, an
    access out of bounds or a barrier that some threads miss; ValueError for arrays with gaps.
    """
    arrays = {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}
    for name, value in arrays.items():
        if not value.flags.c_contiguous:
            raise ValueError(f"{name} has gaps, allowed: a contiguous array")
    how = {"grid": (*grid, 1, 1)[:3], "threads": threads, "smem_bytes": smem_bytes}
    written = set(writes)
    if (launches := _WATCHED.get()) is not None:
        given = {k: v.copy() if k in arrays else v for k, v in arguments.items()}
        launches.append(how | {"written": written, "before": given, "after": arguments})
    if uses_gpu():
        _run_on_gpu(header, kernel, arguments, how, written, folders)
        return
    addresses = {name: v.ctypes.data - before.get(name, 0) for name, v in arrays.items()}
    ranges = [
        host.GlobalRange(name, value.ctypes.data, value.nbytes, name in written)
        for name, value in arrays.items()
    ]
    _built(header, kernel, folders).launch(
        **how, params=_params(arguments, addresses), ranges=ranges, host_threads=1
    )


def _params(
    arguments: Mapping[str, np.ndarray | int | float], addresses: Mapping[str, int]
) -> ctypes.Structure:
    """Return the kernel's parameter, with the address of each array."""
    fields = [
        (name, ctypes.c_void_p if name in addresses else _SCALARS[type(value)])
        for name, value in arguments.items()
    ]
    values = [addresses.get(name, value) for name, value in arguments.items()]
    return type("Params", (ctypes.Structure,), {"_fields_": fields})(*values)


def _run_on_gpu(header, kernel, arguments, how, written, folders) -> None:
    """Copy the arrays to the GPU, run the kernel there, and copy back what it wrote."""
    import torch

    from labkernels.cuda.compiler import nvrtc
    from labkernels.cuda.gpu.device import planning_gpu
    from labkernels.cuda.gpu.kernel import load

    index = torch.cuda.current_device()
    raw = {
        n: v.reshape(-1).view(np.uint8) for n, v in arguments.items() if isinstance(v, np.ndarray)
    }
    there = {name: torch.from_numpy(array).to(f"cuda:{index}") for name, array in raw.items()}
    params = _params(arguments, {name: tensor.data_ptr() for name, tensor in there.items()})
    arch = planning_gpu(index).compile_arch
    made = nvrtc.compile_kernel(
        header, instance=kernel, defines={}, arch=arch, include_dirs=folders
    )
    stream = torch.cuda.current_stream(index)
    load(made, device=index).launch(**how, params=params, stream=stream.cuda_stream)
    stream.synchronize()
    for name in written:
        raw[name][:] = there[name].cpu().numpy()


def aligned(values: np.ndarray, to_bytes: int = 16) -> np.ndarray:
    """Return a copy that begins at a multiple of 16 bytes, as loads of four words need it."""
    room = np.zeros(values.nbytes + to_bytes, np.uint8)
    start = -room.ctypes.data % to_bytes
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
        bounded=True,
        include_dirs=folders,
    )
