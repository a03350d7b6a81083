"""Grades answers that are a phase of the small attention kernel, by float64 and an error bound."""

import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from labkernels import defects
from labkernels.chapters.exercises.compiled import Takes, small
from labkernels.chapters.exercises.exercise import Exercise
from labkernels.chapters.exercises.overlay import folder_with
from labkernels.chapters.primers import calls
from labkernels.chapters.primers.small_attention import ATTEND, DIM, MERGE, Request, attend
from labkernels.cuda.host.build import HostKernelError
from labkernels.numerics.error import bounds
from labkernels.numerics.truth import oracle
from labkernels.numerics.verdict.verdict import decide

OUTPUTS, ON_GPU = {"out": "fp32", "lse2": "fp32"}, ""
# No power of two in its sizes; its first tokens see no key of the last split.
_ODD = {"kv_len": 322, "n_queries": 5, "group": 7, "kv_heads": 2, "page_size": 13, "splits": 11}
_FAR = {"kv_heads": 3, "page_size": 8, "first_page": 2**31 // (3 * 8 * DIM) - 1}
# The classes of mistakes that can be made in a phase; all of them in the others.
_CLASSES = {
    "log2": (defects.SCORES,),
    "mask": (defects.MASK, defects.WEIGHTS),
    "causal": (defects.MASK,),
    "packing": (defects.INDEX_Q, defects.INDEX_K, defects.INDEX_V, defects.INDEX_OUT),
    "page": (defects.INDEX_K, defects.INDEX_V, defects.MEMORY),
    "maximum": (defects.WEIGHTS,),
    "update": (defects.WEIGHTS,),
    "merge": (defects.MERGE, defects.WEIGHTS),
}
REQUESTS = (
    Request("three full tiles"),
    Request("75 keys, so that the last tile is ragged", kv_len=75),
    Request("scores that rise from tile to tile", kv_len=128, rising=True),
    Request("7 query tokens under a causal mask", kv_len=70, n_queries=7, causal=True),
    Request("2 KV heads of 3 query heads", kv_len=40, n_queries=2, group=3, kv_heads=2),
    Request("pages of 5 keys and groups of 8", kv_len=64, group=8, page_size=5),
    Request("200 keys of rising scores", kv_len=200, group=5, page_size=23, splits=3, rising=True),
    Request("scores from -300 to 300", kv_len=100, levels=(-300, 300)),
    Request("scores from 300 to -300", kv_len=100, splits=2, levels=(300, -300)),
    Request("scores near -300", kv_len=150, splits=5, levels=(-300, -300)),
    Request("groups of 1 under a causal mask", kv_len=390, n_queries=12, group=1, causal=True),
    Request("5 query tokens under a causal mask, and 11 splits", **_ODD, causal=True),
    Request("3 KV heads in a pool beyond 2^31 elements", kv_len=40, **_FAR),
    Request("a key with a NaN in KV head 0", kv_len=70, group=2, kv_heads=2, splits=2, nan_key=9),
)


def run(exercise: Exercise, answer: str) -> dict[str, np.ndarray]:
    """Run all requests, and call the answer's function; as `of_each`."""
    folders = (_folder(exercise, answer),)
    merges = {"merge_folders": folders} if exercise.place[1] in ("merge", "all") else {}
    results = of_each(REQUESTS, lambda request: attend(request, folders, **merges))
    return results | calls.run(exercise.place[1], folders[0])


def of_each(requests: Iterable, run: Callable[[Any], tuple]) -> dict[str, np.ndarray]:
    """Return what a kernel gives for each request: out and lse2, named by the request.

    Raises: HostKernelError, with the request in which the kernel did what it must not.
    """
    results = {}
    for request in requests:
        try:
            out, lse2 = run(request)
        except HostKernelError as error:
            if "does not compile" in str(error):
                raise
            raise HostKernelError(f"{error}\nThis was the request with {request.name}.") from error
        results |= {f"out of {request.name}": out, f"lse2 of {request.name}": lse2}
    return results


def _folder(exercise: Exercise, answer: str) -> Path:
    return folder_with(*exercise.place, answer, after_it=exercise.adapter)


def judge(exercise: Exercise, results: dict[str, np.ndarray]) -> Iterator[str]:
    """Yield the number of wrong requests, the verdict on the first, and the first wrong call."""
    yield from verdict_on(REQUESTS, results, _CLASSES.get(exercise.place[1]))
    yield from calls.judge(exercise.place[1], results)


def remarks(exercise: Exercise, results: dict[str, np.ndarray]) -> list[str]:
    """Return the largest share of the error bound that was used."""
    return [*bounds_used(REQUESTS, results), "No race, no stray access."]


def takes(exercise: Exercise, answer: str) -> list[Takes]:
    """Return what the kernels that have the region take."""
    kernels = {"merge": (MERGE,), "all": (ATTEND, MERGE)}.get(exercise.place[1], (ATTEND,))
    return small(kernels, (_folder(exercise, answer),))


def verdict_on(
    requests: tuple[Request, ...],
    results: dict[str, np.ndarray],
    classes: tuple[str, ...] | None = None,
) -> Iterator[str]:
    """Yield how many requests are wrong, if any is, and then what the verdict says of the first.

    classes: those of the reader's phase, None for all. Of a mistake of another class the verdict
    says only where the output is wrong.
    The verdict takes seconds, and is computed when the second line is asked for.
    """
    wrong = [request for request in requests if is_wrong(request, results)]
    if not wrong:
        return
    yield f"Wrong for {len(wrong)} of {len(requests)} requests. First: {wrong[0].name}."
    if np.isnan(_truth(wrong[0])[0][0]).any():
        yield "Rows that see a NaN give NaN, and the other rows numbers: a NaN is never hidden."
        return
    out, lse2 = (results[f"{name} of {wrong[0].name}"] for name in ("out", "lse2"))
    verdict = decide(wrong[0].problem(), out, policy=wrong[0].policy, lse2=lse2)
    said = verdict.summary(verbose=False).splitlines()
    known = classes is None or any(f"BUG: {name}:" in said[0] for name in classes)
    yield f"The verdict: {said[0].partition(';')[0] if known else verdict.answer}."
    yield from (line.strip() for line in said if line.strip().startswith("where"))


def is_wrong(request: Request, results: dict[str, np.ndarray]) -> bool:
    """Return whether a number lies outside of its error bound."""
    return not _shares(request, results).max() <= 1


def alike(one: dict, other: dict) -> bool:
    """Return whether two answers gave the same results, except for the order of additions."""
    if one.keys() != other.keys():
        return False
    pairs = ((np.asarray(one[key]), np.asarray(other[key])) for key in one)
    return all(a.shape == b.shape and _close(a, b) for a, b in pairs)


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    if not np.issubdtype(a.dtype, np.floating):
        return np.array_equal(a, b)
    return np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)


def bounds_used(requests: tuple[Request, ...], results: dict[str, np.ndarray]) -> list[str]:
    """Return how much of its error bound the worst element takes."""
    worst = max(float(_shares(request, results).max()) for request in requests)
    return [
        f"All {len(requests)} requests are within their error bounds; "
        f"the largest error is {100 * worst:.1f} % of its bound."
    ]


def _shares(request: Request, results: dict[str, np.ndarray]) -> np.ndarray:
    """Return errors over their bounds, of out and lse2.

    NaN stays NaN and fails a comparison. Where a NaN is right, a number is infinitely far off.
    """
    shares = []
    for name, exact, bound in zip(("out", "lse2"), *_truth(request), strict=True):
        x = results[f"{name} of {request.name}"]
        hidden = np.where(np.isnan(x), 0.0, np.inf)
        with np.errstate(divide="ignore", invalid="ignore"):  # a row without keys has no bound
            share = np.where(x == exact, 0.0, abs(x - exact) / bound)
        shares.append(np.where(np.isnan(exact), hidden, share).ravel())
    return np.concatenate(shares)


@functools.cache
def _truth(request: Request) -> tuple:
    """Return out and lse2 in float64, and their bounds."""
    problem = request.problem()
    return oracle.attention(problem), bounds.both_bounds(problem, request.policy)
