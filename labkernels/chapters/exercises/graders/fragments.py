"""Grades answers about the places of elements: a swizzle, ldmatrix addresses, P's fragment."""

import numpy as np

from labkernels.chapters.exercises.compiled import Takes, small
from labkernels.chapters.exercises.exercise import Exercise
from labkernels.chapters.exercises.overlay import folder_with
from labkernels.chapters.primers import fragments
from labkernels.formats import named
from labkernels.numerics import rounding

OUTPUTS, ON_GPU = {"out": "fp32", "numbers": "fp32"}, ""
_KERNELS = {
    "swizzle": fragments.SWIZZLED,
    "ldmatrix_addresses": fragments.PRODUCT,
    "fragment_of_p": fragments.TWO_PRODUCTS,
}


def run(exercise: Exercise, answer: str) -> dict[str, np.ndarray]:
    """Run the kernel that has the exercise's region, with the answer in its place."""
    folders = (folder_with(*exercise.place, answer),)
    if exercise.name == "swizzle":
        return fragments.swizzled(folders)
    a, b, c = _matrices(exercise)
    if exercise.name == "ldmatrix_addresses":
        return {"out": fragments.product(a, b, folders)["out"]}
    return fragments.two_products(a, c, b, folders)


def judge(exercise: Exercise, results: dict[str, np.ndarray]) -> list[str]:
    """Say where the numbers are wrong, or how many turns the busiest bank needs."""
    if exercise.name == "swizzle":
        return _judge_swizzle(results)
    exact, bound = _expected(exercise)
    wrong = np.argwhere(~(abs(results["out"] - exact) <= bound))
    if not len(wrong):
        return []
    row, column = wrong[0]
    return [
        f"{len(wrong)} of {exact.size} elements are outside of their error bound.",
        f"First: row {row}, column {column} is {results['out'][row, column]:.4f} and should be "
        f"{exact[row, column]:.4f}, give or take {bound[row, column]:.1e}.",
    ]


def remarks(exercise: Exercise, results: dict[str, np.ndarray]) -> list[str]:
    """Say how many turns the banks take, or how much of its bound the largest error takes."""
    if exercise.name == "swizzle":
        return ["Each of the four stores and of the four reads takes one turn per eight lanes."]
    exact, bound = _expected(exercise)
    share = (abs(results["out"] - exact) / bound).max()
    return [f"All {exact.size} errors are within their bound, the largest at {100 * share:.0f} %."]


def takes(exercise: Exercise, answer: str) -> list[Takes]:
    """Return the registers and the shared memory of the kernel that has the region."""
    return small([_KERNELS[exercise.name]], (folder_with(*exercise.place, answer),))


def _judge_swizzle(results: dict[str, np.ndarray]) -> list[str]:
    wrong = np.argwhere(results["numbers"] != np.arange(16 * 64).reshape(16, 64))
    if len(wrong):
        return [f"{len(wrong)} numbers come back wrong, the first in row {wrong[0][0]}."]
    lines = []
    for name in ("stores", "reads"):
        turns = int(fragments.ways(results[name]).max())
        if turns > 1:
            lines.append(f"The {name} take {turns} turns: {turns} lanes meet in one bank.")
    places = results["stores"].reshape(16, 8) // 16 % 8
    if np.array_equal(places, np.arange(8) ^ (np.arange(16)[:, None] & 7)):
        lines.append("This is the exclusive or of the chapter: find another layout.")
    return lines


def _matrices(exercise: Exercise) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw three matrices of fp16 values. Shapes: [16, 16], [16, 8], [16, 16].

    Of two products, the first is of whole numbers, and grows from row to row to more than fp16 has
    bits for.
    """
    rng = np.random.default_rng(3)
    sizes = ((16, 16), (16, 8), (16, 16))
    a, b, c = (rng.standard_normal(s).astype(np.float16).astype(np.float64) for s in sizes)
    if exercise.name == "fragment_of_p":
        a, c = np.rint(a * 1.4 ** np.arange(16)[:, None]), np.rint(8 * c)
    return a, b, c


def _expected(exercise: Exercise) -> tuple[np.ndarray, np.ndarray]:
    """Return the product in float64 and its error bound: of 16 products, which fp32 adds.

    Of two products, the first is exact in fp32, and then rounded once.
    """
    a, b, c = _matrices(exercise)
    if exercise.name == "fragment_of_p":
        a = rounding.round_to(a @ c.T, "fp16")
    u32 = 2 * named("fp32").unit_roundoff  # a tensor core truncates, which errs by up to a spacing
    return a @ b, 17 * u32 * (abs(a) @ abs(b))
