"""Grades answers in Triton: the loop's body of small attention, on the GPU or interpreted."""

import ast
import dataclasses
import functools
import importlib.metadata
import importlib.util
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from labkernels import hardware
from labkernels.chapters.exercises.compiled import Takes
from labkernels.chapters.exercises.exercise import Exercise
from labkernels.chapters.exercises.graders import attention
from labkernels.chapters.primers import triton_attention
from labkernels.cuda.compiler import cache, sass, triton
from labkernels.cuda.compiler.triton import TritonCompiled
from labkernels.cuda.host.build import HostKernelError

FILE = "your_answer.py"
OUTPUTS = {"out": "fp32", "lse2": "fp32"}
NO_BANKS = {
    "": "Triton chooses the layout of shared memory while it compiles, and its interpreter has no "
    "shared memory whose addresses could be counted."
}
_REGION = re.compile(r"(?<=# \[lab: update\]\n).*(?=# \[/lab: update\])", re.DOTALL)
_PYTHON = {"tl", "range", "float", "int", "bool", "min", "max", "abs", "len"}
# What `tl` has for its own use, by which Python that is interpreted would get at everything.
_MODULES = {"core", "standard", "semantic", "random", "target_info", "extra"}
GPU = hardware.gpu("h200")
REQUESTS = tuple(dataclasses.replace(each, splits=1, first_page=0) for each in attention.REQUESTS)


def run(exercise: Exercise, answer: str) -> dict[str, np.ndarray]:
    """Run all requests; the results are named by request.

    Raises: HostKernelError, with the reader's own line where that raised an error.
    """
    if why := _no_kernel(answer):
        raise HostKernelError(why)
    try:
        kernel = _module(_whole(exercise, answer))
        with np.errstate(all="ignore"):  # an overflow is judged, not warned of
            return attention.of_each(REQUESTS, lambda each: triton_attention.attend(each, kernel))
    except Exception as error:  # a reader's line may raise anything
        raise HostKernelError(_in_readers_words(error, answer)) from error


def judge(exercise: Exercise, results: dict[str, np.ndarray]) -> Iterator[str]:
    """Yield the number of wrong requests, and the verdict on the first one."""
    return attention.verdict_on(REQUESTS, results)


def remarks(exercise: Exercise, results: dict[str, np.ndarray]) -> list[str]:
    """Return the largest share of the error bound that was used."""
    unseen = triton.available()
    return [
        *attention.bounds_used(REQUESTS, results),
        *([f"Whether tl.dot computes in fp32 was not seen: {unseen}"] if unseen else []),
    ]


def takes(exercise: Exercise, answer: str) -> list[Takes]:
    """Return what Triton makes of the whole kernel with the answer as its `update`."""
    if (reason := triton.available()) is not None:
        return [Takes("attend", None, None, 0, None, f"no compiler is here: {reason}")]
    made = _compiled(_whole(exercise, answer))
    said = f"Triton {importlib.metadata.version('triton')} for {GPU.arch}"
    return [Takes("attend", None, made.registers, made.stack_bytes, made.smem_bytes, said)]


def judge_compiled(exercise: Exercise, answer: str) -> Iterator[str]:
    """Yield what the compiled kernel does wrong, which the interpreter does not see."""
    if triton.available() is not None:
        return
    try:
        made = _compiled(_whole(exercise, answer))
    except RuntimeError as error:
        yield f"Triton interprets your answer, but does not compile it: {_last_words(str(error))}"
        return
    if {"HMMA", "HGMMA"} & sass.instruction_mix(made.cubin).keys():
        yield 'The compiled kernel rounds to tf32: tl.dot needs input_precision="ieee".'
    if made.stack_bytes:
        yield f"The compiled kernel spills {made.stack_bytes} bytes of registers per thread."


def _no_kernel(answer: str) -> str:
    """Return why a text is more than functions of Triton. Such a text could reach the grader."""
    try:
        tree = ast.parse(answer)
    except SyntaxError:
        return ""  # Python says where, when it reads the module
    for part in tree.body:
        constant = isinstance(getattr(part, "value", None), ast.Constant)  # a number or a docstring
        marks = [ast.unparse(each) for each in getattr(part, "decorator_list", ())]
        if not constant and (not isinstance(part, ast.FunctionDef) or marks != ["triton.jit"]):
            return f"Line {part.lineno}: an answer in Triton has functions under @triton.jit alone."
    own = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    own |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    own |= {node.id for node in ast.walk(tree) if _is_stored(node) and isinstance(node, ast.Name)}
    lines = [line for part in tree.body for line in getattr(part, "body", ())]
    for node in (node for line in lines for node in ast.walk(line)):
        match node:
            case ast.Name(id=name) if name not in own | _PYTHON:
                why = f"the name {name} is unknown in a kernel"
            case ast.Attribute(attr=name) if name.startswith("_") or _is_stored(node):
                why = f"{ast.unparse(node)} is nothing that a kernel may touch"
            case ast.Attribute(attr=name) if name in _MODULES:
                why = f"{ast.unparse(node)} is no function of Triton's language"
            case ast.Import() | ast.ImportFrom() | ast.Global() | ast.Nonlocal() | ast.ClassDef():
                why = "a kernel imports and declares nothing"
            case _:
                continue
        return f"Line {node.lineno}: {why}."
    return ""


def _is_stored(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Store)


def _last_words(message: str) -> str:
    """Return what Triton's compiler says last, and the code that it shows before."""
    return " ".join(message.partition("errors.")[2].partition("\n\n")[0].split()) or message


def _whole(exercise: Exercise, answer: str) -> str:
    """Return the answer and the lines by which the kernel calls it."""
    return f"{answer.rstrip()}\n\n{exercise.adapter}"


def own_lines() -> str:
    """Return the kernel's own `update`."""
    return _REGION.findall(_own_text())[0]


def _compiled(update: str) -> TritonCompiled:
    (made,) = triton.compile_triton([triton_attention.variant(_source(update), arch=GPU.arch)])
    return made


def _source(update: str) -> Path:
    """Write the whole kernel with these lines for its `update`: Triton reads source files."""
    text = _REGION.sub(lambda _: update.rstrip("\n") + "\n\n\n", _own_text())
    return cache.overlay({FILE: text}) / FILE


def _own_text() -> str:
    module = importlib.util.find_spec(triton_attention.KERNEL)
    return Path(str(module and module.origin)).read_text(encoding="utf-8")


@functools.cache
def _module(update: str) -> ModuleType:
    triton_attention.load()  # decides whether Triton compiles or interprets
    spec: Any = importlib.util.spec_from_file_location("your_answer", _source(update))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _in_readers_words(error: Exception, answer: str) -> str:
    """Return the innermost reason, and the reader's line where one is known."""
    above = _own_text()[: _start()].count("\n")
    lines = []
    cause: BaseException | None = error
    while cause is not None:
        frames = traceback.extract_tb(cause.__traceback__)
        lines += [frame.lineno for frame in frames if frame.filename.endswith(FILE)]
        if isinstance(cause, SyntaxError):
            lines.append(cause.lineno)
        error, cause = cause, cause.__cause__
    of_reader = range(1, answer.rstrip("\n").count("\n") + 2)
    known = [line - above for line in lines if line is not None and line - above in of_reader]
    where = f"Line {known[-1]}: " if known else ""
    said = re.sub(r"\(your_answer\.py, line \d+\)", "", str(error)).strip()
    return f"{where}{type(error).__name__}: {said}"


def _start() -> int:
    region = _REGION.search(_own_text())
    return region.start() if region else 0
