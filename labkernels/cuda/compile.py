"""CUDA sources to machine code with NVRTC, through cuda.core; needs neither a GPU nor a driver."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkernels.cuda.cache import atomic_write, cache_dir, content_key

INCLUDE = Path(__file__).parent / "include"
KERNELS = Path(__file__).parent.parent / "kernels"
STANDARD = "c++20"  # what the CPU build of the same sources uses
# Part of every key: raise it when the options below or the cached form change.
_CACHE_VERSION = "1"
_SUFFIXES = (".cuh", ".h", ".hpp")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:, used (\d+) barriers)?(.*)")
_WARNING = re.compile("warning|Potential Performance Loss", re.IGNORECASE)  # an "info" to ptxas
_STATIC_SMEM = re.compile(r"(\d+)(?:\+\d+)? bytes smem")


class CompileError(RuntimeError):
    """A kernel did not compile; the text holds the instance, the architecture and the log."""


@dataclass(frozen=True)
class ResourceReport:
    """What ptxas says that a kernel takes: registers and stack a thread, shared memory a block."""

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
    """Return None where CUDA sources can be compiled, else the reason in words."""
    try:
        from cuda.bindings import nvrtc
        from cuda.core import Program  # noqa: F401
    except ImportError as error:
        return f"cuda.core cannot be imported ({error}): pip install 'labkernels[gpu]' (Linux only)"
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


def compile_kernel(
    header: str | Path,
    *,
    instance: str,
    defines: Mapping[str, str | int],
    arch: str,
    include_dirs: Sequence[Path] = (),
) -> CompiledKernel:
    """Compile one instance of a kernel, or read it from the cache.

    `header` is as a source would include it ("decode_mma/kernel.cuh", "lab/merge_splits.cuh"), or
    an absolute path; `instance` is a C++ expression ("decode_mma::decode<...>"). A file in
    `include_dirs` takes the place of the lab's of the same name.

    Raises: ValueError for an unknown header or architecture, CompileError if NVRTC refuses.
    """
    reason = available()
    if reason is not None:
        raise CompileError(f"cannot compile {instance}: {reason}")
    _check_arch(arch)
    macros = [(name, str(value)) for name, value in sorted(defines.items())]
    key = content_key(
        _CACHE_VERSION,
        nvrtc_version(),
        arch,
        instance,
        str(header),
        json.dumps(macros),
        sources_key(_find(header).parent),
        *(_content_of(folder) for folder in include_dirs),
    )
    cubin_path = cache_dir() / "cubin" / f"{key}.cubin"
    compiled = _read(cubin_path)
    if compiled is None:
        folders = [str(folder) for folder in (*include_dirs, INCLUDE, KERNELS)]
        compiled = _compile(str(header), folders, instance=instance, macros=macros, arch=arch)
        _write(cubin_path, compiled)
    return compiled


def sources_key(folder: Path) -> str:
    """Return a hash of the vocabulary and of one kernel's folder: paths inside them and contents.

    The CPU's half of the vocabulary is left out: no GPU compile reads it.
    """
    parts: list[str | bytes] = []
    for root in (INCLUDE / "lab", folder):
        host = root / "host"
        for path in _headers(root):
            if not path.is_relative_to(host):
                parts += [path.relative_to(root).as_posix(), path.read_bytes()]
    return content_key(*parts)


def _content_of(folder: Path) -> str:
    files = _headers(folder)
    return content_key(
        *(part for path in files for part in (str(path.relative_to(folder)), path.read_bytes()))
    )


def _headers(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.suffix in _SUFFIXES)


def _find(header: str | Path) -> Path:
    for root in (KERNELS, INCLUDE):
        if (root / header).is_file():
            return root / header
    raise ValueError(f"header = {str(header)!r}, allowed: a file below {KERNELS} or {INCLUDE}")


def _check_arch(arch: str) -> None:
    from cuda.bindings import nvrtc

    # Below 8.0 there is no asynchronous copy, which every kernel of the lab uses.
    known = [number for number in nvrtc.nvrtcGetSupportedArchs()[1] if number >= 80]
    match = re.fullmatch(r"sm_(\d+)[af]?", arch)
    if match is None or int(match[1]) not in known:
        names = ", ".join(f"sm_{number}" for number in known)
        raise ValueError(f"arch = {arch!r}, allowed: {names}, some with a or f behind")


def _compile(
    header: str, folders: list[str], *, instance: str, macros: list[tuple[str, str]], arch: str
) -> CompiledKernel:
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(
        name=Path(header).name,
        arch=arch,
        std=STANDARD,
        # The CPU build rounds every product and sum by itself; a fused operation is written out.
        fma=False,
        define_macro=macros or None,
        include_path=folders,
        no_source_include=True,
        lineinfo=True,
        ptxas_options=["-v", "--warn-on-spills"],
        # NVRTC's own cache gives machine code back without the report of ptxas.
        no_cache=True,
    )
    log = io.StringIO()
    program = Program(f'#include "{header}"\n', "c++", options)
    try:
        result = program.compile("cubin", name_expressions=(instance,), logs=log)
        cubin, symbol = bytes(result.code), result.symbol_mapping[instance].decode()
    except Exception as error:
        # cuda.core's exception classes are private; the text of theirs is the compiler's log.
        text = str(error).replace("\x00", "").strip()
        message = f"{instance} does not compile for {arch} {_listed(macros)}\n{text}"
        raise CompileError(message) from error
    finally:
        program.close()
    text = log.getvalue().replace("\x00", "").strip()
    report = parse_log(text, symbol=symbol)
    return CompiledKernel(instance, symbol, arch, cubin, report, text)


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


def _read(cubin_path: Path) -> CompiledKernel | None:
    try:
        record = json.loads(cubin_path.with_suffix(".json").read_text())
        cubin = cubin_path.read_bytes()
    except (OSError, ValueError):
        return None
    if hashlib.sha256(cubin).hexdigest() != record.pop("sha256"):
        return None  # two writers met, or a disk filled up: compile again
    report = record.pop("report")
    report["warnings"] = tuple(report["warnings"])
    return CompiledKernel(cubin=cubin, report=ResourceReport(**report), **record)


def _write(cubin_path: Path, compiled: CompiledKernel) -> None:
    record = dataclasses.asdict(compiled)
    del record["cubin"]
    record["sha256"] = hashlib.sha256(compiled.cubin).hexdigest()
    atomic_write(cubin_path, compiled.cubin)
    atomic_write(cubin_path.with_suffix(".json"), json.dumps(record).encode())
