"""Answers that are a phase of mla_wgmma, the fast MLA kernel, against float64 and its bound."""

from dataclasses import dataclass

import numpy as np

from labkernels.chapters.exercises.exercise import Exercise
from labkernels.chapters.exercises.graders.attention import bounds_used, verdict_on
from labkernels.chapters.exercises.overlay import folder_with
from labkernels.cuda.host.build import HostKernelError
from labkernels.kernels.mla.inputs import MlaInputs, mla_inputs
from labkernels.kernels.mla.workload import MlaDecode
from labkernels.kernels.random_inputs import ExactNormal
from labkernels.kernels.registry import discover
from labkernels.numerics.truth.problem import Problem
from labkernels.policy import NumericPolicy

KERNEL, GPU, HEADS = "mla_wgmma", "h200", 8


@dataclass(frozen=True)
class Request:
    """One request of the kernel: its keys, and how many query tokens ask under a causal mask."""

    name: str
    kv_len: int
    q_len: int = 1

    def inputs(self) -> MlaInputs:
        """The inputs: 8 heads, and latent rows on pages of 64 keys in random order."""
        workload = MlaDecode((self.kv_len,), HEADS, q_len=self.q_len, page_size=64, dtype="bf16")
        return mla_inputs(workload, ExactNormal(7, "cpu"))

    def problem(self) -> Problem:
        """The same inputs as a float64 problem."""
        return self.inputs().problem()

    @property
    def policy(self) -> NumericPolicy:
        """Where the kernel rounds."""
        return discover()[KERNEL].policies[0].of("bf16")


REQUESTS = (
    Request("three full blocks of keys", 192),
    Request("150 keys, so that the last block is ragged", 150),
    Request("4 query tokens under a causal mask", 130, q_len=4),
)


def run(exercise: Exercise, answer: str) -> dict[str, np.ndarray]:
    """Run all requests; the results are named by request.

    Raises: HostKernelError, with the request in which the kernel did what it must not.
    """
    from labkernels import ops

    kernel = discover()[KERNEL].with_overlay(folder_with(*exercise.place, answer))
    results = {}
    for request in REQUESTS:
        case = request.inputs()
        try:
            step = ops.mla_decode(
                *case.arguments, scale=case.scale, kernel=kernel, target=GPU, checks=True
            )
        except HostKernelError as error:
            if "does not compile" in str(error):
                raise
            raise HostKernelError(f"{error}\nThis was the request with {request.name}.") from error
        results[f"out of {request.name}"] = step.out.double().numpy()
        results[f"lse2 of {request.name}"] = step.lse2.double().numpy()
    return results


def judge(exercise: Exercise, results: dict[str, np.ndarray]) -> list[str]:
    """The verdict on the first request that is wrong, and how many others are."""
    return verdict_on(REQUESTS, results)


def remarks(exercise: Exercise, results: dict[str, np.ndarray]) -> list[str]:
    """The largest share of the error bound that was used."""
    return [*bounds_used(REQUESTS, results), "No race, no stray access."]
