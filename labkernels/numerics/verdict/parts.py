"""A part of a large problem, on which most explanations fail long before the whole is tried.

The part is chosen without a look at the errors: some requests, some adjacent queries of each, and
two KV heads. What is a right output of the problem is one of its part too, so that the tests of
`significance` hold there at their own rates.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from labkernels.numerics.arrays import Array, moved
from labkernels.numerics.truth.problem import Problem
from labkernels.policy import NumericPolicy

_REQUESTS, _QUERIES = 4, 32
_LEAST_SCORES = 2**20  # of a problem that is tried in part: a smaller one takes a second as a whole
_LEAST = 4  # times the part's scores, too


@dataclass(frozen=True, eq=False)
class Part:
    """A problem of some tokens and heads of another. Shapes: tokens [t], heads [h], indices."""

    problem: Problem
    tokens: np.ndarray
    heads: np.ndarray

    def of(self, values: Array) -> Array:
        """Return the part's elements of values [total_q, Hq, ...]. Shapes: [t, h, ...]."""
        return values[self.tokens][:, self.heads]


class Errors(NamedTuple):
    """The errors of an output. Shapes: truth, error, sigma [total_q, Hq, Dv]."""

    problem: Problem
    policy: NumericPolicy
    truth: Array
    error: Array
    sigma: Array

    def part(self) -> "Errors | None":
        """Return those of a part, or None where the problem is not much larger than a part."""
        part = of_problem(self.problem)
        if part is None:
            return None
        return Errors(part.problem, self.policy, *map(part.of, self[2:]))


def of_problem(problem: Problem) -> Part | None:
    """Return a part of the problem, or None where the problem is not much larger than a part."""
    requests = _spread(np.flatnonzero(problem.kv_lens * np.diff(problem.q_ends) > 0))
    if not len(requests):
        return None
    begins, ends = problem.q_ends[requests], problem.q_ends[requests + 1]
    # Without its last queries a causal request is one with fewer keys. Without a causal mask, the
    # queries are the last ones, so that their places among the keys remain.
    lasts = np.minimum(begins + (ends - begins + _QUERIES) // 2, ends) if problem.causal else ends
    firsts = np.maximum(begins, lasts - _QUERIES)
    lens = np.maximum(problem.kv_lens[requests] - (ends - lasts), 0)
    tokens = np.concatenate([np.arange(*ends) for ends in zip(firsts, lasts, strict=True)])
    step = max(1, problem.kv_heads - 1)  # the first KV head and the last
    heads = np.arange(problem.out_shape[1]).reshape(-1, problem.group)[::step].ravel()
    in_part = int(problem.n_keys[tokens].sum()) * len(heads)
    if problem.n_scores < max(_LEAST_SCORES, _LEAST * in_part):
        return None
    part = replace(
        problem,
        q=problem.q[moved(tokens, problem.q)][:, moved(heads, problem.q)],
        k_pool=problem.k_pool[:, :, ::step],
        v_pool=problem.v_pool[:, :, ::step],
        page_table=problem.page_table[requests],
        kv_lens=lens,
        cu_seqlens_q=np.concatenate([[0], np.cumsum(lasts - firsts)]),
        variant=problem.variant and problem.variant.part(tokens, heads, int(lens.max())),
        places=None if problem.places is None else problem.places[tokens],
    )
    return Part(part, tokens, heads)


def _spread(requests: Array) -> np.ndarray:
    """Return some of the requests, as far from each other as they can be."""
    places = np.linspace(0, len(requests) - 1, min(_REQUESTS, len(requests)))
    return requests[places.astype(int)]
