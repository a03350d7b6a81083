"""`verdict_ranks`: which rank of a distributed attention is wrong, or how their merge is."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkernels import defects
from labkernels.audit.verdict import format_of, verdict
from labkernels.numerics import metrics
from labkernels.numerics.arrays import to_numpy
from labkernels.numerics.error import merging
from labkernels.numerics.verdict.verdict import BUG, INCONCLUSIVE, LESS_EXACT, ROUNDING, Verdict
from labkernels.units import LOG2_E

_ANSWERS = (BUG, LESS_EXACT, INCONCLUSIVE, ROUNDING)  # the first that any part has is the whole's


@dataclass(frozen=True, eq=False)
class RanksVerdict:
    """The answer on an output that ranks made together, and the verdict on each rank's part.

    kind: a class of `labkernels.defects.CLASSES`, or "". rank: the first that is wrong, None where
    the merge is, or nothing.
    """

    answer: str
    why: str
    kind: str
    rank: int | None
    parts: tuple[Verdict, ...]


def verdict_ranks(
    outs,
    lse2s,
    q,
    caches: Sequence[Any],
    *,
    out=None,
    causal: bool | Sequence[bool] = False,
    hops: bool = False,
    **options,
) -> RanksVerdict:
    """Say whether an attention over ranks differs from float64 by rounding, and if not, where.

    Every rank's part is judged over its rank's keys; if it is right over another rank's keys only,
    it is a stale chunk. The merged output is then held against the exact merge of the parts as they
    are, so that one mistake is not counted twice.
    Shapes: outs, lse2s, caches: of each rank, as `verdict` takes them; out: merged. causal: of all
    or of each part. hops: the sum was rounded to the format of outs after every part. q, options:
    as for `verdict`. Raises: ValueError naming the argument, its value and what is allowed.

    >>> from types import SimpleNamespace as Cache  # of one key
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 2, 1, 64)).astype(np.float16)
    >>> caches = [Cache(k=k[i : i + 1], v=v[i : i + 1], cu_seqlens=[0, 1]) for i in range(2)]
    >>> lse2s = [(q[:1] * x.k.astype(float)).sum(-1) / 8 * LOG2_E for x in caches]
    >>> verdict_ranks([x.v for x in caches], lse2s, q[:1], caches, out=(v[:1] + v[1:]) / 2).why
    'the merge: parts are not weighted'
    """
    if not len(outs) == len(lse2s) == len(caches):
        found = f"{len(outs)}, {len(lse2s)}, {len(caches)}"
        raise ValueError(f"outs, lse2s, caches of {found} ranks, allowed: equally many")
    masks = [causal] * len(outs) if isinstance(causal, bool) else list(causal)

    def judge(rank: int, keys: int, *, named: bool = False) -> Verdict:
        how = {**options, "cache": caches[keys], "causal": masks[keys], "named": named}
        return verdict(outs[rank], q, lse2=lse2s[rank], **how)

    parts = [judge(rank, rank) for rank in range(len(outs))]
    for rank, part in enumerate(parts):
        other = _stale(rank, len(parts), judge) if part.answer == BUG else None
        if other is not None:
            why = f"rank {rank}: a stale chunk, its part is that of the keys of rank {other}"
            return RanksVerdict(BUG, why, defects.INDEX_K, rank, tuple(parts))
        if part.answer == BUG:  # or less exact, which only a search for names tells
            parts[rank] = judge(rank, rank, named=True)
    worst = min(range(len(parts)), key=lambda rank: _ANSWERS.index(parts[rank].answer))
    part = parts[worst]
    right = out is None or part.answer == BUG
    name = "" if right else _of_merge(outs, lse2s, out, hops=hops)
    if name:
        return RanksVerdict(BUG, f"the merge: {name}", defects.MERGE, None, tuple(parts))
    if part.answer == ROUNDING:
        why = f"{len(parts)} parts, and what is merged: nothing beyond what rounding does"
        return RanksVerdict(ROUNDING, why, "", None, tuple(parts))
    kind = part.matches[0].kind if part.matches else ""
    return RanksVerdict(part.answer, f"rank {worst}: {part.why}", kind, worst, tuple(parts))


def _stale(rank: int, ranks: int, judge: Callable[..., Verdict]) -> int | None:
    """Return the first other rank over whose keys a part is right, or None."""
    for keys in range(ranks):
        try:
            if keys != rank and judge(rank, keys).answer == ROUNDING:
                return keys
        except ValueError:  # of shapes that differ
            continue
    return None


def _of_merge(outs, lse2s, out, *, hops: bool) -> str:
    """Return what is wrong with the merge of the parts as they are; "" where nothing is."""
    states, logs = (np.stack([to_numpy(x) for x in xs]).astype(np.float64) for xs in (outs, lse2s))
    given = to_numpy(out)
    if given.shape != states.shape[1:]:
        raise ValueError(f"out.shape = {given.shape}, allowed: {states.shape[1:]}, as outs[0]")
    carry = format_of("outs[0]", outs[0]) if hops else "fp32"
    right = False  # where the right merge explains the output, a wrong one need not
    for words, parts, weights in _merges(states, logs):
        bound = merging.merged_bound(parts, weights, format_of("out", out), carry, hops=hops)
        error = np.abs(metrics.difference(given, merging.merged(parts, weights)))
        near = (error <= bound).all(-1)
        if (near | right).all():
            return words
        right = right if words else near
    return "no known mistake gives this output"


def _merges(outs: np.ndarray, lse2s: np.ndarray) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield the right merge and wrong ones: words, the parts that are merged, their weights."""
    weights, live, ranks = merging.shares(lse2s), lse2s > -np.inf, np.arange(len(outs))
    yield "", outs, weights
    yield "parts are not weighted", outs, live / np.maximum(live.sum(0), 1)
    yield "parts are not weighted, those without keys included", outs, live / len(outs)
    yield "LSEs of base 2 are read as natural", outs, merging.shares(lse2s * LOG2_E)
    yield "LSEs of base 2 are converted to base 2", outs, merging.shares(lse2s / LOG2_E)
    yield "parts are added without weights", outs, live
    for rank in ranks:
        out = "is left out"
        if len(outs) == 2:  # both mistakes leave the other rank's part alone
            out = "is left out, or a stale chunk, the other's part, stands in its place"
        for more, words in ((1.0, "counts twice"), (-np.inf, out)):
            logs = lse2s.copy()
            logs[rank] += more
            yield f"rank {rank} {words}", outs, merging.shares(logs)
    for rank, other in ((i, j) for i in ranks for j in ranks if i != j):
        source = np.where(ranks == rank, other, ranks)
        words = f"a stale chunk, rank {other}'s part stands in the place of rank {rank}'s"
        yield words, outs[source], merging.shares(lse2s[source])
        yield f"{words}, without its LSE", outs[source], weights
