"""Builds kernels for the CPU: they give the same bits there, with one fiber per CUDA thread.

A C++20 compiler compiles the runtime, `include/lab/host/`, once for each choice of tensor core,
checks and counting, and a kernel once for each instance. Both are cached by the content of
all that they are made from. A kernel with checks can be built a second time, for a machine that
counts the turns of shared memory (see `banks`).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from labkernels.cuda.compiler.cache import cache_dir
from labkernels.cuda.host import banks
from labkernels.cuda.host.compiler import (
    INCLUDE_DIRS,
    CompileError,
    common_flags,
    compile_entry,
    compile_runtime,
    compiler,
)
from labkernels.numerics.emulation import ex2_unit

# The tensor core of an architecture, as LAB_ARCH: Ampere's, Ada's or Hopper's. Blackwell's GPUs get
# Hopper's.
TENSOR_CORES = {"sm_80": 80, "sm_86": 80, "sm_87": 80, "sm_89": 89}
TENSOR_CORES |= {"sm_90": 90, "sm_100": 90, "sm_120": 90}
MAX_THREADS = 1024
MAX_SMEM_BYTES = 227 * 1024
_MESSAGE_BYTES = 1 << 16
_INTERRUPTED = 2  # what lab_launch returns after SIGINT
_PARAMS_ALIGNMENT = 64
_RUNTIMES: dict[str, ctypes.CDLL] = {}  # by file name, which has a hash of the content
_CODE_PLACE = re.compile(r"<<(.+?)\+(0x[0-9a-f]+)>>")

# Every thread gets its own copy of the parameters, as on the GPU.
_ENTRY = """#include "{header}"
namespace {{
constexpr void (*kernel)({params}) = &{instance};
void run_thread(const void* params) {{ kernel(*static_cast<const {params}*>(params)); }}
}}
extern "C" {{
LAB_EXPORT extern const lab::host::Kernel lab_kernel = run_thread;
LAB_EXPORT extern const unsigned long long lab_params_bytes = sizeof({params});
}}
"""


class HostKernelError(RuntimeError):
    """A kernel did not compile, or did something that is an error on a GPU."""


@dataclass(frozen=True)
class GlobalRange:
    """A tensor of a launch: bytes that its kernel may read, and write if it is writable.

    Units: address and n_bytes are bytes.
    """

    name: str
    address: int
    n_bytes: int
    writable: bool


class _RangeStruct(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_uint64),
        ("n_bytes", ctypes.c_uint64),
        ("writable", ctypes.c_int),
    )


class _LaunchStruct(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_int * 3),
        ("threads", ctypes.c_int),
        ("smem_bytes", ctypes.c_uint64),
        ("params", ctypes.c_void_p),
        ("ranges", ctypes.POINTER(_RangeStruct)),
        ("n_ranges", ctypes.c_int),
        ("host_threads", ctypes.c_int),
        ("interruptible", ctypes.c_int),
    )


@dataclass(frozen=True)
class HostKernel:
    """A kernel instance compiled for this machine's CPU.

    counting: builds the same kernel for the machine that counts; None without checks.
    """

    instance: str
    library: Path
    runtime: Path
    counting: Callable[[], HostKernel] | None = None

    def launch(
        self,
        *,
        grid: Sequence[int],
        threads: int,
        smem_bytes: int,
        params: ctypes.Structure,
        ranges: Sequence[GlobalRange],
        host_threads: int | None = None,
    ) -> None:
        """Run every block of the grid (x, y, z), spread over `host_threads` (default: all cores).

        Raises: ValueError for what a GPU could not launch; HostKernelError for what the kernel does
        wrong, naming block, thread and line; KeyboardInterrupt. After the last two, the outputs are
        partly written.
        """
        if self.counting is not None and (turns := banks.listed()) is not None:
            turns += _counted(self.counting(), grid, threads, smem_bytes, params, ranges)
            return
        entry = _load_entry(self.library, self.runtime)
        size = ctypes.sizeof(params)
        _check("grid", tuple(grid), len(grid) == 3 and min(grid) >= 1, "three numbers from 1")
        _check("threads", threads, 1 <= threads <= MAX_THREADS, f"1 to {MAX_THREADS}")
        fits = 0 <= smem_bytes <= MAX_SMEM_BYTES
        _check("smem_bytes", smem_bytes, fits, f"0 to {MAX_SMEM_BYTES}")
        _check("params", f"{size} bytes", size == entry.params_bytes, f"{entry.params_bytes} bytes")
        # A tensor map needs a larger alignment than ctypes gives a structure.
        room = ctypes.create_string_buffer(size + _PARAMS_ALIGNMENT)
        copy = -(-ctypes.addressof(room) // _PARAMS_ALIGNMENT) * _PARAMS_ALIGNMENT
        ctypes.memmove(copy, ctypes.byref(params), size)
        tensors = (_RangeStruct * len(ranges))(
            *((r.name.encode(), r.address, r.n_bytes, r.writable) for r in ranges)
        )
        request = _LaunchStruct(
            (ctypes.c_int * 3)(*grid),
            threads,
            smem_bytes,
            copy,
            tensors,
            len(ranges),
            host_threads or os.cpu_count() or 1,
            threading.current_thread() is threading.main_thread(),
        )
        message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        launch = _load_runtime(self.runtime).lab_launch
        code = launch(ctypes.byref(request), entry.kernel, message, _MESSAGE_BYTES)
        if code == _INTERRUPTED:
            raise KeyboardInterrupt(f"{self.instance} was left unfinished")
        if code:
            text = _name_lines(message.value.decode(errors="replace"))
            raise HostKernelError(f"{self.instance}: {text}")


def _counted(kernel: HostKernel, grid, threads, smem_bytes, params, ranges) -> list[banks.Turns]:
    """Run a kernel on the machine that counts, and return its count."""
    turns = _load_runtime(kernel.runtime).lab_turns
    turns.restype = ctypes.c_char_p
    with banks.ALONE:
        kernel.launch(
            grid=grid, threads=threads, smem_bytes=smem_bytes, params=params, ranges=ranges
        )
        return banks.read(_name_lines(turns().decode()))


def build(
    header: str,
    *,
    instance: str,
    params: str,
    defines: Mapping[str, str | int] | None = None,
    arch: str = "sm_90",
    checks: bool = False,
    bounded: bool = False,
    include_dirs: Sequence[Path] = (),
) -> HostKernel:
    """Compile the kernel that the C++ expression `instance` names, from an include path `header`.

    `params` is its parameter struct. A file in `include_dirs` takes the place of the lab's file of
    the same name. With `checks`, races in shared memory, reads of its unwritten bytes and every
    access out of bounds are errors, too. If it is `bounded`, an index outside of its own dimension
    and a loop without an end are errors as well, and SIGINT ends the loop before.

    Raises: CompilerMissing; HostKernelError with the compiler's words.
    """
    _check("arch", repr(arch), arch in TENSOR_CORES, ", ".join(TENSOR_CORES))
    flags = common_flags(tensor_core=TENSOR_CORES[arch], checks=checks)
    own_flags = [f"-D{name}={value}" for name, value in (defines or {}).items()]
    if checks:
        own_flags += ["-fsanitize=thread"]
    if bounded:
        own_flags += ["-fsanitize-coverage=trace-pc", "-fsanitize=bounds"]
    entry = _ENTRY.format(header=header, instance=instance, params=params)
    folders = (*include_dirs, *INCLUDE_DIRS)
    built = functools.partial(_built, instance, entry, tuple(flags), tuple(own_flags), folders)
    counting = functools.cache(functools.partial(built, counts=True)) if checks else None
    return replace(built(counts=False), counting=counting)


def _built(instance: str, entry: str, flags, own_flags, folders, *, counts: bool) -> HostKernel:
    """Return the kernel and its runtime, compiled or from the cache."""
    if counts and not compiler().is_clang:  # the flag keeps a copy of 16 bytes one access
        own_flags = (*own_flags, "-fno-tree-sra")
    for tries_left in (2, 1, 0):
        runtime = library = None
        try:
            runtime = _runtime(flags, cache_dir(), counts)
            library = compile_entry(entry, [*flags, *own_flags], folders, runtime)
            _load_entry(library, runtime)
            return HostKernel(instance, library, runtime)
        except (CompileError, OSError) as error:
            # Another process may clear the cache between a compile and the load of its result.
            lost = [path for path in (runtime, library) if path is not None and not path.exists()]
            if not lost or not tries_left:
                verb = "compile" if isinstance(error, CompileError) else "load"
                raise HostKernelError(f"{instance} does not {verb}: {error}") from error
            _runtime.cache_clear()
    raise AssertionError("the last try returns or raises")


def _check(name: str, value: object, is_allowed: bool, allowed: str) -> None:
    if not is_allowed:
        raise ValueError(f"{name} is {value}; allowed: {allowed}")


@functools.cache
def _runtime(flags: tuple[str, ...], _folder: Path, counts: bool = False) -> Path:
    """Return the path of the runtime, which stays the same in a process for a cache folder."""
    return compile_runtime(flags, counts=counts)


def _load_runtime(library: Path) -> ctypes.CDLL:
    """Load a runtime once, wherever its cache lies, because a kernel finds it only by its name."""
    if library.name not in _RUNTIMES:
        _RUNTIMES[library.name] = _loaded_runtime(library)
    return _RUNTIMES[library.name]


def _loaded_runtime(library: Path) -> ctypes.CDLL:
    runtime = ctypes.CDLL(str(library))
    runtime.lab_launch.argtypes = [
        ctypes.POINTER(_LaunchStruct),
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
    ]
    runtime.lab_tensor_core.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_longlong, ctypes.c_int]
    runtime.lab_tensor_core.restype = None
    runtime.lab_dot.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int]
    runtime.lab_dot.restype = None
    runtime.lab_set_ex2.argtypes = [ctypes.c_void_p]
    runtime.lab_set_ex2.restype = None
    _give_ex2(runtime)
    return runtime


@dataclass(frozen=True)
class _Entry:
    kernel: int  # address of the function that runs one thread
    params_bytes: int


@functools.cache
def _load_entry(library: Path, runtime: Path) -> _Entry:
    _load_runtime(runtime)
    loaded = ctypes.CDLL(str(library))
    kernel = ctypes.c_void_p.in_dll(loaded, "lab_kernel").value
    return _Entry(kernel, ctypes.c_ulonglong.in_dll(loaded, "lab_params_bytes").value)


def _give_ex2(runtime: ctypes.CDLL) -> None:
    """Set the coefficients of 2^x, if there is their file; without it, a kernel that needs them
    reports an error.
    """
    with contextlib.suppress(FileNotFoundError):
        runtime.lab_set_ex2(ex2_coefficients().ctypes.data)


@functools.cache
def ex2_coefficients() -> np.ndarray:
    """Return the bias, then c0, c1 and c2 of each segment.

    The array must stay alive, which the cache ensures: arithmetic/ex2.cpp keeps a pointer to it.
    """
    unit = ex2_unit.load()
    return np.concatenate([[unit.bias], np.stack([unit.c0, unit.c1, unit.c2], axis=1).ravel()])


def _name_lines(message: str) -> str:
    """Replace each <<library+offset>> by the source line, if addr2line knows the line."""
    return _CODE_PLACE.sub(lambda found: _line_of(found[1], found[2]), message)


def _line_of(library: str, offset: str) -> str:
    unknown = f"{Path(library).name}+{offset}"
    tool = shutil.which("addr2line")
    if tool is None:
        return f"{unknown} (install addr2line of GNU binutils to see the source line)"
    answer = subprocess.run(
        [tool, "-i", "-e", library, offset], capture_output=True, text=True, check=False
    )
    places = [line.split(" (")[0] for line in answer.stdout.splitlines()]  # the innermost first
    known = [place for place in places if "?" not in place and "/c++/" not in place]
    of_kernel = [place for place in known if "/lab/host/" not in place]
    return "/".join((of_kernel or known or [unknown])[0].split("/")[-2:])
