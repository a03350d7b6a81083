"""Where an output went wrong, in words: which heads, requests, queries."""

import re

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.truth.problem import Problem

_MOST = 0.9  # share of a region's rows that are bad: some mistakes leave a row right
_LISTED = 6


def words(problem: Problem, bad: Array) -> str:
    """Return the smallest region that holds all bad rows and few others; a count if there is none.

    Shapes: bad [total_q, Hq], bool.
    """
    live = np.broadcast_to(problem.n_keys[:, None] > 0, bad.shape)
    if not bad.any():
        return ""
    if bad.sum() == 1:
        return problem.row_name(*np.argwhere(bad)[0].tolist())
    if bad.sum() >= _MOST * live.sum():
        return "all rows"
    heads, requests = _members(np.any(bad, 0)), _members(_by_request(problem, np.any(bad, 1)))
    query = np.arange(len(bad)) - problem.q_ends[problem.request_of]
    rows = np.flatnonzero(bad.any(1))
    first, last = int(query[rows].min()), int(query[rows].max())
    said = []
    region = live.copy()
    if len(heads) < bad.shape[1]:
        said.append(_heads(problem, heads))
        region[:, np.setdiff1d(np.arange(bad.shape[1]), heads)] = False
    if len(requests) < problem.batch:
        said.append(_listed("sample", requests))
        region[~np.isin(problem.request_of, requests)] = False
    longest = int(np.diff(problem.q_ends).max(initial=0))
    if first > 0 or last < longest - 1:
        end = f"from {first} on" if last == longest - 1 else f"{first} to {last}"
        said.append(f"queries {end}")
        region[(query < first) | (query > last)] = False
    share = bad.sum() / max(region.sum(), 1)
    if share < _MOST:
        said.append(f"{int(bad.sum())} of {int(region.sum())} rows there")
    if not said:
        return ""
    return "only " + ", ".join(said)


def filled(problem: Problem, bad: Array) -> bool:
    """Return whether the bad rows fill most of one region."""
    said = words(problem, bad)
    return "rows there" not in said and not re.search(r"\d, \d", said)


def _by_request(problem: Problem, tokens: Array) -> Array:
    found = np.zeros(problem.batch, bool)
    found[problem.request_of[tokens]] = True
    return found


def _members(flags: Array) -> Array:
    return np.flatnonzero(flags)


def _heads(problem: Problem, heads: Array) -> str:
    kv = np.unique(heads // problem.group)
    if problem.group > 1 and len(heads) == len(kv) * problem.group:
        return _listed("KV head", kv)
    return _listed("head", heads)


def _listed(what: str, found: Array) -> str:
    numbers = [int(n) for n in found]
    if len(numbers) == 1:
        return f"{what} {numbers[0]}"
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{what}s {numbers[0]} to {numbers[-1]}"
    more = ", ..." if len(numbers) > _LISTED else ""
    return f"{what}s " + ", ".join(map(str, numbers[:_LISTED])) + more
