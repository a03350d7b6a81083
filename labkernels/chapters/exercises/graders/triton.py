"""Answers in Triton: the loop's body of the small attention kernel, interpreted."""

import functools
import importlib.metadata
import importlib.util
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from labkernels import hardware
from labkernels.chapters.exercises.compiled import Takes
from labkernels.chapters.exercises.exercise import Exercise
from labkernels.chapters.exercises.graders import attention
from labkernels.chapters.primers import triton_attention
from labkernels.cuda import triton_run
from labkernels.cuda.compiler import triton
from labkernels.cuda.compiler.cache import MUTANTS, atomic_write, cache_dir, content_key
from labkernels.cuda.host.build import HostKernelError

FILE = "your_answer.py"
OUTPUTS = {"out": "fp32", "lse2": "fp32"}
NO_BANKS = (
    "Triton chooses the layout of shared memory while it compiles, and its interpreter has no "
    "shared memory whose addresses could be counted."
)
_REGION = re.compile(r"(?<=# \[lab: update\]\n).*(?=# \[/lab: update\])", re.DOTALL)
GPU = hardware.gpu("h200")
REQUESTS = tuple(request for request in attention.REQUESTS if request.splits == 1)


def run(exercise: Exercise, answer: str) -> dict[str, np.ndarray]:
    """Interpret all requests; the results are named by request.

    Raises: HostKernelError, with the reader's own line where that raised an error.
    """
    try:
        update = _function(answer)
        results = {}
        with np.errstate(all="ignore"):  # an overflow is judged, not warned of
            for request in REQUESTS:
                out, lse2 = triton_attention.attend(request, update)
                results[f"out of {request.name}"] = out
                results[f"lse2 of {request.name}"] = lse2
    except Exception as error:  # a reader's line may raise anything
        raise HostKernelError(_in_readers_words(error)) from error
    return results


def judge(exercise: Exercise, results: dict[str, np.ndarray]) -> list[str]:
    """The verdict on the first request that is wrong."""
    return attention.verdict_on(REQUESTS, results)


def remarks(exercise: Exercise, results: dict[str, np.ndarray]) -> list[str]:
    """The largest share of the error bound that was used."""
    return attention.bounds_used(REQUESTS, results)


def takes(exercise: Exercise, answer: str) -> list[Takes]:
    """What Triton makes of the whole kernel with the answer as its `update`."""
    if (reason := triton.available()) is not None:
        return [Takes("attend", None, None, 0, None, f"no compiler is here: {reason}")]
    module = importlib.util.find_spec(triton_attention.KERNEL)
    own = Path(str(module and module.origin)).read_text(encoding="utf-8")
    text = _REGION.sub(lambda _: answer.strip("\n") + "\n\n\n", own)
    path = cache_dir() / MUTANTS / content_key(text) / FILE
    atomic_write(path, text.encode())
    (made,) = triton.compile_triton([triton_attention.variant(path, arch=GPU.arch)])
    said = f"Triton {importlib.metadata.version('triton')} for {GPU.arch}"
    return [Takes("attend", None, made.registers, made.stack_bytes, made.smem_bytes, said)]


@functools.cache
def _function(answer: str) -> Callable:
    """The reader's `update`, from a file of its own, since Triton reads a function's source."""
    path = cache_dir() / MUTANTS / content_key(answer) / FILE
    atomic_write(path, answer.lstrip("\n").encode())
    spec = importlib.util.spec_from_file_location("your_answer", path)
    module: Any = importlib.util.module_from_spec(spec)
    kernel: Any = triton_run.interpreted(triton_attention.KERNEL)
    module.triton, module.tl = kernel.triton, kernel.tl
    spec.loader.exec_module(module)
    return module.update


def _in_readers_words(error: Exception) -> str:
    """The innermost reason, and the reader's line where one is known."""
    lines = []
    cause: BaseException | None = error
    while cause is not None:
        frames = traceback.extract_tb(cause.__traceback__)
        lines += [frame.lineno for frame in frames if frame.filename.endswith(FILE)]
        if isinstance(cause, SyntaxError) and cause.lineno:
            lines.append(cause.lineno)
        error, cause = cause, cause.__cause__
    where = f"Line {lines[-1]}: " if lines else ""
    said = re.sub(r"\(your_answer\.py, line \d+\)", "", str(error)).strip()
    return f"{where}{type(error).__name__}: {said}"
