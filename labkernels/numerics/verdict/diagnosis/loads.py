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
    for p in (x for x in _TILES if x < n):
        yield f"of {p} interleaved parts", 1.5, lambda j, n, p=p: j % p * (n // p) + j // p
        yield (
            f"of n / {p} interleaved parts",
            1.5,
            lambda j, n, p=p: j % -(-n // p) * p + j // (n / p),
        )
    for t in (x for x in _TILES if x < n or n == x > 2):
        yield f"j xor {t // 2}", 1.2, lambda j, n, t=t: j ^ (t // 2)
        yield f"{t - 1} - j % {t} of its {t}", 1.4, lambda j, n, t=t: j - 2 * (j % t) + t - 1
        yield f"0 of its {t}", 1.4, lambda j, n, t=t: j - j % t
        yield f"j % {t}", 1.4, lambda j, n, t=t: j % t
        yield f"j - {t}, odd tiles of {t}", 1.5, lambda j, n, t=t: j - j // t % 2 * t
        yield f"j + {t}, even tiles of {t}", 1.5, lambda j, n, t=t: j + (1 - j // t % 2) * t
        half = t // 2
        yield f"j % {half} of its {t}", 1.5, lambda j, n, t=t, h=half: j - j % t + j % h
        yield f"j - {t}, where j >= {t}", 1.5, lambda j, n, t=t: np.where(j >= t, j - t, j)
        for r in (x for x in (2, 4, 8) if 2 * x <= t):
            rule = lambda j, n, t=t, r=r: j - j % t + j % t % r * (t // r) + j % t // r
            yield f"of its {t} transposed as {r} x {t // r}", 1.5, rule


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
    heads, group, batch = problem.kv_heads, problem.group, problem.batch
    rules: list[tuple[str, float, Callable[[Block], tuple[int, int]]]] = []
    for place, cost, rule in maps(heads) if heads > 1 else ():
        at = indices(rule, heads)
        rules.append((f"KV head {place}", cost, lambda s, a=at: (s.request, int(a[s.kv_head]))))
    for place, cost, rule in maps(batch) if batch > 1 else ():
        at = indices(rule, batch)
        rules.append((f"request {place}", cost, lambda s, a=at: (int(a[s.request]), s.kv_head)))
    of_query_head = {
        "h % Hkv": lambda h: h % heads,
        "h // (group + 1)": lambda h: h // (group + 1),
        "h % (Hq / 2) // group": lambda h: h % max(1, heads * group // 2) // group,
    }
    for place, of in of_query_head.items() if heads > 1 else ():
        rules.append((f"KV head {place}", 0.7, lambda s, f=of: (s.request, f(s.head) % heads)))
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
    """Yield rows of Q of other heads, queries and requests."""
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
    for d in (-1, 1) if problem.batch > 1 else ():

        def beside(s: Block, d: int = d) -> Terms:
            to = (s.request + d) % problem.batch
            ends = problem.q_ends[to : to + 2]
            tokens = np.minimum(ends[0] + s.queries[:, 0], max(ends[1] - 1, 0))
            return s.by_load(q=s.queries_of(tokens, s.head))

        yield Trial(defects.INDEX_Q, Edit("Q", "of request", (f"b {d:+d}",)), beside)


def _others(s: Block, rule: Rule) -> np.ndarray:
    """Return the tokens of other queries of the request. Shapes: [R]."""
    found: np.ndarray = s.tokens - s.queries[:, 0] + indices(rule, s.n_queries)[s.queries[:, 0]]
    return found


def channels(block: Block) -> Iterator[Trial]:
    """Yield channels of Q, K and V from other places, and tiles of K and V transposed."""
    d, dv = block.problem.q.shape[-1], block.problem.out_shape[-1]
    for place, cost, rule in maps(d):
        at = indices(rule, d)
        for which, kind in (("K", defects.INDEX_K), ("Q", defects.INDEX_Q)):

            def mixed(s: Block, a: Array = at, which: str = which) -> Terms:
                if which == "Q":
                    return s.by_load(q=s.q[:, a])
                q = np.zeros_like(s.q)
                np.add.at(q.T, a, s.q.T)  # K's channels in another order are Q's, which are fewer
                return s.by_load(q=q)

            scoped = which == "K"
            yield Trial(kind, Edit(which, "from channel", (place,)), mixed, cost + 0.1, scoped)
    for place, cost, rule in maps(dv):
        at = indices(rule, dv)

        def of_v(s: Block, a: Array = at) -> Terms:
            v = s.case.keys("v", s.request, s.kv_head)
            return s.by_load(v=v[:, a[s.channels]])

        yield Trial(defects.INDEX_V, Edit("V", "from channel", (place,)), of_v, cost + 0.1, True)
    for which, kind in (("V", defects.INDEX_V), ("K", defects.INDEX_K)):
        for words, of in _layouts(d if which == "K" else dv, block.n):

            def laid(s: Block, f=of, which: str = which) -> Terms:
                x = f(s.case.keys(which.lower(), s.request, s.kv_head))
                return s.by_load(k=x) if which == "K" else s.by_load(v=x[:, s.channels])

            yield Trial(kind, Edit(which, words), laid, 1.5, True)


def turned(block: Block) -> Iterator[Trial]:
    """Yield Q and K turned once more, or back, by rotary embeddings of their places."""
    d = block.problem.q.shape[-1] // 2 * 2
    for halves, sign, of_whom in itertools.product((True, False), (1, -1), ("Q", "K", "Q and K")):

        def turn(s: Block, h: bool = halves, g: int = sign, whom: str = of_whom) -> Terms:
            q = _rotated(s.q, g * s.places[:, 0], d, h) if "Q" in whom else None
            k = _rotated(s.k, g * s.keys, d, h) if "K" in whom else None
            return s.by_load(q=q, k=k)

        pairs = "halves" if halves else "neighbours"
        words = f"turned {'once more' if sign > 0 else 'back'} by RoPE, pairs of"
        yield Trial(
            defects.SCORES, Edit(of_whom, words, (pairs,)), turn, 1.2, scoped=of_whom == "K"
        )


def _rotated(x: Array, places: Array, d: int, halves: bool) -> np.ndarray:
    """Return rows turned by their places, channels in pairs, base 10,000. Shapes: as x [n, D]."""
    angle = places[:, None] * 1e4 ** (-np.arange(0, d, 2) / d)
    pairs = (slice(0, d // 2), slice(d // 2, d)) if halves else (slice(0, d, 2), slice(1, d, 2))
    found, (a, b) = x.copy(), (x[:, p] for p in pairs)
    found[:, pairs[0]] = a * np.cos(angle) - b * np.sin(angle)
    found[:, pairs[1]] = a * np.sin(angle) + b * np.cos(angle)
    return found


def products(block: Block) -> Iterator[Trial]:
    """Yield products of Q and K in which some first or last channels count twice or not at all."""
    d = block.problem.q.shape[-1]
    sizes = sorted({x for x in (1, 2, 4, 8, 16, 32, 64, d // 2) if 0 < x < d})
    for size, last, times in itertools.product(sizes, (True, False), (0, 2)):
        some = slice(d - size, d) if last else slice(0, size)

        def of(s: Block, some: slice = some, times: int = times) -> Terms:
            more = (times - 1) * (s.q[:, some] @ s.k[:, some].T)
            return s.by_scores(s.shaped(s.products + more))

        which = f"the {'last' if last else 'first'} {size} channels"
        edit = Edit("scores", "count twice" if times else "leave out", (which,))
        yield Trial(defects.SCORES, edit, of, 1.2, scoped=True)


def _layouts(d: int, n: int) -> Iterator[tuple[str, Callable[[Array], Array]]]:
    """Yield readings of [L, D] at other addresses: shifted, at another stride, transposed."""
    for step in (4, 8, 16, 32, -4, -8, -16, -32):
        roll = lambda x, s=step: np.roll(x.ravel(), -s).reshape(x.shape)
        yield f"read {step:+d} elements off", roll
    for more in (8, 16, -8):

        def strided(x: Array, more: int = more) -> np.ndarray:
            at = np.arange(len(x))[:, None] * (d + more) + np.arange(d)
            return x.ravel()[at % x.size]

        yield f"read at a stride of {d + more} for {d}", strided
    yield "stored as [L, D] and read as [D, L]", lambda x: x.ravel().reshape(x.shape[::-1]).T
    yield "stored as [D, L] and read as [L, D]", lambda x: x.T.ravel().reshape(x.shape)
    for t in (x for x in (4, 8, 16, 32) if x <= min(d, n)):

        def squares(x: Array, t: int = t) -> np.ndarray:
            rows, cols = len(x) // t * t, d // t * t
            found = x.copy()
            parts = x[:rows, :cols].reshape(rows // t, t, cols // t, t)
            found[:rows, :cols] = parts.swapaxes(1, 3).reshape(rows, cols)
            return found

        yield f"with squares of {t} x {t} transposed", squares
