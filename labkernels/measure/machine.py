"""What this machine can run and what it cannot, and why: the rows of `labkernels doctor`."""

import platform
import sys
from dataclasses import dataclass
from pathlib import Path

from labkernels import hardware
from labkernels.cuda import compile as nvrtc
from labkernels.cuda import device as cuda_device
from labkernels.cuda import host_compiler, sass
from labkernels.measure import device, peers
from labkernels.records import store

_CPUINFO = Path("/proc/cpuinfo")
_PACKAGES = ("numpy", "torch", "triton", "cuda-core", "cuda-bindings")


@dataclass(frozen=True)
class Check:
    """One thing that a machine may have: whether it does, the detail, and what that means."""

    name: str
    there: bool
    detail: str
    needed: bool = False


def checks() -> list[Check]:
    """Return what this machine has, one check each; a needed one is a must for any kernel."""
    return [
        Check("Python", sys.version_info >= (3, 11), device.host(), needed=True),
        *(_package(name) for name in _PACKAGES),
        _host_compiler(),
        _vector_unit(),
        _nvrtc(),
        _or_reason("disassembler", sass.available(), "cuobjdump is there"),
        _gpu(),
        *_table(),
        _or_reason("FlashInfer", peers.flashinfer_missing(), "can be measured as a peer"),
        _recorded(),
    ]


def abilities(found: list[Check]) -> list[Check]:
    """Return what those checks add up to: what can be run, compiled and recorded here."""
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
    """Whether every needed thing is there and the kernels run somewhere, on a GPU or the CPU."""
    runs = [check.there for check in abilities(found) if check.name.startswith("run on")]
    return any(runs) and all(check.there for check in found if check.needed)


def _line(check: Check, width: int) -> str:
    return f"  {'yes' if check.there else 'no '}  {check.name:<{width}}  {check.detail}"


def _or_reason(name: str, reason: str | None, detail: str) -> Check:
    return Check(name, reason is None, reason or detail)


def _package(name: str) -> Check:
    found = device.version(name)
    return Check(name, bool(found), found or "not installed", needed=name in ("numpy", "torch"))


def _host_compiler() -> Check:
    try:
        compiler = host_compiler.compiler()
    except host_compiler.CompilerMissing as error:
        return Check("C++ compiler", False, str(error))
    return Check("C++ compiler", True, compiler.version.partition("\n")[0])


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
    reason = nvrtc.available()
    return _or_reason("NVRTC", reason, "" if reason else f"NVRTC {nvrtc.nvrtc_version()}")


def _gpu() -> Check:
    gpu, reason = cuda_device.live(), cuda_device.available()
    if reason:
        return Check("GPU", False, f"{reason}; the CPU build will be used")
    return Check("GPU", True, f"{gpu.name}, {gpu.arch}, CUDA {gpu.cuda_version}")


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
    path = store.DATA_DIR / "decode_tensor_cores.csv"
    rows = store.newest(store.read(path)) if path.exists() else []
    if not rows:
        return Check("recorded runs", False, f"no rows in {path.name}")
    row = rows[0]
    where = f"{row['gpu']}, {row['started_utc']}, commit {row['commit']}"
    return Check("recorded runs", True, f"newest: {where}")
