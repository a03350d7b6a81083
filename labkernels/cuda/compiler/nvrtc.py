"""Compiles CUDA sources to machine code with NVRTC; needs neither a GPU nor a driver."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkernels.cuda.compiler import cache, sources
from labkernels.cuda.compiler.specialization import Specialization

INCLUDE = Path(__file__).parents[1] / "include"
KERNELS = Path(__file__).parents[2] / "kernels"
STANDARD = "c++20"  # the CPU build of the same sources uses the same standard
# Part of every key: raise it when the options below or the cached form change.
_CACHE_VERSION = "3"
FIRST_WITH_A_CACHE = (12, 9)
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:, used (\d+) barriers)?(.*)")
_WARNING = re.compile("warning|Potential Performance Loss", re.IGNORECASE)  # an "info" to ptxas
_STATIC_SMEM = re.compile(r"(\d+)(?:\+\d+)? bytes smem")


class CompileError(RuntimeError):
    """A kernel did not compile; the text holds the instance, the architecture and the log."""


@dataclass(frozen=True)
class ResourceReport:
    """The resources of a kernel by ptxas: registers and stack per thread, bytes per block."""

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    static_smem_bytes: int
    barriers: int
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class CompiledKernel:
    """One instance of a kernel template as machine code for one architecture."""

    instance: str
    symbol: str
    arch: str
    cubin: bytes
    report: ResourceReport
    log: str


def available() -> str | None:
    """Return None where CUDA sources can be compiled, else the reason."""
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        mend = "pip install 'labkernels[gpu]' (Linux only)"
        return f"cuda.bindings cannot be imported ({error}): {mend}"
    try:
        status = nvrtc.nvrtcVersion()[0]
    except (RuntimeError, OSError) as error:
        first_line = str(error).partition("\n")[0]
        return f"NVRTC cannot be loaded ({first_line}): pip install nvidia-cuda-nvrtc"
    return None if int(status) == 0 else f"NVRTC does not answer: {status}"


def nvrtc_version() -> str:
    """Return NVRTC's version, such as "13.0.88" (two numbers where it is not a Python package)."""
    from cuda.bindings import nvrtc

    _, major, minor = nvrtc.nvrtcVersion()
    for package in ("nvidia-cuda-nvrtc", f"nvidia-cuda-nvrtc-cu{major}"):
        try:
            installed = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        if installed.startswith(f"{major}.{minor}."):
            return installed
    return f"{major}.{minor}"


def compiled(made: Specialization, arch: str) -> CompiledKernel:
    """Compile a specialization for an architecture; see `compile_kernel`."""
    return compile_kernel(
        made.header,
        instance=made.instance,
        defines=made.defines,
        arch=arch,
        include_dirs=made.include_dirs,
    )


def compile_kernel(
    header: str | Path,
    *,
    instance: str,
    defines: Mapping[str, str | int],
    arch: str,
    include_dirs: Sequence[Path] = (),
) -> CompiledKernel:
    """Compile one instance of a kernel, or read it from the cache.

    `header` is as a source would include it ("decode/mma/kernel.cuh", "lab/merge_splits.cuh"), or
    an absolute path; `instance` is a C++ expression ("decode_mma::decode<...>"). A file in
    `include_dirs` takes the place of the lab's of the same name.

    Raises: ValueError for an unknown header or architecture, CompileError if NVRTC refuses.
    """
    header, folders = str(header), (*include_dirs, INCLUDE, KERNELS)
    if Path(header).is_absolute():
        header, folders = Path(header).name, (Path(header).parent, *folders)
    macros = [(name, str(value)) for name, value in sorted(defines.items())]
    files = device_sources(header, folders)
    made_from = [arch, instance, header, json.dumps(macros), *sources.parts(files)]
    name = f"cubin-{cache.content_key(_CACHE_VERSION, *made_from)}"
    reason = available()
    if reason is not None:
        kept = cache.newest(f"{name}-")
        if kept is None:
            raise CompileError(f"cannot compile {instance}: {reason}")
        return _unpacked(kept.content)
    _check_arch(arch)

    def make(_work: Path) -> bytes:
        return _packed(_compile(header, files, instance=instance, macros=macros, arch=arch))

    return _unpacked(cache.entry(f"{name}-{nvrtc_version()}", make).content)


def device_sources(header: str, folders: Sequence[Path]) -> dict[str, bytes]:
    """Return the header and every file that it includes, directly or not: name -> content.

    The CPU's half of the vocabulary is left out: no GPU compile reads it.

    Raises: ValueError for an unknown header.
    """
    found = sources.included(f'#include "{header}"\n', folders)
    if header not in found:
        raise ValueError(f"header = {header!r}, allowed: a file below {KERNELS} or {INCLUDE}")
    return {name: text for name, text in found.items() if not name.startswith("lab/host/")}


def _check_arch(arch: str) -> None:
    from cuda.bindings import nvrtc

    # Below 8.0 there is no asynchronous copy, which the lab's kernels use.
    known = [number for number in nvrtc.nvrtcGetSupportedArchs()[1] if number >= 80]
    match = re.fullmatch(r"sm_(\d+)[af]?", arch)
    if match is None or int(match[1]) not in known:
        names = ", ".join(f"sm_{number}" for number in known)
        raise ValueError(f"arch = {arch!r}, allowed: {names}, some with a or f behind")


def _compile(
    header: str,
    files: Mapping[str, bytes],
    *,
    instance: str,
    macros: list[tuple[str, str]],
    arch: str,
) -> CompiledKernel:
    """Compile from the given bytes, without reading files."""
    from cuda.bindings import nvrtc

    options = [
        f"--gpu-architecture={arch}",
        f"--std={STANDARD}",
        # The CPU build rounds every product and sum by itself; a fused operation is written out.
        "--fmad=false",
        *(f"--define-macro={name}={value}" for name, value in macros),
        "--no-source-include",
        "--generate-line-info",
        "--ptxas-options=-v",
        "--ptxas-options=--warn-on-spills",
        *_without_its_cache(),
    ]
    names, texts = [name.encode() for name in files], list(files.values())
    source = f'#include "{header}"\n'.encode()
    program = _ask(nvrtc.nvrtcCreateProgram, source, b"kernel.cu", len(names), texts, names)
    try:
        _ask(nvrtc.nvrtcAddNameExpression, program, instance.encode())
        (status,) = nvrtc.nvrtcCompileProgram(
            program, len(options), [option.encode() for option in options]
        )
        log = _buffer(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        text = log.decode(errors="replace").replace("\x00", "").strip()
        if int(status) != 0:
            what = f"{instance} does not compile for {arch} {_listed(macros)}"
            raise CompileError(f"{what}: {_first_error(text)}\n{status.name}\n{text}")
        symbol = _ask(nvrtc.nvrtcGetLoweredName, program, instance.encode()).decode()
        cubin = _buffer(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return CompiledKernel(instance, symbol, arch, cubin, parse_log(text, symbol=symbol), text)


def _without_its_cache() -> list[str]:
    """Return the option against NVRTC's own cache (from 12.9), which keeps no ptxas report."""
    from cuda.bindings import nvrtc

    return ["--no-cache"] if nvrtc.nvrtcVersion()[1:] >= FIRST_WITH_A_CACHE else []


def _first_error(log: str) -> str:
    """Return the line of a compiler's log that states the error, or its last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\b(error|fatal)\b", line)]
    return next(iter(errors or lines[-1:]), "no log")


def _ask(function: Callable, *arguments):
    """Return the result of a call of NVRTC, or None; raise CompileError if it fails."""
    status, *result = function(*arguments)
    if int(status) != 0:
        raise CompileError(f"{function.__name__} fails: {status.name}")
    return result[0] if result else None


def _buffer(size_of: Callable, fill: Callable, program) -> bytes:
    data = b" " * _ask(size_of, program)
    _ask(fill, program, data)  # writes into the bytes
    return data


def _listed(macros: Iterable[tuple[str, str]]) -> str:
    return "with " + (", ".join(f"{name}={value}" for name, value in macros) or "no definitions")


def parse_log(log: str, *, symbol: str) -> ResourceReport:
    """Read one kernel's resources out of what `ptxas -v` printed.

    Spills are summed over the kernel and the functions that it calls without inlining.
    """
    sections = log.split("Compiling entry function ")[1:]
    section = next((text for text in sections if text.startswith(f"'{symbol}'")), "")
    used, frames = _USED.search(section), _FRAME.findall(section)
    if used is None or not frames:
        raise CompileError(f"the compiler's log has no resources of {symbol}:\n{log}")
    static_smem = _STATIC_SMEM.search(used[3])
    warnings = [line.strip() for line in log.splitlines() if _WARNING.search(line)]
    return ResourceReport(
        registers=int(used[1]),
        spill_store_bytes=sum(int(stores) for _, stores, _ in frames),
        spill_load_bytes=sum(int(loads) for _, _, loads in frames),
        stack_bytes=max(int(stack) for stack, _, _ in frames),
        static_smem_bytes=int(static_smem[1]) if static_smem else 0,
        barriers=int(used[2] or 0),
        warnings=tuple(warnings),
    )


def _packed(compiled: CompiledKernel) -> bytes:
    """Return one line of JSON, then the machine code."""
    record = dataclasses.asdict(compiled)
    del record["cubin"]
    return json.dumps(record).encode() + b"\n" + compiled.cubin


def _unpacked(content: bytes) -> CompiledKernel:
    line, _, cubin = content.partition(b"\n")
    record = json.loads(line)
    report = record.pop("report")
    report["warnings"] = tuple(report["warnings"])
    return CompiledKernel(cubin=cubin, report=ResourceReport(**report), **record)
