"""Grades answers that are whole numbers, which a formula of labkernels.budget gives."""

import numpy as np

from labkernels import budget, hardware
from labkernels.chapters.exercises.exercise import Exercise

NO_KERNEL = (
    "Your answer is a number, and no kernel runs: there are no bits, registers or bank conflicts "
    "to compare with a reference."
)


def run(exercise: Exercise, answer: object) -> dict[str, np.ndarray]:
    """Return the numbers, of which a text has commas between them.

    Raises: ValueError unless the answer is as many whole numbers as the starter.
    """
    parts = answer.split(",") if isinstance(answer, str) else np.ravel(np.array(answer)).tolist()
    asked = exercise.starter.count(",") + 1
    try:
        numbers = [float(part) for part in parts]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != asked or any(not np.isfinite(n) or n != int(n) for n in numbers):
        allowed = "a whole number" if asked == 1 else f"{asked} whole numbers"
        raise ValueError(f"answer = {answer!r}, allowed: {allowed}")
    return {"numbers": np.array(numbers, np.int64)}


def judge(exercise: Exercise, results: dict[str, np.ndarray]) -> list[str]:
    """Say which number is too large or too small."""
    right, _ = _EXPECTED[exercise.name]()
    pairs = zip(results["numbers"].tolist(), right, strict=True)
    wrong = [(number, number > expected) for number, expected in pairs if number != expected]
    return [f"{number} is too {'large' if large else 'small'}." for number, large in wrong]


def remarks(exercise: Exercise, results: dict[str, np.ndarray]) -> list[str]:
    """Return the steps of the formula."""
    return list(_EXPECTED[exercise.name]()[1])


def _register_ledger() -> tuple[tuple[int, ...], tuple[str, ...]]:
    lines = (
        budget.Line("query", budget.fragment(16, 128, bits=16), "two numbers in a register"),
        budget.Line("scores", budget.fragment(16, 32)),
        budget.Line("output", budget.fragment(16, 128)),
        budget.Line("m and l", budget.number(2, "numbers") * budget.number(2, "rows")),
    )
    ledger = budget.Ledger("Registers per thread", "registers", lines)
    return (ledger.total,), tuple(ledger.table().splitlines())


def _occupancy_choice() -> tuple[tuple[int, ...], tuple[str, ...]]:
    counts, lines = [], []
    for name in ("h200", "a100", "l4"):
        stages, fit = 0, None
        while fit is None or fit.blocks_per_sm >= 2:
            stages += 1
            smem = 16 * 1024 + stages * 2 * budget.array_bytes(64, 128, dtype="bf16")
            fit = budget.occupancy(hardware.gpu(name), threads=128, registers=168, smem_bytes=smem)
        counts.append(stages - 1)
        more = f"With one more, {fit.limit} lets {fit.blocks_per_sm} block be there."
        lines.append(f"{name}: {stages - 1}. {more}")
    return tuple(counts), tuple(lines)


_EXPECTED = {"register_ledger": _register_ledger, "occupancy_choice": _occupancy_choice}
