"""Grades answers that are one number, which a formula of labkernels.budget gives."""

import numpy as np

from labkernels import budget, hardware
from labkernels.chapters.exercises.exercise import Exercise

NO_KERNEL = (
    "Your answer is a number, and no kernel runs: there are no bits, registers or bank conflicts "
    "to compare with a reference."
)


def run(exercise: Exercise, answer: str | int) -> dict[str, np.ndarray]:
    """Return the number. Raises: ValueError if the answer is not a whole number."""
    try:
        number = float(answer)
    except (TypeError, ValueError):
        number = np.nan
    if not np.isfinite(number) or number != int(number):
        raise ValueError(f"answer = {answer!r}, allowed: a whole number")
    return {"number": np.array(int(number))}


def judge(exercise: Exercise, results: dict[str, np.ndarray]) -> list[str]:
    """Say whether the number is too large or too small."""
    right, _ = _EXPECTED[exercise.name]()
    number = int(results["number"])
    if number == right:
        return []
    return [f"{number} is too {'large' if number > right else 'small'}."]


def remarks(exercise: Exercise, results: dict[str, np.ndarray]) -> list[str]:
    """Return the steps of the formula."""
    return list(_EXPECTED[exercise.name]()[1])


def _register_ledger() -> tuple[int, tuple[str, ...]]:
    lines = (
        budget.Line("query", budget.fragment(16, 128, bits=16), "two numbers in a register"),
        budget.Line("scores", budget.fragment(16, 32)),
        budget.Line("output", budget.fragment(16, 128)),
        budget.Line("m and l", budget.number(2, "numbers") * budget.number(2, "rows")),
    )
    ledger = budget.Ledger("Registers per thread", "registers", lines)
    return ledger.total, tuple(ledger.table().splitlines())


def _occupancy_choice() -> tuple[int, tuple[str, ...]]:
    gpu, stages, lines = hardware.gpu("h200"), 0, []
    while True:
        smem = 16 * 1024 + (stages + 1) * 2 * budget.array_bytes(64, 128, dtype="bf16")
        fit = budget.occupancy(gpu, threads=128, registers=168, smem_bytes=smem)
        lines.append(f"Stages {stages + 1}: blocks {fit.blocks_per_sm}, limited by {fit.limit}.")
        if fit.blocks_per_sm < 2:
            return stages, tuple(lines)
        stages += 1


_EXPECTED = {"register_ledger": _register_ledger, "occupancy_choice": _occupancy_choice}
