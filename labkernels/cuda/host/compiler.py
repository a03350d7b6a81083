"""The C++ compiler of the CPU build, its flags, and the cache of what it compiled."""

from __future__ import annotations

import errno
import functools
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labkernels.cuda.compiler import cache, sources

INCLUDE_DIRS = (Path(__file__).parents[1] / "include", Path(__file__).parents[2] / "kernels")
_LAB = INCLUDE_DIRS[0] / "lab"
# Part of every key: raise it when _compile changes what it does with flags and sources.
_CACHE_VERSION = "2"


class CompilerMissing(RuntimeError):
    """No C++20 compiler was found; the message says what to install."""


class CompileError(RuntimeError):
    """The compiler failed; the message quotes it."""


@dataclass(frozen=True)
class Compiler:
    """A C++20 compiler: the words that start it, and the version text of the cache keys."""

    command: tuple[str, ...]
    version: str

    @property
    def is_clang(self) -> bool:
        """Whether it is clang, by whatever name."""
        return "clang" in self.version


def compiler() -> Compiler:
    """Return the C++ compiler: CXX if that is set, else the first of g++, clang++ and c++.

    CXX may hold several words, such as "ccache g++".

    Raises: CompilerMissing, naming what to install.
    """
    return _find_compiler(os.environ.get("CXX", ""))


@functools.cache
def _find_compiler(chosen: str) -> Compiler:
    for words in [shlex.split(chosen)] if chosen.strip() else [["g++"], ["clang++"], ["c++"]]:
        path = shutil.which(words[0])
        if path is not None:
            answer = subprocess.run([path, *words[1:], "--version"], capture_output=True, text=True)
            if answer.returncode == 0:
                return Compiler((path, *words[1:]), answer.stdout)
    mend = "xcode-select --install" if sys.platform == "darwin" else "apt-get install g++"
    raise CompilerMissing(
        f"no C++20 compiler ({chosen or 'g++ or clang++'}) was found, so that the CUDA kernels "
        f"cannot run on the CPU; install one: {mend}"
    )


def common_flags(*, tensor_core: int, checks: bool) -> list[str]:
    """Return the flags that a runtime and its kernels share, for any compiler."""
    flags = ["-std=c++20", "-O3", "-g1", "-fPIC", "-fvisibility=hidden", "-U_FORTIFY_SOURCE"]
    # The compiler must not fuse operations, since the kernels write fused ones out; and memory is
    # read by other types than it was written by.
    flags += ["-ffp-contract=off", "-fno-strict-aliasing", f"-DLAB_ARCH={tensor_core}"]
    machine = platform.machine()
    if machine in ("x86_64", "AMD64"):
        flags += ["-march=native", "-mno-red-zone", "-fcf-protection=none"]
    elif machine in ("aarch64", "arm64"):
        flags += ["-mcpu=apple-m1" if sys.platform == "darwin" else "-mcpu=native"]
    if sys.platform == "linux":  # a large frame touches each of its pages, the guard's too
        flags += ["-fstack-clash-protection"]
    if checks:
        flags += ["-DLAB_CHECKS"]
    return flags


def compile_runtime(flags: Sequence[str], *, counts: bool = False) -> Path:
    """Return the shared library of the runtime, compiled if the cache has none.

    counts: shared memory's turns are counted, and its accesses are not checked.
    A first answer waits longest for this compile. With checks, therefore, only the shadow of shared
    memory, which every access asks, has all optimisation; the core is one object for both shadows.
    """
    shadow = _LAB / ("banks" if counts else "host/races") / "shadow.cpp"
    core = [path for path in sorted((_LAB / "host").rglob("*.cpp")) if path.name != shadow.name]
    if "-DLAB_CHECKS" not in flags:
        return _compile("runtime", _all_of(*core, shadow), flags, INCLUDE_DIRS[:1])
    quick = [*flags, "-O1"]
    objects = [_compile("core", _all_of(*core), quick, INCLUDE_DIRS[:1])]
    own_flags = quick if counts else flags
    return _compile("runtime", _all_of(shadow), own_flags, INCLUDE_DIRS[:1], libraries=objects)


def _all_of(*files: Path) -> str:
    """Return several files as one, whose compile is faster than theirs."""
    return "".join(f'#include "{path.relative_to(INCLUDE_DIRS[0])}"\n' for path in files)


def compile_entry(entry: str, flags: Sequence[str], folders: Sequence[Path], runtime: Path) -> Path:
    """Return the shared library of one kernel, whose C++ text is `entry`.

    A kernel is compiled at -Og, in two thirds of the time that -O1 takes and a third of -O2's. It
    then takes up to a third more time to run, and less than its compile in all but long runs: its
    work is done by the runtime.
    """
    return _compile("kernel", entry, [*flags, "-Og"], folders, libraries=[runtime])


def _compile(
    kind: str,
    text: str,
    flags: Sequence[str],
    folders: Sequence[Path],
    *,
    libraries: Sequence[Path] = (),
) -> Path:
    """Return the library from the cache; without a compiler here, the library of any compiler."""
    files = sources.included(text, folders)
    made_from = [_CACHE_VERSION, _cpu(), *flags, *(path.name for path in libraries), "", text]
    name = f"{kind}-{cache.content_key(*made_from, *sources.parts(files))}"
    try:
        found = compiler()
    except CompilerMissing:
        kept = cache.newest(f"{name}-")
        if kept is None:
            raise
        return kept.path
    suffix = ".o" if kind == "core" else ".dylib" if sys.platform == "darwin" else ".so"
    own_flags = _own_flags(found)
    made_by = cache.content_key(*found.command, found.version, *own_flags)[:8]
    library = f"{name}-{made_by}{suffix}"

    def make(work: Path) -> bytes:
        _require_executable(work)
        include = sources.write(files, work / "kernels")
        source, made, linked = (work / f"{kind}{end}" for end in (".cpp", ".o", f"-linked{suffix}"))
        source.write_text(text)
        # Builds of the same sources give the same bytes in every work folder.
        compiles = [*found.command, *flags, *own_flags, f"-ffile-prefix-map={work}=/labkernels"]
        _run([*compiles, f"-I{include}", "-c", str(source), "-o", str(made)], work)
        # Without `flags`: -fsanitize=thread would bring a library of its own.
        inputs = [str(made), *map(str, libraries), "-pthread", "-o", str(linked)]
        _run([*found.command, *_link_flags(library), *inputs], work)
        if not linked.is_file():
            raise CompileError(f"{shlex.join(found.command)} writes no file, but says no error")
        return linked.read_bytes()

    return cache.entry(library, make).path


def _own_flags(found: Compiler) -> list[str]:
    if found.is_clang:
        return ["-gdwarf-4"]  # addr2line of binutils 2.40 takes the wrong file from its version 5
    # Loops are not turned into calls of memset, which announce no access to the checks.
    return ["-fno-gnu-unique", "-fno-tree-loop-distribute-patterns"]


def _require_executable(folder: Path) -> None:
    if os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0):
        raise cache.CacheError(
            f"machine code in {folder.parent.parent} may not run: the folder is mounted noexec; "
            "set LABKERNELS_CACHE to one that is not"
        )


def _run(command: Sequence[str], work: Path) -> None:
    """Run a compiler, whose temporary files lie in the work folder."""
    environment = {**os.environ, "TMPDIR": str(work), "LC_ALL": "C"}
    try:
        answer = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=work)
    except OSError as error:
        raise CompileError(f"{command[0]} does not start: {error.strerror}") from error
    if answer.returncode == 0:
        return
    for code in (errno.ENOSPC, errno.EDQUOT):
        if os.strerror(code) in answer.stderr:
            raise OSError(code, os.strerror(code), str(work.parent.parent))
    said = next((line for line in answer.stderr.splitlines() if "error" in line), "no message")
    what = f"{Path(command[0]).name} fails with exit code {answer.returncode}: {said.strip()}"
    raise CompileError(f"{what}\n{shlex.join(command)}\n{answer.stderr[:8000]}")


def _link_flags(library: str) -> list[str]:
    """Return flags by which a library finds the runtime beside itself, by its name.

    An object is linked to one object, so that it needs no library.
    """
    if library.endswith(".o"):
        return ["-r"]
    if sys.platform == "darwin":
        return ["-dynamiclib", f"-Wl,-install_name,@rpath/{library}", "-Wl,-rpath,@loader_path"]
    return ["-shared", f"-Wl,-soname,{library}", "-Wl,-rpath,$ORIGIN"]


@functools.cache
def _cpu() -> str:
    """Return the facts behind -march=native, since different machines may share a cache folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()} {platform.platform()}"
    kept = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(kept)}))
