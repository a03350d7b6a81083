"""What a GPU's compiler makes of an answer: registers per thread, and bytes of shared memory."""

from collections.abc import Iterable
from dataclasses import dataclass

from labkernels import hardware
from labkernels.chapters.primers.machine import SmallKernel
from labkernels.cuda.compiler import nvrtc
from labkernels.cuda.compiler.specialization import Specialization

ARCH = hardware.gpu("h200").compile_arch


@dataclass(frozen=True)
class Takes:
    """The resources of a kernel with an answer in it.

    ledger: the registers per thread by the kernel's ledger, None if it has none. registers: by the
    compiler, None if it is not here. spill_bytes: per thread. smem_bytes: per block, None if it is
    unknown. compiler: its name, or why it says nothing.
    """

    kernel: str
    ledger: int | None
    registers: int | None
    spill_bytes: int
    smem_bytes: int | None
    compiler: str


def small(kernels: Iterable[SmallKernel], folders: tuple) -> list[Takes]:
    """Return what the primers' kernels take, with the sources of these folders."""
    return [
        by_nvrtc(kernel.name, kernel.made(folders), kernel.registers.total) for kernel in kernels
    ]


def by_nvrtc(kernel: str, made: Specialization, ledger: int) -> Takes:
    """Return what a CUDA kernel takes, compiled by NVRTC if it is here."""
    if (reason := nvrtc.available()) is not None:
        return Takes(kernel, ledger, None, 0, made.smem_bytes, f"no compiler is here: {reason}")
    try:
        report = nvrtc.compiled(made, ARCH).report
    except nvrtc.CompileError as error:
        said = str(error).partition("\n")[0]
        return Takes(kernel, ledger, None, 0, made.smem_bytes, f"NVRTC refuses it: {said}")
    return Takes(
        kernel,
        ledger,
        report.registers,
        report.spill_store_bytes + report.spill_load_bytes,
        made.smem_bytes + report.static_smem_bytes,
        f"NVRTC {nvrtc.nvrtc_version()} for {ARCH}",
    )
