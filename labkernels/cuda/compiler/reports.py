"""The compiler's reports on many kernels, recorded for the machines that have no compiler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from labkernels.cuda.compiler.nvrtc import compile_kernel, nvrtc_version
from labkernels.records import store

RECORDED = store.path_of("compiler_reports")


@dataclass(frozen=True)
class Variant:
    """One instance of a kernel, with its names in data/ and for the compiler.

    smem_bytes is the dynamic shared memory of a block. defines: its macros.
    """

    kernel: str
    tile: str
    head_dim: int
    group: int
    dtype: str
    kv: str
    header: str | Path
    instance: str
    smem_bytes: int
    defines: Mapping[str, int]


def compile_rows(
    variants: Iterable[Variant], *, archs: Iterable[str], started_utc: str
) -> list[store.Row]:
    """Compile every variant for every architecture; rows of the table compiler_reports.

    Raises: CompileError for the first variant that does not compile.
    """
    archs = tuple(archs)
    compiler = f"NVRTC {nvrtc_version()}"
    return [
        {**_row(variant, arch), "compiler": compiler, "started_utc": started_utc}
        for variant in variants
        for arch in archs
    ]


def _identity(variant: Variant, arch: str) -> store.Row:
    return {
        "kernel": variant.kernel,
        "tile": variant.tile,
        "head_dim": variant.head_dim,
        "group": variant.group,
        "dtype": variant.dtype,
        "kv": variant.kv,
        "arch": arch,
        "entry": variant.instance.partition("<")[0],
    }


def _row(variant: Variant, arch: str) -> store.Row:
    compiled = compile_kernel(
        variant.header, instance=variant.instance, defines=variant.defines, arch=arch
    )
    report = compiled.report
    return {
        **_identity(variant, arch),
        "registers": report.registers,
        "spill_bytes": report.spill_store_bytes,
        "smem_bytes": variant.smem_bytes + report.static_smem_bytes,
    }


def recorded(variant: Variant, *, arch: str, path: Path = RECORDED) -> store.Row | None:
    """Return the recorded report of a variant, or None; needs no compiler.

    Raises: ValueError if a row of the file does not fit the table.
    """
    if not store.parts(path):
        return None
    wanted = _identity(variant, arch)
    found = [row for row in store.read(path) if wanted.items() <= row.items()]
    return found[-1] if found else None
