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
from labkernels.units import LN_2, LOG2_E

_ANSWERS = (BUG, LESS_EXACT, INCONCLUSIVE, ROUNDING)  # the first that any part has is the whole's


@dataclass(frozen=True, eq=False)
class RanksVerdict:
    """The answer on an output that ranks made together, and the verdict on each rank's part.

    kind: a class of `labkernels.defects.CLASSES`, "" where nothing is wrong or no class is known.
    ranks: those that are wrong. in_merge: whether the parts are right and the merge is not.
    """

    answer: str
    why: str
    kind: str
    ranks: tuple[int, ...]
    in_merge: bool
    parts: tuple[Verdict, ...]

    def summary(self) -> str:
        """Return the answer in a line, and a line for each part that is not rounding."""
        lines = [f"{self.answer}: {self.why}"]
        for rank, part in enumerate(self.parts):
            if part.answer != ROUNDING:
                lines.append(f"  rank {rank}: {part.answer}: {part.why}")
        return "\n".join(lines)


def verdict_ranks(
    outs,
    lse2s,
    q,
    caches: Sequence[Any],
    *,
    out=None,
    causal: bool | Sequence[bool] = False,
    carry: str | None = None,
    hops: bool = False,
    **options,
) -> RanksVerdict:
    """Say whether an attention over ranks differs from float64 by rounding, and if not, where.

    Every rank's part is judged over the keys of its rank. A part that is wrong there and right over
    another rank's keys is a stale chunk. The merged output is then held against the exact merge of
    the parts as they are, so that one mistake is not counted twice.
    Shapes: outs, lse2s: of each rank, as `verdict` takes them, lse2s in base 2; caches: of each
    rank; out: merged. causal: of all or of each part. carry: the format in which outs travelled,
    if they are given in a wider one. hops: the sum was rounded to it after every part. options: as
    `verdict` has them. q: as for `verdict`.
    Raises: ValueError naming the argument, its value and what is allowed.

    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 1, 64)).astype(np.float16)
    >>> halves = [dict(k=k, v=v), dict(k=k + 1, v=v - 1)]  # one key a rank gives its V
    >>> lse2s = [np.einsum("bhsd,bhsd->bhs", q, x["k"].astype(float)) / 8 * LOG2_E for x in halves]
    >>> outs = [x["v"] for x in halves]
    >>> right = merging.merged(np.stack(outs), merging.shares(np.stack(lse2s)))
    >>> found = verdict_ranks(outs, lse2s, q, halves, out=right.astype(np.float16))
    >>> wrong = verdict_ranks(outs, lse2s, q, halves, out=(v - np.float16(0.5)))
    >>> found.answer, wrong.why
    ('ROUNDING', 'the merge: parts are not weighted')
    """
    if not len(outs) == len(lse2s) == len(caches):
        found = f"{len(outs)}, {len(lse2s)}, {len(caches)}"
        raise ValueError(f"outs, lse2s, caches of {found} ranks, allowed: equally many")
    masks = [causal] * len(outs) if isinstance(causal, bool) else list(causal)

    def judge(rank: int, keys: int, **how: Any) -> Verdict:
        given = caches[keys]
        given = given if isinstance(given, dict) else {"cache": given}
        how = {**options, **given, "causal": masks[keys], **how}
        return verdict(outs[rank], q, lse2=lse2s[rank], **how)

    parts = [judge(rank, rank, named=False) for rank in range(len(outs))]
    for rank, part in enumerate(parts):
        stale = _stale(rank, len(parts), judge) if part.answer == BUG else None
        if stale is not None:
            why = f"rank {rank}: a stale chunk, its part is that of the keys of rank {stale}"
            return RanksVerdict(BUG, why, defects.INDEX_K, (rank,), False, tuple(parts))
        if part.answer == BUG:  # or less exact, which only a search for names tells
            parts[rank] = judge(rank, rank)
    answer = min((part.answer for part in parts), key=_ANSWERS.index)
    wrong = tuple(rank for rank, part in enumerate(parts) if part.answer == answer)
    if answer == BUG:
        first = parts[wrong[0]]
        kind = first.matches[0].kind if first.matches else ""
        return RanksVerdict(BUG, f"rank {wrong[0]}: {first.why}", kind, wrong, False, tuple(parts))
    name = _of_merge(outs, lse2s, out, carry, hops=hops) if out is not None else ""
    if name:
        return RanksVerdict(BUG, f"the merge: {name}", defects.MERGE, (), True, tuple(parts))
    if answer != ROUNDING:
        return RanksVerdict(
            answer, f"rank {wrong[0]}: {parts[wrong[0]].why}", "", wrong, False, parts
        )
    why = f"{len(parts)} parts" + (" and their merge" if out is not None else "")
    return RanksVerdict(ROUNDING, f"{why}: nothing beyond what rounding does", "", (), False, parts)


def _stale(rank: int, ranks: int, judge: Callable[..., Verdict]) -> int | None:
    """Return the first other rank over whose keys a part is right, or None."""
    for keys in range(ranks):
        try:
            if keys != rank and judge(rank, keys, named=False).answer == ROUNDING:
                return keys
        except ValueError:  # of shapes that differ
            continue
    return None


def _of_merge(outs, lse2s, out, carry: str | None, *, hops: bool) -> str:
    """Return what is wrong with the merge of the parts as they are; "" where nothing is."""
    carry = carry or format_of("outs[0]", outs[0])
    states, logs = (np.stack([to_numpy(x) for x in xs]).astype(np.float64) for xs in (outs, lse2s))
    given = to_numpy(out)
    if given.shape != states.shape[1:]:
        raise ValueError(f"out.shape = {given.shape}, allowed: {states.shape[1:]}, as outs[0]")
    how = {"out_format": format_of("out", out), "carry": carry, "hops": hops}

    def beyond(parts: np.ndarray, weights: np.ndarray) -> float:
        error = metrics.difference(given, merging.merged(parts, weights))
        ratio = np.abs(error) / merging.merged_bound(parts, weights, **how)
        return float(np.where(np.isnan(ratio), np.inf, ratio).max(initial=0.0))

    if beyond(states, merging.shares(logs)) <= 1:
        return ""
    for words, parts, weights in _mistakes(states, logs):
        if beyond(parts, weights) <= 1:
            return words
    return "no known mistake gives this output"


def _mistakes(outs: np.ndarray, lse2s: np.ndarray) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield wrong merges: words, the parts that are merged, and their weights."""
    ranks = range(len(outs))
    weights, live = merging.shares(lse2s), lse2s > -np.inf
    yield "parts are not weighted", outs, live / np.maximum(live.sum(0), 1)
    for words, factor in (
        ("LSEs of base 2 are read as natural", LOG2_E),
        ("LSEs of base 2 are converted from base e to 2 the wrong way", LN_2),
    ):
        yield words, outs, merging.shares(lse2s * factor)
    yield "parts are added without weights", outs, live
    for rank in ranks:
        for times, words in ((2.0, "counts twice"), (0.0, "is left out")):
            changed = np.where(np.arange(len(outs)) == rank, times, 1.0)
            found = weights * changed.reshape(-1, *[1] * (weights.ndim - 1))
            total = found.sum(0)
            yield f"rank {rank} {words}", outs, found / np.where(total == 0, 1.0, total)
    for rank in ranks:
        for other in ranks:
            source = [other if i == rank else i for i in ranks]
            if other != rank:
                words = f"a stale chunk, rank {other}'s part stands in the place of rank {rank}'s"
                yield words, outs[source], merging.shares(lse2s[source])
                yield f"{words}, without its LSE", outs[source], weights
