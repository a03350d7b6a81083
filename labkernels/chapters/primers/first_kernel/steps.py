"""The eight steps of a first kernel: what each must give, and what is said if it does not."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from labkernels.chapters.primers.first_kernel import standard_cuda
from labkernels.cuda.host.build import HostKernelError

if TYPE_CHECKING:
    import pandas as pd

_LINE_MAX = 400  # a compiler's first complaint


@dataclass(frozen=True)
class Step:
    """A kernel to write: its launch, its inputs, the array that it must fill, and with what.

    uses: a word that the kernel must contain. asks: which counts of its accesses must be right,
    "sectors" or "lanes".
    """

    call: str
    inputs: Mapping[str, np.ndarray | int]
    output: str
    expected: np.ndarray
    passed: str
    uses: str = ""
    asks: str = ""


@dataclass(frozen=True)
class Found:
    """The answer to an attempt: whether it passed, and why."""

    passed: bool
    words: str

    def __repr__(self) -> str:
        return f"{'Passed' if self.passed else 'Not yet'}: {self.words}"


def _sectors(counts: pd.DataFrame) -> str:
    wide = counts[~(counts.sectors <= 4)]
    rows = (
        f"line {r.line} {r.what} {r.bytes:.0f} bytes per warp, and memory moves {r.sectors:.0f} "
        f"sectors of 32 bytes, which are {32 * r.sectors:.0f} bytes"
        for r in wide.itertuples()
    )
    return "; ".join(rows)


def _lanes(counts: pd.DataFrame) -> str:
    part = counts[~(counts.lanes >= 32)]
    rows = (f"line {r.line} {r.what} for {r.lanes:.0f} of 32 lanes" for r in part.itertuples())
    return "; ".join(rows)


def _steps() -> dict[str, Step]:
    x = (np.arange(1024, dtype=np.float32) * 7) % 31
    i, (row, column) = np.arange(256, dtype=np.int32), np.indices((6, 20), dtype=np.int32)
    few, half, some = x[:200].copy(), x[:128].copy(), x[:256].copy()
    left = half - np.concatenate([[0], half[:63], [0], half[64:127]])
    of_each: dict[str, tuple] = {
        "index": ({}, i),
        "guard": ({"x": few, "y": few, "n": 200}, 2 * few),
        "two_dimensions": ({"rows": 6, "columns": 20}, (10 * row + column).ravel()),
        "shared_memory": ({"x": half}, half.reshape(2, 64)[:, ::-1].ravel()),
        "barrier": ({"x": half}, left),
        "reduction": ({"x": half}, half.reshape(1, 128).sum(axis=1)),
        "coalescing": ({"x": x}, x),
        "divergence": ({"x": some}, np.where(i % 2 == 0, some * some, -some)),
    }
    told = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {
        name: Step(inputs=of_each[name][0], expected=of_each[name][1], **given)
        for name, given in told.items()
    }


STEPS = _steps()
_ASKS = {"": lambda counts: "", "sectors": _sectors, "lanes": _lanes}


def check(name: str, source: str) -> Found:
    """Run an attempt at a step on the CPU machine, and say that it passed, or what is wrong.

    Raises: ValueError for the name of no step.
    """
    if name not in STEPS:
        raise ValueError(f"name is {name!r}; allowed: {', '.join(STEPS)}")
    step = STEPS[name]
    kind = np.int32 if step.expected.dtype.kind == "i" else np.float32
    nowhere = np.nan if kind is np.float32 else np.iinfo(np.int32).min
    out = np.full(step.expected.shape, nowhere, kind)
    given = {**step.inputs, step.output: out}
    counts = None
    try:
        if step.asks:
            counts = standard_cuda.counted(source, step.call, **given)
        else:
            standard_cuda.launch(source, step.call, **given)
    except (ValueError, HostKernelError) as error:
        return Found(False, _in_plain_words(str(error)))
    unwritten = np.isnan(out) if kind is np.float32 else out == nowhere
    if unwritten.any():
        return Found(False, f"no thread wrote {step.output}[{int(np.argmax(unwritten))}].")
    wrong = ~(out == step.expected)
    if wrong.any():
        at = int(np.argmax(wrong))
        said = f"{step.output}[{at}] is {out[at]:g}, but should be {step.expected[at]:g}."
        return Found(False, said)
    if step.uses not in re.sub(r"//[^\n]*|/\*.*?\*/", "", source, flags=re.DOTALL):
        return Found(False, f"the numbers are right, but this step is to use {step.uses}.")
    if complaint := _ASKS[step.asks](counts):
        return Found(False, f"the numbers are right, but {complaint}.")
    return Found(True, step.passed)


def _in_plain_words(error: str) -> str:
    """Return the CPU machine's message in the words of standard CUDA."""
    text = error.removeprefix("yours::launched: ").replace("labkernels/", "")
    if "does not compile" in text:
        found = re.search(r"your_kernel\.cu:(\d+):\d+: error: (.*)", text)
        return f"line {found[1]} does not compile: {found[2]}" if found else text[:_LINE_MAX]
    for word, plain in (("sync_block", "__syncthreads"), ("load_global", "a load")):
        text = text.replace(word, plain)
    text = re.sub(r"your_kernel\.cu:(\d+)", r"line \1", text.replace("store_global", "a store"))
    text = re.sub(r"shared byte (\d+)", lambda m: f"number {int(m[1]) // 4} of shared memory", text)
    out = r"byte (-?\d+) of (\w+), which has (\d+) bytes"
    return re.sub(
        out, lambda m: f"{m[2]}[{int(m[1]) // 4}], but {m[2]} has {int(m[3]) // 4} elements", text
    )
