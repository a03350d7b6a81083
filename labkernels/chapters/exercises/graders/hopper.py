"""Answers that are a phase of a real Hopper kernel, against float64 and its error bound."""

from dataclasses import dataclass

import numpy as np

from labkernels.chapters.exercises.exercise import Exercise
from labkernels.chapters.exercises.graders.attention import bounds_used, verdict_on
from labkernels.chapters.exercises.overlay import folder_with
from labkernels.cuda.host.build import HostKernelError
from labkernels.kernels.mla.inputs import MlaInputs, mla_inputs
from labkernels.kernels.mla.workload import MlaDecode
from labkernels.kernels.prefill.inputs import PrefillInputs, prefill_inputs
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.random_inputs import ExactNormal
from labkernels.kernels.registry import discover
from labkernels.numerics.truth.problem import Problem
from labkernels.policy import NumericPolicy

GPU = "h200"


@dataclass(frozen=True)
class Request:
    """A workload on which an answer is tried, and its description for the reader."""

    name: str
    kernel: str
    workload: MlaDecode | Prefill

    def inputs(self) -> MlaInputs | PrefillInputs:
        """Random inputs; pages lie in random order."""
        inputs = mla_inputs if isinstance(self.workload, MlaDecode) else prefill_inputs
        return inputs(self.workload, ExactNormal(7, "cpu"))

    def problem(self) -> Problem:
        """The same inputs as a float64 problem."""
        return self.inputs().problem()

    @property
    def policy(self) -> NumericPolicy:
        """Where the kernel rounds."""
        return discover()[self.kernel].policies[0].of("bf16")


def _mla(name: str, kv_len: int, q_len: int = 1) -> Request:
    workload = MlaDecode((kv_len,), q_heads=8, q_len=q_len, page_size=64, dtype="bf16")
    return Request(name, "mla_wgmma", workload)


def _prefill(name: str, q_len: int, kv_len: int, page_size: int | None, causal: bool) -> Request:
    heads = {"q_heads": 4, "kv_heads": 2, "head_dim": 64}
    workload = Prefill(
        (q_len,), (kv_len,), **heads, dtype="bf16", causal=causal, page_size=page_size
    )
    return Request(name, "prefill_wgmma", workload)


REQUESTS = {
    "mla": (
        _mla("three full blocks of keys", 192),
        _mla("150 keys, so that the last block is ragged", 150),
        _mla("4 query tokens under a causal mask", 130, q_len=4),
    ),
    "prefill": (
        _prefill("keys that lie one behind the other", 100, 300, None, causal=False),
        _prefill("pages of 16 keys under a causal mask", 40, 600, 16, causal=True),
        _prefill("pages of 24 keys, which hold three boxes of 8", 9, 300, 24, causal=False),
    ),
}


def run(exercise: Exercise, answer: str) -> dict[str, np.ndarray]:
    """Run all requests; the results are named by request.

    Raises: HostKernelError, with the request in which the kernel did what it must not.
    """
    folder = folder_with(*exercise.place, answer)
    results = {}
    for request in _requests(exercise):
        try:
            out, lse2 = _attend(request, folder)
        except HostKernelError as error:
            if "does not compile" in str(error):
                raise
            raise HostKernelError(f"{error}\nThis was the request with {request.name}.") from error
        results[f"out of {request.name}"], results[f"lse2 of {request.name}"] = out, lse2
    return results


def judge(exercise: Exercise, results: dict[str, np.ndarray]) -> list[str]:
    """The verdict on the first request that is wrong, and how many others are."""
    return verdict_on(_requests(exercise), results)


def remarks(exercise: Exercise, results: dict[str, np.ndarray]) -> list[str]:
    """The largest share of the error bound that was used."""
    return [*bounds_used(_requests(exercise), results), "No race, no stray access."]


def _requests(exercise: Exercise) -> tuple[Request, ...]:
    """Those of the operation in whose folder the answer's place is."""
    return REQUESTS[exercise.place[0].partition("/")[0]]


def _attend(request: Request, folder) -> tuple[np.ndarray, np.ndarray]:
    from labkernels import ops

    case, causal = request.inputs(), {}
    verb = ops.mla_decode
    if isinstance(request.workload, Prefill):
        verb, causal = ops.prefill, {"causal": request.workload.causal}
    kernel = discover()[request.kernel].with_overlay(folder)
    step = verb(*case.arguments, scale=case.scale, kernel=kernel, target=GPU, checks=True, **causal)
    return step.out.double().numpy(), step.lse2.double().numpy()
