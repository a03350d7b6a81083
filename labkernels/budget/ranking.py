"""How well an expected order matches the measured one, and how soon it leads to the best."""

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Sequence


def rank_correlation(expected: Sequence[float], measured: Sequence[float]) -> float:
    """Return Spearman's correlation of ranks, in which equal values share a rank.

    Raises: ValueError if the lengths differ, or either side has fewer than two different values.
    """
    return statistics.correlation(_ranks(expected), _ranks(measured))


def best_so_far(expected: Sequence[float], measured: Sequence[float]) -> list[float]:
    """Return, after each run in the expected order, the best possible time over the best found.

    Among candidates with equal expected times the slowest runs first: the model gets no credit for
    an order that it does not give.
    """
    order = sorted(range(len(measured)), key=lambda i: (expected[i], -measured[i]))
    best, shares, least = min(measured), [], float("inf")
    for i in order:
        least = min(least, measured[i])
        shares.append(best / least)
    return shares


def runs_to_reach(share: float, expected: Sequence[float], measured: Sequence[float]) -> int:
    """Return the runs, in the expected order, until the best speed found is `share` of the best."""
    found = best_so_far(expected, measured)
    return next(run for run, reached in enumerate(found, 1) if reached >= share)


def _ranks(values: Sequence[float]) -> list[int]:
    """Return twice the ranks; equal values share the mean of their ranks."""
    ordered = sorted(values)
    return [bisect_left(ordered, value) + bisect_right(ordered, value) for value in values]
