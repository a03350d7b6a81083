"""Rows that a mistake would hit together: by head, sample, query tile, or place of weight.

A bug often sits in one place of the grid: in a head's address, in the last rows of a query tile, in
one tile or split of the keys. The errors of such a group add up and show a bug that one row alone
would not show.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from labkernels.numerics.arrays import Array, to_numpy
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.truth.threads import over_rows

QUERY_TILES = (64, 128)
KEY_TILE = 64
KEY_PARTS = 8  # equal parts of a row's keys, since a split has only some of the keys
LANES = 8  # distance of the channels that one lane of a fragment holds


@dataclass(frozen=True)
class Grouping:
    """One way to group all rows, with words for each label. Shapes: labels [total_q, Hq]."""

    by: str
    labels: np.ndarray
    words: Callable[[int], str]

    def sums(self, values: Array) -> np.ndarray:
        """Return the sum over each of n groups of values [total_q, Hq]. Shapes: [n]."""
        n = int(self.labels.max(initial=0)) + 1
        return np.bincount(self.labels.ravel(), np.ravel(values), minlength=n)


def simple(problem: Problem) -> list[Grouping]:
    """Return the groupings by all rows, by head and by sample."""
    shape = problem.out_shape[:2]
    heads = np.broadcast_to(np.arange(shape[1]), shape)
    samples = np.broadcast_to(problem.request_of[:, None], shape)
    return [
        Grouping("all", np.zeros(shape, np.int64), lambda i: ""),
        Grouping("head", heads, lambda i: f"head {i}"),
        Grouping("sample", samples, lambda i: f"sample {i}"),
    ]


def tiles(problem: Problem) -> list[Grouping]:
    """Return groupings by the place of the key of the largest weight, and of the query in a tile.

    There are groupings by query only where a sample has several queries.
    """
    found = _query_tiles(problem) if np.any(np.diff(problem.q_ends) > 1) else []
    top = problem.zeros(*problem.out_shape[:2])
    for rows, of_rows in over_rows(problem, lambda rows: rows.softmax.top):
        rows.put(top, of_rows)
    top = to_numpy(top).astype(np.int64)
    n_keys = np.maximum(problem.n_keys, 1)[:, None]

    def part(i: int) -> str:
        return f"rows whose largest weight lies in part {i} of {KEY_PARTS} of their keys"

    def key_tile(i: int) -> str:
        return f"rows whose largest weight lies in keys {i * KEY_TILE} to {(i + 1) * KEY_TILE - 1}"

    return [
        *found,
        Grouping("key tile", top // KEY_TILE, key_tile),
        Grouping("part of the keys", top * KEY_PARTS // n_keys, part),
    ]


def _query_tiles(problem: Problem) -> list[Grouping]:
    shape = problem.out_shape[:2]
    query = np.arange(shape[0]) - problem.q_ends[problem.request_of]
    found = []
    for size in QUERY_TILES:
        per_sample = -(-np.diff(problem.q_ends) // size)
        first = np.concatenate([[0], np.cumsum(per_sample)])
        tile = first[problem.request_of] + query // size

        def words(i: int, size: int = size, first: Array = first) -> str:
            sample = int(np.searchsorted(first, i, side="right")) - 1
            begin = (i - int(first[sample])) * size
            return f"sample {sample}, queries {begin} to {begin + size - 1}"

        for by, labels, text in (
            (f"query tile of {size}", tile, words),
            (f"place in a tile of {size}", query % size, lambda i, size=size: f"row {i} of {size}"),
        ):
            found.append(Grouping(by, np.broadcast_to(labels[:, None], shape), text))
    return found
