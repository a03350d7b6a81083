"""Grades answers that name the one phase of a kernel that was changed."""

import numpy as np

from labkernels.chapters.exercises.exercise import Exercise
from labkernels.chapters.exercises.overlay import folder_with
from labkernels.chapters.primers.small_attention import HEADER, Request, attend

PHASES = ("packing", "page", "mask", "maximum", "update", "merge")
_PHASE = "mask"
_LINES = "LAB_DEVICE float masked(float s, int key, int end) { return key < end ? s : 0.f; }"
NO_KERNEL = (
    "Your answer is a name, and changes no kernel: there are no bits, registers or bank conflicts "
    "to compare with a reference."
)
_REQUEST = Request("planted", kv_len=75, n_queries=1, group=4, page_size=75, seed=5)


def planted_bug() -> tuple[np.ndarray, ...]:
    """Return q, k, v, out and lse2 in float32, of a kernel in which one phase was changed.

    Shapes: q, out [1, 4, 32]; k, v [1, 1, 75, 32]; lse2 [1, 4].
    """
    inputs = _REQUEST.draw()
    k, v = (inputs[name][inputs["page_table"]] for name in ("k_pool", "v_pool"))
    out, lse2 = attend(_REQUEST, (folder_with(HEADER, _PHASE, _LINES),))
    return inputs["q"], k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3), out, lse2


def run(exercise: Exercise, answer: str) -> dict[str, np.ndarray]:
    """Return the name. Raises: ValueError for a phase that the kernel does not have."""
    name = str(answer).strip().lower()
    if name and name not in PHASES:
        raise ValueError(f"answer = {answer!r}, allowed: {', '.join(PHASES)}")
    return {"phase": np.array(name)}


def judge(exercise: Exercise, results: dict[str, np.ndarray]) -> list[str]:
    """Say whether the answer is the changed phase."""
    name = str(results["phase"])
    return [] if name == _PHASE else [f"{name!r} was not changed." if name else "No answer."]


def remarks(exercise: Exercise, results: dict[str, np.ndarray]) -> list[str]:
    """Return the line that was planted."""
    return [f"The changed line: {_LINES}"]
