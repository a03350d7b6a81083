"""`labkernels doctor`: what this machine can run and what it cannot, and why."""

import argparse
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

from labkernels import hardware
from labkernels.cli.options import DONE, FAILED
from labkernels.cuda.compiler import cache, nvrtc, sass
from labkernels.cuda.gpu import device as cuda_device
from labkernels.cuda.host import compiler as host_compiler
from labkernels.experiments import durations
from labkernels.measure import telemetry

HELP = "what this machine can run"
DESCRIPTION = """\
Say what this machine can run and what it cannot, and why: compilers, their cache,
vector unit, torch, Triton, GPU, hardware table against the driver, recorded runs.
Both compilers compile a small kernel, which must then run and be right.
"""

_CPUINFO = Path("/proc/cpuinfo")
_PACKAGES = ("numpy", "torch", "triton", "cuda-bindings", "pyarrow")


def add_options(sub: argparse.ArgumentParser) -> None:
    """Add nothing: it takes no options."""


def run(options: argparse.Namespace) -> int:
    """Print what this machine has and can do; the exit code says whether kernels run here."""
    del options  # it takes none
    found = checks()
    print(text(found))
    return DONE if works(found) else FAILED


@dataclass(frozen=True)
class Check:
    """One feature of a machine: whether it is present, a detail, and whether kernels need it."""

    name: str
    there: bool
    detail: str
    needed: bool = False


def checks() -> list[Check]:
    """Return one check per feature of this machine; no kernel runs without a needed one."""
    return [
        Check("Python", sys.version_info >= (3, 11), telemetry.host(), needed=True),
        *(_package(name) for name in _PACKAGES),
        _or_reason("compile cache", cache.why_not_writable(), "can be written"),
        _host_compiler(),
        _vector_unit(),
        _nvrtc(),
        _or_reason("disassembler", sass.available(), "cuobjdump is there"),
        _gpu(),
        *_table(),
        _or_reason("FlashInfer", _no_flashinfer(), "can be measured as a peer"),
        _recorded(),
    ]


def _no_flashinfer() -> str | None:
    from labkernels.measure.peers import peer

    return peer.not_installed("flashinfer", "flashinfer-python")


def abilities(found: list[Check]) -> list[Check]:
    """Return what the checks mean: what can be run, compiled and recorded here."""
    has = {check.name: check for check in found}
    gpu, compiler, compiles = has["GPU"], has["C++ compiler"], has["NVRTC"]
    on_gpu = gpu.there and compiles.there
    why_not = "the GPU above is why" if not gpu.there else "NVRTC above is why"
    everywhere = "every CUDA kernel, bit for bit as on the GPU"
    return [
        Check("run on the GPU", on_gpu, gpu.detail if on_gpu else why_not),
        Check("run on the CPU", compiler.there, everywhere if compiler.there else compiler.detail),
        Check(
            "compile for " + ", ".join(hardware.ARCHS),
            compiles.there,
            compiles.detail
            if compiles.there
            else "NVRTC above is why; budgets show recorded compiler reports",
        ),
        Check("record measurements", on_gpu, "labkernels record --all" if on_gpu else why_not),
    ]


def text(found: list[Check]) -> str:
    """Return checks and abilities as aligned lines."""
    able = abilities(found)
    width = max(len(check.name) for check in (*found, *able))
    lines = ["This machine has"]
    lines += [_line(check, width) for check in found]
    lines += ["", "This machine can"]
    lines += [_line(check, width) for check in able]
    return "\n".join(lines)


def works(found: list[Check]) -> bool:
    """Return whether every needed feature is present and kernels run, on a GPU or the CPU."""
    runs = [check.there for check in abilities(found) if check.name.startswith("run on")]
    return any(runs) and all(check.there for check in found if check.needed)


def _line(check: Check, width: int) -> str:
    return f"  {'yes' if check.there else 'no '}  {check.name:<{width}}  {check.detail}"


def _or_reason(name: str, reason: str | None, detail: str) -> Check:
    return Check(name, reason is None, reason or detail)


def _package(name: str) -> Check:
    found = telemetry.version(name)
    return Check(name, bool(found), found or "not installed", needed=name in ("numpy", "torch"))


def _host_compiler() -> Check:
    from labkernels.cuda import trial

    try:
        compiler = host_compiler.compiler()
    except host_compiler.CompilerMissing as error:
        return Check("C++ compiler", False, str(error))
    version = compiler.version.partition("\n")[0]
    return _tried("C++ compiler", version, trial.why_not_on_cpu())


def _vector_unit() -> Check:
    machine = platform.machine()
    if machine not in ("x86_64", "AMD64"):
        return Check("vector unit", True, f"{machine} has its own")
    try:
        flags = _CPUINFO.read_text(encoding="utf-8")
    except OSError:
        return Check("vector unit", False, "AVX2 and FMA unknown: the CPU build may be slow")
    missing = [name for name in ("avx2", "fma") if f" {name} " not in flags]
    if missing:
        return Check("vector unit", False, f"no {' and '.join(missing)}: the CPU build is slow")
    return Check("vector unit", True, "AVX2 and FMA")


def _nvrtc() -> Check:
    from labkernels.cuda import trial

    reason = nvrtc.available()
    if reason:
        return Check("NVRTC", False, reason)
    failures = {arch: trial.why_not_compiled(arch) for arch in hardware.ARCHS}
    reasons = [f"{arch}: {why}" for arch, why in failures.items() if why]
    return _tried("NVRTC", f"NVRTC {nvrtc.nvrtc_version()}", reasons[0] if reasons else None)


def _gpu() -> Check:
    from labkernels.cuda import trial

    gpu, reason = cuda_device.live(), cuda_device.available()
    if reason:
        return Check("GPU", False, f"{reason}; the CPU build will be used")
    described = f"{gpu.name}, {gpu.arch}, CUDA {gpu.cuda_version}"
    missing = nvrtc.available()  # NVRTC has a separate line
    arch = cuda_device.planning_gpu().compile_arch
    return _tried("GPU", described, None if missing else trial.why_not_on_gpu(arch))


def _tried(name: str, what: str, failure: str | None) -> Check:
    return Check(name, failure is None, what if failure is None else f"{what}: {failure}")


def _table() -> list[Check]:
    gpu = cuda_device.live()
    if gpu is None:
        return []
    entry = cuda_device.matching_gpu(gpu)
    if entry is None:
        known = ", ".join(hardware.GPUS)
        return [Check("hardware table", False, f"has no {gpu.name}; it has {known}")]
    differing = cuda_device.compare(entry, gpu)
    words = [f"{field}: table {ours}, driver {theirs}" for field, ours, theirs in differing]
    same = f"agrees with the driver about {entry.name}"
    return [Check("hardware table", not words, "; ".join(words) or same)]


def _recorded() -> Check:
    try:
        rows = durations.read()
    except ValueError as error:
        return Check("recorded runs", False, str(error))
    if not rows:
        return Check("recorded runs", False, f"no rows in {durations.DATA_FILE}")
    row = max(rows, key=lambda row: row["started_utc"])
    where = f"{row['device']}, {row['started_utc']}, commit {row['commit']}"
    return Check("recorded runs", True, f"newest: {row['experiment']} on {where}")
