"""What a GPU's compiler makes of an answer: registers per thread, and bytes of shared memory."""

import functools
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from labkernels import hardware
from labkernels.chapters.exercises.report import ANSWER
from labkernels.chapters.primers.machine import SmallKernel
from labkernels.cuda.compiler import cache, nvrtc, sources
from labkernels.cuda.compiler.specialization import Specialization

ARCH = hardware.gpu("h200").compile_arch
_ERROR = re.compile(rf"{re.escape(ANSWER)}\((\d+)\): error[^:]*: ([^\n]*)")
# Two warnings are of undefined behaviour: an index behind an array's end, an unset variable.
_UNDEFINED = re.compile(rf"{re.escape(ANSWER)}\((\d+)\): warning #(?:175|549)-D: ([^\n]*)")
_LUCK = "What such code does is undefined, even where its numbers are right."


class RefusedForGpus(RuntimeError):
    """A GPU's compiler refuses an answer that the CPU machine runs; the text names the line."""


@dataclass(frozen=True)
class Takes:
    """The resources of a kernel with an answer in it.

    ledger: the registers per thread by the kernel's ledger, None if it has none. registers: by the
    compiler, None if it is not here. spill_bytes: per thread. smem_bytes: per block, None if it is
    unknown. compiler: its name, or why it says nothing. made_from: a hash of sources and compiler.
    """

    kernel: str
    ledger: int | None
    registers: int | None
    spill_bytes: int
    smem_bytes: int | None
    compiler: str
    made_from: str = ""


@functools.cache
def recorded() -> dict[str, list]:
    """Return what is known of references, since a first answer waits for their compiles.

    It is by a hash of what each was made from, so that nothing is known of a changed reference.
    """
    return tomllib.loads(Path(__file__).with_name("references.toml").read_text())


def small(kernels: Iterable[SmallKernel], folders: tuple) -> list[Takes]:
    """Return what the primers' kernels take, with the sources of these folders."""
    return [
        by_nvrtc(kernel.name, kernel.made(folders), kernel.registers.total) for kernel in kernels
    ]


def by_nvrtc(kernel: str, made: Specialization, ledger: int) -> Takes:
    """Return what a CUDA kernel takes, compiled by NVRTC if it is here.

    Raises: RefusedForGpus for an answer that is no CUDA, or whose behaviour is undefined.
    """
    if (reason := nvrtc.available()) is not None:
        return Takes(kernel, ledger, None, 0, made.smem_bytes, f"no compiler is here: {reason}")
    said = f"NVRTC {nvrtc.nvrtc_version()} for {ARCH}"
    folders = (*made.include_dirs, nvrtc.INCLUDE, nvrtc.KERNELS)
    files = sources.parts(nvrtc.device_sources(made.header, folders))
    made_from = cache.content_key(said, made.instance, str(made.defines), *files)
    resources = recorded().get(made_from) or _compiled(made)
    return Takes(kernel, ledger, *resources, said, made_from)


def _compiled(made: Specialization) -> list[int]:
    """Return the registers, the bytes of them that spill, and the bytes of shared memory."""
    try:
        found = nvrtc.compiled(made, ARCH)
    except nvrtc.CompileError as error:
        said = _where(_ERROR, str(error)) or str(error).partition("\n")[0]
        raise RefusedForGpus(f"A GPU's compiler refuses {said}") from error
    if said := _where(_UNDEFINED, found.log):
        raise RefusedForGpus(f"A GPU's compiler warns of {said}. {_LUCK}")
    spills = found.report.spill_store_bytes + found.report.spill_load_bytes
    return [found.report.registers, spills, made.smem_bytes + found.report.static_smem_bytes]


def _where(pattern: re.Pattern[str], log: str) -> str:
    """Return the reader's first line of a log that fits and what is said of it, "" for none."""
    found = pattern.search(log)
    if found is None:
        return ""
    hint = "; LAB_DEVICE is the lab's annotation" if "annotations" in found[2] else ""
    return f"line {found[1]}: {found[2].partition('. ')[0]}{hint}"
