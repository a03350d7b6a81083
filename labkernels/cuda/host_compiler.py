"""The C++ compiler of the CPU build, its flags, and the cache of what it compiled."""

from __future__ import annotations

import functools
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labkernels.cuda.cache import cache_dir, content_key

INCLUDE_DIRS = (Path(__file__).parent / "include", Path(__file__).parents[1] / "kernels")
_RUNTIME_DIR = INCLUDE_DIRS[0] / "lab" / "host"
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


class CompilerMissing(RuntimeError):
    """No C++20 compiler was found; the message says what to install."""


class CompileError(RuntimeError):
    """The compiler refused; the message holds its words."""


@dataclass(frozen=True)
class Compiler:
    """A C++20 compiler: its path, and the version text that enters the cache keys."""

    path: str
    version: str

    @property
    def is_clang(self) -> bool:
        """Whether it is clang, by whatever name."""
        return "clang" in self.version


def compiler() -> Compiler:
    """Return the C++ compiler: CXX if that is set, else the first of g++, clang++ and c++.

    Raises: CompilerMissing, naming what to install.
    """
    return _find_compiler(os.environ.get("CXX", ""))


@functools.cache
def _find_compiler(chosen: str) -> Compiler:
    for name in [chosen] if chosen else ["g++", "clang++", "c++"]:
        path = shutil.which(name)
        if path is not None:
            answer = subprocess.run([path, "--version"], capture_output=True, text=True)
            if answer.returncode == 0:
                return Compiler(path, answer.stdout)
    mend = "xcode-select --install" if sys.platform == "darwin" else "apt-get install g++"
    raise CompilerMissing(
        f"no C++20 compiler ({chosen or 'g++ or clang++'}) was found, so that the CUDA kernels "
        f"cannot run on the CPU; install one: {mend}"
    )


def common_flags(*, tensor_core: int, checks: bool, portable_fibers: bool) -> list[str]:
    """Flags of a runtime, which its kernels share."""
    flags = ["-std=c++20", "-O3", "-g1", "-fPIC", "-fvisibility=hidden", "-U_FORTIFY_SOURCE"]
    # A fused operation is written out in the kernels, so that none may be made; and memory is read
    # by other types than it was written by.
    flags += ["-ffp-contract=off", "-fno-strict-aliasing", f"-DLAB_ARCH={tensor_core}"]
    machine = platform.machine()
    if machine in ("x86_64", "AMD64"):
        flags += ["-march=native", "-mno-red-zone", "-fcf-protection=none"]
    elif machine in ("aarch64", "arm64"):
        flags += ["-mcpu=apple-m1" if sys.platform == "darwin" else "-mcpu=native"]
    if compiler().is_clang:
        flags += ["-gdwarf-4"]  # addr2line of binutils 2.40 takes the wrong file from its version 5
    else:
        # Loops are not turned into calls of memset, which announce no access to the checks.
        flags += ["-fno-gnu-unique", "-fno-tree-loop-distribute-patterns"]
    if checks:
        flags += ["-DLAB_CHECKS"]
    if portable_fibers:
        flags += ["-DLAB_FIBER_PORTABLE=1"]
    return flags


def compile_runtime(flags: Sequence[str]) -> Path:
    """Return the shared library of the runtime, compiled if the cache has none."""
    sources = sorted(_RUNTIME_DIR.glob("*.cpp"))
    text = "".join(
        f'#include "lab/host/{source.name}"\n' for source in sources
    )  # all at once: fast
    return _compile("runtime", text, flags, INCLUDE_DIRS[:1], libraries=[])


def compile_entry(entry: str, flags: Sequence[str], folders: Sequence[Path], runtime: Path) -> Path:
    """Return the shared library of one kernel, whose C++ text is `entry`."""
    return _compile("kernel", entry, flags, folders, libraries=[runtime])


def _compile(
    name: str,
    text: str,
    flags: Sequence[str],
    folders: Sequence[Path],
    *,
    libraries: Sequence[Path],
) -> Path:
    found = compiler()
    made_by = [found.path, found.version, _cpu(), *flags, *(path.name for path in libraries)]
    texts = [path.read_text() for path in included_files(text, folders)]
    suffix = ".dylib" if sys.platform == "darwin" else ".so"
    folder = cache_dir() / "host"
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"{name}-{content_key(*made_by, '', text, *texts)}{suffix}"
    if library.exists():
        return library
    with tempfile.TemporaryDirectory(dir=folder) as work:
        source, made, part = (Path(work) / f"{name}{end}" for end in (".cpp", ".o", suffix))
        source.write_text(text)
        search = [f"-I{path}" for path in folders]
        _run([found.path, *flags, *search, "-c", str(source), "-o", str(made)])
        # Without `flags`: -fsanitize=thread would bring a library of its own.
        linked = [str(made), *map(str, libraries), "-pthread"]
        _run([found.path, *_link_flags(library), *linked, "-o", str(part)])
        part.replace(library)  # whoever else compiles the same: the last one stays
    return library


def _run(command: Sequence[str]) -> None:
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode != 0:
        raise CompileError(f"{shlex.join(command)}\n{answer.stderr[:8000]}")


def _link_flags(library: Path) -> list[str]:
    """A library finds the runtime beside itself, by its name."""
    if sys.platform == "darwin":
        return [
            "-dynamiclib",
            f"-Wl,-install_name,@rpath/{library.name}",
            "-Wl,-rpath,@loader_path",
        ]
    return ["-shared", f"-Wl,-soname,{library.name}", "-Wl,-rpath,$ORIGIN"]


def included_files(text: str, folders: Sequence[Path]) -> list[Path]:
    """Return every file in `folders` that `text`, or a file it includes, includes by ""."""
    files: list[Path] = []
    names = _INCLUDE.findall(text)
    for name in names:  # grows as it goes
        path = next((path for folder in folders if (path := folder / name).exists()), None)
        if path is not None and path not in files:
            files.append(path)
            names += _INCLUDE.findall(path.read_text())
    return files


@functools.cache
def _cpu() -> str:
    """What -march=native depends on: unlike machines may share a cache folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()} {platform.platform()}"
    kept = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(kept)}))
