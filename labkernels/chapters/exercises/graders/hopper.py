"""Grades answers that are a phase of a real Hopper kernel, by float64 and an error bound."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labkernels import hardware
from labkernels.chapters.exercises.compiled import Takes, by_nvrtc
from labkernels.chapters.exercises.exercise import Exercise
from labkernels.chapters.exercises.graders import attention
from labkernels.chapters.exercises.graders.attention import alike, bounds_used, is_wrong, verdict_on
from labkernels.chapters.exercises.overlay import folder_with
from labkernels.chapters.primers import machine
from labkernels.cuda import launch
from labkernels.cuda.compiler.specialization import Specialization
from labkernels.cuda.host import banks
from labkernels.kernels.mla.inputs import MlaInputs, mla_inputs
from labkernels.kernels.mla.workload import MlaDecode
from labkernels.kernels.prefill.inputs import PrefillInputs, prefill_inputs
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.random_inputs import ExactNormal
from labkernels.kernels.registry import discover
from labkernels.numerics.truth.problem import Problem
from labkernels.policy import NumericPolicy

GPU, ON_GPU = "h200", "sm_90"
OUTPUTS = {"out": "bf16", "lse2": "fp32"}
_NO_ACCESS = "your lines touch shared memory by no lane, so that none is counted."
NO_BANKS = dict.fromkeys(("mask", "ask for boxes", "overlap"), _NO_ACCESS)
# Changes O after the answer's lines. While O += P V is in flight on the CPU machine, O is NaN, and
# the wait for the product overwrites it: the change then has no effect.
_TURN = ["wait", "begin_scores", "begin_output", "pass"]
_TOUCHES_O = "      o[0] = o[0] + 1.f;"


@dataclass(frozen=True)
class Request:
    """A workload on which an answer is tried, and its description for the reader."""

    name: str
    kernel: str
    workload: MlaDecode | Prefill

    def inputs(self, device: str = "cpu") -> MlaInputs | PrefillInputs:
        """Draw inputs, the same on every device; pages lie in random order."""
        inputs = mla_inputs if isinstance(self.workload, MlaDecode) else prefill_inputs
        return inputs(self.workload, ExactNormal(7, device))

    def problem(self) -> Problem:
        """Return the same inputs as a float64 problem."""
        return self.inputs().problem()

    @property
    def layout(self) -> str:
        """How the keys lie."""
        return "paged" if self.workload.page_size else "ragged"

    @property
    def head_dim(self) -> int:
        """The channels of a key."""
        w = self.workload
        return w.head_dim if isinstance(w, Prefill) else w.latent_dim + w.rope_dim

    @property
    def policy(self) -> NumericPolicy:
        """Where the kernel rounds."""
        return discover()[self.kernel].policies[0].of("bf16")


def _mla(name: str, kv_len: int, q_len: int = 1) -> Request:
    workload = MlaDecode((kv_len,), q_heads=8, q_len=q_len, page_size=64, dtype="bf16")
    return Request(name, "mla_wgmma", workload)


def _prefill(name: str, q_lens, kv_lens, page_size, causal: bool, head_dim: int = 64) -> Request:
    heads = {"q_heads": 4, "kv_heads": 2, "head_dim": head_dim}
    workload = Prefill(q_lens, kv_lens, **heads, dtype="bf16", causal=causal, page_size=page_size)
    return Request(name, "prefill_wgmma", workload)


REQUESTS = {
    "mla": (
        _mla("three full KV tiles", 192),
        _mla("150 keys, so that the last KV tile is ragged", 150),
        _mla("4 query tokens under a causal mask", 130, q_len=4),
        _mla("4 query tokens and 3 keys", 3, q_len=4),
    ),
    "prefill": (
        _prefill("keys of two requests, in a row", (9, 40), (70, 300), None, causal=False),
        _prefill("one request under a causal mask", (40,), (600,), None, causal=True),
        _prefill("pages of 16 keys under a causal mask", (40,), (600,), 16, causal=True),
        _prefill("pages of 24 keys, which hold three boxes of 8", (9,), (300,), 24, causal=False),
        _prefill("128 channels, keys in a row", (9, 40), (70, 300), None, False, head_dim=128),
    ),
}


def run(exercise: Exercise, answer: str) -> dict[str, np.ndarray]:
    """Run all requests; as `attention.of_each`."""
    folder = folder_with(*exercise.place, answer)
    counts = banks.listed() is not None
    requests = _requests(exercise)[: 1 if counts else None]
    results = attention.of_each(requests, lambda request: _attend(request, folder))
    if exercise.place[1] == "overlap" and not counts and not machine.uses_gpu():
        first = _requests(exercise)[0]
        out, _ = _attend(first, folder_with(*exercise.place, f"{answer.rstrip()}\n{_TOUCHES_O}"))
        results["overlaps"] = np.array(np.array_equal(out, results[f"out of {first.name}"]))
        code = re.sub(r"//[^\n]*", "", answer)
        results["turn"] = np.array(re.findall(r"\b(begin_\w+|wait|pass)\(", code))
    return results


def acts_like(exercise: Exercise, source: str, results: dict[str, np.ndarray]) -> bool:
    """Return whether another source has these results, beginning with a request that is wrong.

    A variant compiles for a second, and sources that differ do so in the first request that counts.
    """
    wrong = [request for request in _requests(exercise) if is_wrong(request, results)]
    if not wrong:  # but when products run, or how often
        return alike(run(exercise, source), results)
    folder = folder_with(*exercise.place, source)
    for request in dict.fromkeys((*wrong, *_requests(exercise))):
        found = attention.of_each((request,), lambda each: _attend(each, folder))
        if not alike(found, {name: results[name] for name in found}):
            return False
    return True


def judge(exercise: Exercise, results: dict[str, np.ndarray]) -> Iterator[str]:
    """Yield the number of wrong requests, and the verdict on the first one."""
    lines = verdict_on(_requests(exercise), results)
    if (first := next(lines, None)) is not None:
        yield first
        yield from lines
    elif not results.get("overlaps", True):
        yield "O += P V has ended before your lines do, so that it runs beside no softmax."
    elif list(results.get("turn", _TURN)) != _TURN:
        yield f"Each product starts once, and during the turn: {', '.join(_TURN)}."


def remarks(exercise: Exercise, results: dict[str, np.ndarray]) -> list[str]:
    """Return the largest share of the error bound that was used."""
    return [*bounds_used(_requests(exercise), results), "No race, no stray access."]


def takes(exercise: Exercise, answer: str) -> list[Takes]:
    """Return what the variant of the first request takes: NVRTC needs six seconds for one."""
    folder, request = folder_with(*exercise.place, answer), _requests(exercise)[0]
    with launch.collected() as launches:
        _attend(request, folder)
    made = launches[0].launch.specialization
    return [by_nvrtc(_title(request), made, _predicted(request, folder, made))]


def _title(request: Request) -> str:
    return f"{request.kernel}, {request.layout}"


def _predicted(request: Request, folder: Path, made: Specialization) -> int:
    """Return the registers that the ledger of the variant predicts."""
    kernel: Any = discover()[request.kernel].with_overlay(folder)
    sizes = {"dtype": "bf16", "head_dim": request.head_dim, "layout": request.layout}
    variants = kernel.instances(kernel.shape(**sizes))
    variant = next(each for each in variants if kernel.specialization(each) == made)
    return kernel.predicted_registers(variant, hardware.gpu(GPU)).registers


def _requests(exercise: Exercise) -> tuple[Request, ...]:
    """Return the requests of the operation in whose folder the answer's place is.

    Each variant is compiled for seconds: an answer gets the variants in which its lines differ.
    """
    found = REQUESTS[exercise.place[0].partition("/")[0]]
    return found[
        {"overlap": slice(2), "ask for boxes": slice(2, None)}.get(exercise.place[1], slice(None))
    ]


def _attend(request: Request, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    from labkernels import ops

    on_gpu, causal = machine.uses_gpu(), {}
    case = request.inputs("cuda" if on_gpu else "cpu")
    verb = ops.mla_decode
    if isinstance(request.workload, Prefill):
        verb, causal = ops.prefill, {"causal": request.workload.causal}
    kernel = discover()[request.kernel].with_overlay(folder)
    how = {"kernel": kernel} if on_gpu else {"kernel": kernel, "target": GPU, "checks": True}
    step = verb(*case.arguments, scale=case.scale, **how, **causal)
    return step.out.double().cpu().numpy(), step.lse2.double().cpu().numpy()
