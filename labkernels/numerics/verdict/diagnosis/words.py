"""Sets of numbers in words: runs, residues, blocks."""

from collections.abc import Callable

import numpy as np

from labkernels.numerics.arrays import Array

_LISTED = 4
# Where V is 0 for some keys, the output lacks what they add, as where a partial output was lost.
V_LOST = "V read as 0, or the output of a split lost"
# What a row adds to all scores of a part of its keys gives the part another weight, as a merge may.
BIAS_OF_PARTS = "a bias of K or of the scores of whole tiles, another in each row"
_MODULI = (2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128)


def of(what: str, n: int, shift: int = 0) -> Callable[[np.ndarray], str]:
    """Return a function that puts a set of numbers of 0 to n - 1, each plus a shift, into words."""

    def told(numbers: Array) -> str:
        numbers = np.sort(np.asarray(numbers)) + shift
        if len(numbers) == 0:
            return ""
        runs = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
        if len(runs) <= 2:
            return f"{what}s " + ", ".join(_run(run, n + shift) for run in runs)
        for modulus in _MODULI:
            residues = np.unique(numbers % modulus)
            span = np.arange(numbers[0], numbers[-1] + 1)
            all_of = span[np.isin(span % modulus, residues)]
            if 2 * len(residues) <= min(len(numbers), modulus) and len(all_of) == len(numbers):
                some = ", ".join(map(str, residues[:8])) + ", ..." * (len(residues) > 8)
                ends = (
                    ""
                    if span[0] < modulus and span[-1] >= n + shift - modulus
                    else (f" from {span[0]} to {span[-1]}")
                )
                return f"every {what} with {what} % {modulus} in {some}{ends}"
        return (
            f"{what}s "
            + ", ".join(_run(run, n + shift) for run in runs[:_LISTED])
            + f" and {len(runs) - _LISTED} runs more" * (len(runs) > _LISTED)
        )

    return told


def _run(run: Array, n: int) -> str:
    if len(run) == 1:
        return str(run[0])
    if run[-1] == n - 1:
        return f"from {run[0]} on"
    return f"{run[0]} to {run[-1]}"
