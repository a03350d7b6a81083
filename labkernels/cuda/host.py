"""The CPU build: a kernel.cuh compiled by a C++20 compiler, a fiber a CUDA thread, bit for bit.

`include/lab/host/` is the runtime. It is compiled once for each (architecture, checks, fibers), a
kernel once for each instance; both are cached by the content of all that they are made from.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkernels.cuda.cache import cache_dir, content_key

INCLUDE_DIRS = (Path(__file__).parent / "include", Path(__file__).parents[1] / "kernels")
RUNTIME_SOURCES = tuple(sorted((INCLUDE_DIRS[0] / "lab" / "host").glob("*.cpp")))
# The arithmetic of the tensor core, as LAB_ARCH: Ampere's, Ada's and Hopper's.
TENSOR_CORES = {
    "sm_80": 80,
    "sm_86": 80,
    "sm_89": 89,
    "sm_90": 90,
    "sm_90a": 90,
    "sm_100": 90,
    "sm_100a": 90,
    "sm_120": 90,
}
MAX_THREADS = 1024
MAX_SMEM_BYTES = 227 * 1024
_ERROR_BYTES = 1 << 16
_CODE_PLACE = re.compile(r"<<(.+?)\+(0x[0-9a-f]+)>>")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


class CompilerMissing(RuntimeError):
    """No C++20 compiler was found; the message says what to install."""


class HostKernelError(RuntimeError):
    """A kernel did not compile, or did what a GPU kernel must not do."""


@dataclass(frozen=True)
class Compiler:
    """A C++20 compiler: its path, and the version text that enters the cache keys."""

    path: str
    version: str

    @property
    def is_clang(self) -> bool:
        """Whether it is clang, by whatever name."""
        return "clang" in self.version


@dataclass(frozen=True)
class GlobalRange:
    """A tensor of a launch: the bytes that its kernel may read, and write if it is writable.

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
    )


@functools.cache
def compiler() -> Compiler:
    """Return the C++ compiler: CXX if that is set, else the first of g++, clang++ and c++.

    Raises: CompilerMissing, naming what to install.
    """
    chosen = os.environ.get("CXX")
    for name in [chosen] if chosen else ["g++", "clang++", "c++"]:
        path = shutil.which(name)
        if path is not None:
            found = subprocess.run([path, "--version"], capture_output=True, text=True)
            if found.returncode == 0:
                return Compiler(path, found.stdout)
    mend = {"linux": "apt-get install g++", "darwin": "xcode-select --install"}
    raise CompilerMissing(
        f"no C++20 compiler ({chosen or 'g++, clang++'} not found): the kernels cannot run on the "
        f"CPU; install one with: {mend.get(sys.platform, 'your package manager')}"
    )


@dataclass(frozen=True)
class HostKernel:
    """A kernel instance compiled for this machine's CPU."""

    instance: str
    library: Path
    runtime: Path
    checks: bool

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
        """Run every block of the grid, spread over `host_threads` (default: all cores).

        Raises: ValueError for what no GPU could launch; HostKernelError for what the kernel does
        wrong, naming block, thread and line. The outputs are then partly written.
        """
        x, y, z = (*grid, 1, 1)[:3]
        _check("grid", tuple(grid), len(grid) <= 3 and min(x, y, z) >= 1, "1 to 3 numbers from 1")
        _check("threads", threads, 1 <= threads <= MAX_THREADS, f"1 to {MAX_THREADS}")
        _check(
            "smem_bytes", smem_bytes, 0 <= smem_bytes <= MAX_SMEM_BYTES, f"0 to {MAX_SMEM_BYTES}"
        )
        kernel, params_bytes = _load_kernel(self.library, self.runtime)
        size = ctypes.sizeof(params)
        _check("params", f"{size} bytes", size == params_bytes, f"{params_bytes} bytes, as in C++")
        tensors = (_RangeStruct * len(ranges))(
            *((r.name.encode(), r.address, r.n_bytes, r.writable) for r in ranges)
        )
        request = _LaunchStruct(
            (ctypes.c_int * 3)(x, y, z),
            threads,
            smem_bytes,
            ctypes.cast(ctypes.byref(params), ctypes.c_void_p),
            tensors,
            len(ranges),
            host_threads or os.cpu_count() or 1,
        )
        message = ctypes.create_string_buffer(_ERROR_BYTES)
        if _load_runtime(self.runtime).lab_launch(
            ctypes.byref(request), kernel, message, _ERROR_BYTES
        ):
            raise HostKernelError(f"{self.instance}: {_name_lines(message.value.decode())}")


def build(
    header: str,
    *,
    instance: str,
    params: str,
    defines: Mapping[str, str | int] | None = None,
    arch: str = "sm_90",
    checks: bool = False,
    portable_fibers: bool = False,
    include_dirs: Sequence[Path] = (),
) -> HostKernel:
    """Compile the kernel that the C++ expression `instance` names, from an include path `header`.

    `params` is its parameter struct. With `checks`, races, reads of shared memory that nobody
    wrote, and every shared byte out of bounds are errors.

    Raises: CompilerMissing; HostKernelError with the compiler's words.
    """
    _check("arch", arch, arch in TENSOR_CORES, ", ".join(TENSOR_CORES))
    flags = _flags(arch, checks, portable_fibers)
    runtime = _build_runtime(flags)
    flags += [f"-D{name}={value}" for name, value in (defines or {}).items()]
    if checks:
        flags += ["-fsanitize=thread"]
    folders = (*INCLUDE_DIRS, *include_dirs)
    entry = _ENTRY.format(header=header, instance=instance, params=params)
    files = [_resolve(header, folders)]
    library = _compile("kernel", flags, folders, files, entry=entry, runtime=runtime)
    return HostKernel(instance, library, runtime, checks)


def tensor_core_matmul(a_bits, b_bits, c, *, arch: str, dtype: str) -> np.ndarray:
    """Return c + a b by the runtime's own tensor core, for tests of its arithmetic.

    Shapes: uint16 [n, 16, 16] and [n, 16, 8], float32 [n, 16, 8] -> float32 [n, 16, 8].
    """
    a = np.ascontiguousarray(a_bits, np.uint16)
    b = np.ascontiguousarray(b_bits, np.uint16)
    d = np.array(c, np.float32, order="C")
    n = len(d)
    _check("dtype", dtype, dtype in ("fp16", "bf16"), "fp16, bf16")
    shapes_fit = (a.shape, b.shape, d.shape) == ((n, 16, 16), (n, 16, 8), (n, 16, 8))
    _check("shapes", (a.shape, b.shape, d.shape), shapes_fit, "[n,16,16], [n,16,8], [n,16,8]")
    runtime = _load_runtime(_build_runtime(_flags(arch, False, False)))
    pointers = (array.ctypes.data_as(ctypes.c_void_p) for array in (a, b, d))
    runtime.lab_tensor_core(*pointers, ctypes.c_longlong(n), int(dtype == "bf16"))
    return d


# The parameter struct is copied for every thread, as the hardware does.
_ENTRY = """#include "{header}"
namespace {{
constexpr void (*kernel)({params}) = &{instance};
void run_thread(const void* p) {{ kernel(*static_cast<const {params}*>(p)); }}
}}
extern "C" {{
LAB_EXPORT extern const lab::host::Kernel lab_kernel = run_thread;
LAB_EXPORT extern const unsigned long long lab_params_bytes = sizeof({params});
}}
"""


def _check(name: str, value: object, allowed: bool, what: str) -> None:
    if not allowed:
        raise ValueError(f"{name} is {value}; allowed: {what}")


def _flags(arch: str, checks: bool, portable_fibers: bool) -> list[str]:
    """Flags of a runtime and of its kernels alike."""
    flags = ["-std=c++20", "-O2", "-g1", "-fPIC", "-fvisibility=hidden", "-U_FORTIFY_SOURCE"]
    # A product and a sum are never fused: fused operations are written out. A fiber's switch moves
    # floats through memory of another type.
    flags += ["-ffp-contract=off", "-fno-strict-aliasing", f"-DLAB_ARCH={TENSOR_CORES[arch]}"]
    if platform.machine() in ("x86_64", "AMD64"):
        flags += ["-march=native", "-mno-red-zone", "-fcf-protection=none"]
    elif platform.machine() in ("aarch64", "arm64"):
        flags += ["-mcpu=native"]
    if not compiler().is_clang:
        flags += ["-fno-gnu-unique"]
    if checks:
        flags += ["-DLAB_CHECKS"]
    if portable_fibers:
        flags += ["-DLAB_FIBER_PORTABLE=1"]
    return flags


@functools.cache
def _cpu() -> str:
    """What -march=native depends on: a cache folder may be shared by unlike machines."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return f"{platform.machine()} {platform.processor()} {platform.platform()}"
    return "".join(sorted(set(re.findall(r"^(?:model name|flags|Features|CPU part).*$", text, re.M))))
