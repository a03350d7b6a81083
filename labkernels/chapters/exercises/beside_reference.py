"""A right answer beside the reference kernel: its bits, its ledger line and its bank conflicts.

A grader whose answers run in a kernel says which of its results are compared and in which format
(`OUTPUTS`), and what the kernels take (`takes`). If shared memory has no addresses to count, its
`NO_BANKS` says why for the place of the answer; if no kernel runs at all, its `NO_KERNEL` says why.
"""

import dataclasses
import functools
from types import ModuleType

import numpy as np

from labkernels.chapters.exercises.compiled import Takes, recorded
from labkernels.chapters.exercises.exercise import Exercise
from labkernels.chapters.exercises.overlay import region
from labkernels.chapters.exercises.report import in_readers_words
from labkernels.cuda.compiler import cache
from labkernels.cuda.host import banks
from labkernels.numerics.rounding import quantum
from labkernels.units import format_bytes

_MANY = 64.0  # ulp: within the error bound, only a number that nearly cancels is so far off


def compared(
    exercise: Exercise, grader: ModuleType, answer: object, results: dict[str, np.ndarray]
) -> list[str]:
    """Return lines on bits, ledger and bank conflicts, or the reason why there are none."""
    if hasattr(grader, "NO_KERNEL"):
        return [grader.NO_KERNEL]
    silent = exercise.place[1] in getattr(grader, "NO_BANKS", {})
    own = _own(exercise, grader)
    known = recorded().get(made_from(grader, own[2], results))
    reference, turns = results, [banks.Turns("", *each) for each in known or ()]
    if known is None:
        reference, turns = _reference(grader, *own[:2], silent)
    lines = [bits(grader.OUTPUTS, results, reference)]
    pairs = zip(grader.takes(exercise, answer), own[2], strict=True)
    lines += [ledger_line(mine, other) for mine, other in pairs]
    if silent:
        return [*lines, f"Bank conflicts: {grader.NO_BANKS[exercise.place[1]]}"]
    return [*lines, *conflicts(_counted(exercise, grader, answer), turns)]


def made_from(grader: ModuleType, takes: list[Takes], results: dict[str, np.ndarray]) -> str:
    """Return a hash of kernels and results: what is recorded of these is a reference's turns."""
    given = sorted(name for name in results if name.startswith(tuple(grader.OUTPUTS)))
    kernels = (each.made_from for each in takes)
    return cache.content_key(*kernels, *(results[name].tobytes() for name in given))


@functools.cache
def _own(exercise: Exercise, grader: ModuleType) -> tuple[Exercise, str, list[Takes]]:
    """Return the assignment that takes the kernel's own lines, these, and their resources."""
    own = region(*exercise.place) if exercise.place[0] else grader.own_lines()
    exercise = dataclasses.replace(exercise, adapter="")
    return exercise, own, grader.takes(exercise, own)


@functools.cache
def _reference(grader: ModuleType, exercise: Exercise, own: str, silent: bool) -> tuple:
    """Return the results and the turns of the kernel with its own lines."""
    turns = [] if silent else _counted(exercise, grader, own)
    return grader.run(exercise, own), turns


def _counted(exercise: Exercise, grader: ModuleType, answer: object) -> list[banks.Turns]:
    """Run the requests once more, on the machine that counts."""
    with banks.counted() as turns:
        grader.run(exercise, answer)
    return list(banks.by_place(turns).values())


def bits(formats: dict[str, str], mine: dict, reference: dict) -> str:
    """Say how many numbers differ from the reference's, and by how many spacings of the format."""
    count, differing, ulps = 0, 0, 0.0
    for name, fmt in formats.items():
        for key in (key for key in mine if key.startswith(name)):
            a, b = (np.asarray(x[key], np.float64) for x in (mine, reference))
            other = ~((a == b) | (np.isnan(a) & np.isnan(b)))
            count, differing = count + a.size, differing + int(other.sum())
            if other.any():
                ulps = max(ulps, float((abs(a - b)[other] / quantum(b[other], fmt)).max()))
    if not differing:
        return f"Bits: all {count:,} numbers are those of the reference kernel."
    near_zero = " It is that of a number near 0, a sum of larger terms." if ulps > _MANY else ""
    return (
        f"Bits: {differing:,} of {count:,} numbers are not those of the reference kernel; the "
        f"largest distance is {ulps:.3g} ulp.{near_zero} Sums in another order, or a rounding "
        "elsewhere, change the last bits."
    )


def ledger_line(mine: Takes, reference: Takes) -> str:
    """Return the registers by ledger and by compiler, and shared memory, beside the reference's."""
    parts = ["no lines, since Triton lays out its tiles itself"]
    if mine.ledger is not None:
        parts = [f"{mine.ledger} register{'s' * (mine.ledger != 1)} per thread by its lines"]
    if mine.registers is None:
        parts.append(mine.compiler)
    else:
        spills = f", which spills {mine.spill_bytes} bytes" if mine.spill_bytes else ""
        more = mine.ledger is not None and mine.registers > mine.ledger
        adds = ", which adds addresses and loads under way" if more else ""
        parts.append(f"{mine.registers} by the compiler ({mine.compiler}){adds}{spills}")
        parts.append(f"{reference.registers} for the reference")
    if mine.smem_bytes is not None:
        parts.append(f"{format_bytes(mine.smem_bytes)} of shared memory per block")
    return f"Ledger of {mine.kernel}: {'; '.join(parts)}."


def conflicts(mine: list[banks.Turns], reference: list[banks.Turns]) -> list[str]:
    """Return the turns that bank conflicts cost, and where most of them are."""
    both = [_sum(mine), _sum(reference)]
    beside = "as for the reference" if both[0] == both[1] else f"for the reference {both[1]}"
    lines = [f"Bank conflicts on the CPU machine: {both[0]}, {beside}."]
    if mine and mine[0].extra > max((each.extra for each in reference), default=0):
        (place,) = in_readers_words(mine[0].place)
        lines.append(
            f"Most of them: {place} takes {mine[0].taken:,} turns and could take {mine[0].least:,}."
        )
    return lines


def _sum(turns: list[banks.Turns]) -> str:
    extra, taken = sum(each.extra for each in turns), sum(each.taken for each in turns)
    if not taken:
        return "none, since no lane touches shared memory"
    return f"{f'{extra:,}' if extra else 'none'} of {taken:,} turns of shared memory"
