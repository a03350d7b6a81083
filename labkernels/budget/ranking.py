"""How well an expected order matches the measured one, and how soon it leads to the best."""

import math
from collections.abc import Sequence


def rank_correlation(expected: Sequence[float], measured: Sequence[float]) -> float:
    """Return Spearman's correlation of ranks, in which equal values share a rank.

    Raises: ValueError if the lengths differ, or either side has fewer than two different values.
    """
    if len(expected) != len(measured):
        raise ValueError(f"len(measured) = {len(measured)}, allowed: {len(expected)}, as expected")
    left, right = _ranks(expected), _ranks(measured)
    spreads = [sum(x * x for x in ranks) for ranks in (left, right)]
    if not all(spreads):
        raise ValueError("all values of one side are equal, allowed: two different ones or more")
    product = sum(x * y for x, y in zip(left, right, strict=True))
    return product / math.sqrt(spreads[0] * spreads[1])


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


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the ranks minus their mean; equal values share the mean of their ranks."""
    ordered = sorted(values)
    first: dict[float, list[int]] = {}
    for place, value in enumerate(ordered):
        first.setdefault(value, []).append(place)
    middle = (len(ordered) - 1) / 2
    return [sum(first[value]) / len(first[value]) - middle for value in values]
