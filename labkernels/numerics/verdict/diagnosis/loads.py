"""Edits of the loads: Q, K and V from other places, by one algebra of index maps.

A map is a rule (j, n) -> indices: place j of n reads another place of the same axis. The same maps
serve keys, channels, heads, queries and requests.
"""

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from labkernels import defects
from labkernels.numerics.arrays import Array, moved, to_numpy
from labkernels.numerics.verdict.diagnosis.match import Edit
from labkernels.numerics.verdict.diagnosis.program import Block, Terms, Trial

_SHIFTS = (1, 2, 3, 4, 8, 16, 32, 64, 128)
_TILES = (2, 4, 8, 16, 32, 64)
_CLASS = {"K": defects.INDEX_K, "V": defects.INDEX_V, "K and V": defects.INDEX_K}
Rule = Callable[[Array, int], Array]


def maps(n: int) -> Iterator[tuple[str, float, Rule]]:
    """Yield (place that is read, cost, rule) for an axis of about n places.

    >>> {place: rule(np.arange(4), 4).tolist() for place, _, rule in maps(2)}["j + 1"]
    [1, 2, 3, 0]
    """
    for d in (x for x in _SHIFTS if x < n):
        cost = 0.8 if d == 1 else 1.0
        yield f"j - {d}", cost, lambda j, n, d=d: (j - d) % n
        yield f"j + {d}", cost, lambda j, n, d=d: (j + d) % n
    yield "n - 1 - j", 1.0, lambda j, n: n - 1 - j
    yield "0", 1.0, lambda j, n: 0 * j
    yield "n - 1", 1.0, lambda j, n: 0 * j + n - 1
    yield "j // 2", 1.2, lambda j, n: j // 2
    yield "2 j % n", 1.2, lambda j, n: 2 * j % n
    yield "(j + n // 2) % n", 1.0, lambda j, n: (j + n // 2) % n
    for t in (x for x in _TILES if x < n or n == x > 2):
        yield f"j xor {t // 2}", 1.2, lambda j, n, t=t: j ^ (t // 2)
        yield f"0 of its {t}", 1.4, lambda j, n, t=t: j - j % t
        yield f"j % {t}", 1.4, lambda j, n, t=t: j % t


def indices(rule: Rule, n: int) -> np.ndarray:
    """Return the places that a rule reads, its own where there is none. Shapes: [n]."""
    j = np.arange(n)
    found = np.asarray(rule(j, n)).astype(np.int64)
    return np.where((found >= 0) & (found < n), found, j)


def keys(case_n: int) -> Iterator[Trial]:
    """Yield K, V or both read from other keys; case_n: about how many keys a request has."""
    for place, cost, rule in maps(case_n):

        def of(s: Block, which: str, rule: Rule = rule) -> Terms:
            at = indices(rule, s.n)
            w = s.w if which == "V" else s.weights(s.shaped(s.products[:, at]))
            return s.by_weights(w, s.v if which == "K" else s.v[at])

        for which, kind in _CLASS.items():
            edit = Edit(which, "read from key", (place,))
            yield Trial(kind, edit, lambda s, w=which, f=of: f(s, w), cost, scoped=True)


def sources(block: Block) -> Iterator[Trial]:
    """Yield K, V or both of other KV heads and requests, and K for V."""
    problem = block.problem
    heads, batch = problem.kv_heads, problem.batch
    rules: list[tuple[str, float, Callable[[Block], tuple[int, int]]]] = []
    for place, cost, rule in maps(heads) if heads > 1 else ():
        at = indices(rule, heads)
        rules.append((f"KV head {place}", cost, lambda s, a=at: (s.request, int(a[s.kv_head]))))
    for place, cost, rule in maps(batch) if batch > 1 else ():
        at = indices(rule, batch)
        rules.append((f"request {place}", cost, lambda s, a=at: (int(a[s.request]), s.kv_head)))
    if heads > 1:
        rules.append(("KV head h % Hkv", 0.7, lambda s: (s.request, s.head % heads)))
    for place, cost, where in rules:
        for which, kind in _CLASS.items():

            def of_source(s: Block, at=where, which: str = which) -> Terms:
                k = None if which == "V" else s.other("k", *at(s))
                return s.by_load(k=k, v=None if which == "K" else s.other("v", *at(s)))

            yield Trial(kind, Edit(which, "of", (place,)), of_source, cost, scoped=True)
    if problem.k_pool.shape == problem.v_pool.shape:
        of_k = lambda s: s.k[:, s.channels]
        of_v = lambda s: s.case.keys("v", s.request, s.kv_head)
        values = lambda s: s.by_load(v=of_k(s))
        yield Trial(defects.INDEX_V, Edit("V", "read from K"), values, 1.0, True)
        keys = lambda s: s.by_load(k=of_v(s))
        yield Trial(defects.INDEX_K, Edit("K", "read from V"), keys, 1.0, True)
        both = lambda s: s.by_load(k=of_v(s), v=of_k(s))
        yield Trial(defects.INDEX_K, Edit("K and V", "exchanged"), both, 1.0, True)


def past_the_end(block: Block) -> Iterator[Trial]:
    """Yield keys that follow the last one of a request: on its pages, or in the pool."""
    problem = block.problem
    size = problem.k_pool.shape[1]
    counts = {1, 2, 3, 4, 8, *(-block.n % t for t in (size, 8, 16, 32, 64, 128))} - {0}
    for count, words in itertools.product(
        sorted(counts), ("behind the last", "of the pool behind")
    ):

        def longer(s: Block, count: int = count, words: str = words) -> np.ndarray:
            table = problem.page_table[s.request]
            at = np.arange(s.n, s.n + count)
            last = table[(s.n - 1) // size] * size + (s.n - 1) % size
            slots = (last + 1 + at - s.n) % (size * len(problem.k_pool))
            if words == "behind the last":
                pages = table[np.minimum(at // size, len(table) - 1)]
                owned = (pages >= 0) & (pages < len(problem.k_pool))  # the table's end may be void
                slots = np.where(owned, pages, table[(s.n - 1) // size]) * size + at % size
            pools = (problem.k_pool, problem.v_pool)
            k, v = (
                np.nan_to_num(
                    to_numpy(x[moved(slots // size, x)])[at - s.n, slots % size, s.kv_head]
                )
                for x in pools
            )
            v = v[:, s.channels].astype(np.float64)
            extra = np.exp2(np.minimum(s.q @ k.astype(np.float64).T - s.top, 100))
            total = s.sums + extra.sum(1, keepdims=True)
            found: np.ndarray = (s.truth * s.sums + extra @ v) / total
            return found

        edit = Edit("keys", f"{words} are seen, so many:", (float(count),))
        yield Trial(defects.MEMORY, edit, longer, 1.0)


def queries(block: Block) -> Iterator[Trial]:
    """Yield rows of Q of other heads and queries."""
    problem = block.problem
    heads, count = problem.q.shape[1], block.n_queries
    for place, cost, rule in maps(heads) if heads > 1 else ():
        at = indices(rule, heads)
        of = lambda s, a=at: s.by_load(q=s.queries_of(s.tokens, int(a[s.head])))
        yield Trial(defects.INDEX_Q, Edit("Q", "of head", (place,)), of, cost)
    first = lambda s: s.by_load(q=s.queries_of(s.tokens, s.kv_head * problem.group))
    yield Trial(defects.INDEX_Q, Edit("Q", "of head", ("0 of the group",)), first, 0.9)
    for place, cost, rule in maps(count) if count > 1 else ():
        yield Trial(
            defects.INDEX_Q,
            Edit("Q", "of query", (place,)),
            lambda s, f=rule: s.by_load(q=s.queries_of(_others(s, f), s.head)),
            cost,
        )


def _others(s: Block, rule: Rule) -> np.ndarray:
    """Return the tokens of other queries of the request. Shapes: [R]."""
    found: np.ndarray = s.tokens - s.queries[:, 0] + indices(rule, s.n_queries)[s.queries[:, 0]]
    return found
