"""Compares two outputs for the same tokens: equal bits, rounding and where it starts, or a bug.

The two may come from calls that differ: decode and prefill, another batch, other splits. Tokens are
matched if their queries have the same bits.
"""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from labkernels.audit import dumps
from labkernels.audit.names import DEFAULT_GIB, Take
from labkernels.audit.verdict import LAYOUTS, TAKEN_AS_BSHD, verdict
from labkernels.numerics.arrays import to_numpy
from labkernels.numerics.truth.problem import Problem, keys_of
from labkernels.numerics.truth.variant import VariantTensors
from labkernels.numerics.verdict.verdict import BUG, INCONCLUSIVE, LESS_EXACT, ROUNDING, Verdict
from labkernels.units import GiB

EQUAL, OTHER_INPUTS = "EQUAL BITS", "OTHER INPUTS"


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two outputs of the same tokens: a verdict on each by its own inputs, and where they differ.

    Shapes: tokens_a, tokens_b [n], which rows belong together; out_a, out_b [n, Hq, Dv]. inputs:
    what differs between the inputs of these tokens, in words.
    """

    a: Verdict
    b: Verdict
    tokens_a: np.ndarray
    tokens_b: np.ndarray
    out_a: np.ndarray
    out_b: np.ndarray
    inputs: tuple[str, ...] = ()

    @cached_property
    def differs(self) -> np.ndarray:
        """True where the bits differ; all NaN count as equal. Shapes: [n, Hq, Dv]."""
        both_nan = np.isnan(self.out_a) & np.isnan(self.out_b)
        return ~((self.out_a == self.out_b) | both_nan)

    @property
    def different(self) -> float:
        """Share of elements whose bits differ."""
        return float(self.differs.mean()) if self.differs.size else 0.0

    @property
    def first(self) -> tuple[int, int, int] | None:
        """First [token, head, channel] that differs; None where none does."""
        places = np.argwhere(self.differs)
        return (int(places[0][0]), int(places[0][1]), int(places[0][2])) if len(places) else None

    @property
    def wrong(self) -> str:
        """Which of the two is wrong: "a", "b", "both", "neither" or "inconclusive"."""
        bugs = [name for name, v in (("a", self.a), ("b", self.b)) if v.answer == BUG]
        if bugs:
            return "both" if len(bugs) == 2 else bugs[0]
        sound = self.a.answer == self.b.answer == ROUNDING
        return "neither" if sound else "inconclusive"

    @property
    def answer(self) -> str:
        """EQUAL BITS, ROUNDING, LESS EXACT, BUG, OTHER INPUTS or INCONCLUSIVE.

        Equal bits of two wrong outputs are a bug. Of other inputs nothing is said but what differs.
        """
        answers = {self.a.answer, self.b.answer}
        for worst in (BUG, LESS_EXACT, INCONCLUSIVE):
            if worst in answers:
                return worst if worst == BUG or not self.inputs else OTHER_INPUTS
        if self.inputs:
            return OTHER_INPUTS
        if not self.differs.any():
            return EQUAL
        return ROUNDING if self._is_near else INCONCLUSIVE

    @cached_property
    def _is_near(self) -> bool:
        """Whether the bounds of both outputs together allow every difference."""
        bound = self.a.bound[self.tokens_a] + self.b.bound[self.tokens_b]
        return bool((np.abs(self.out_a - self.out_b) <= bound)[self.differs].all())

    def summary(self) -> str:
        """Return text: the answer, how many elements differ, how much, where, and both verdicts."""
        lines = [f"{self.answer}: {self._sentence()}"]
        lines += [f"  inputs of a and b: {words}" for words in self.inputs]
        if self.differs.any():
            lines.append(f"  where: {self._where()}")
        return "\n".join(
            (
                *lines,
                f"  a is {self.a.summary(verbose=False)}",
                f"  b is {self.b.summary(verbose=False)}",
            )
        )

    def _sentence(self) -> str:
        n = len(self.out_a)
        start = f"{self.wrong} wrong; " if BUG in (self.a.answer, self.b.answer) else ""
        if not self.differs.any():
            return f"{start}all {n} tokens that both have, in every bit"
        expected = np.hypot(self.a.sigma[self.tokens_a], self.b.sigma[self.tokens_b])
        with np.errstate(all="ignore"):
            off = (np.abs(self.out_a - self.out_b) / expected)[self.differs]
        far = np.nan_to_num(off, nan=np.inf)  # a NaN beside a number
        return (
            f"{start}{100 * self.different:.2f} % of the elements of {n} tokens differ, by at most "
            f"{float(far.max(initial=0.0)):.3g} standard deviations of a difference by rounding"
        )

    def _where(self) -> str:
        keys = self.a.problem.n_keys[self.tokens_a]
        part = self.differs.any((1, 2))
        first_keys = int(keys[part].min())
        at = np.argwhere(self.differs & (keys == first_keys)[:, None, None])[0]
        row = self.a.problem.row_name(int(self.tokens_a[at[0]]), int(at[1]))
        words = [f"first at {row}, channel {int(at[2])}, which sees {first_keys} keys"]
        equal = keys[~part & (keys < first_keys)]
        if len(equal):
            words.append(f"rows of up to {int(equal.max())} keys have equal bits")
        heads = np.flatnonzero(self.differs.any((0, 2)))
        if len(heads) < self.differs.shape[1]:
            words.append(f"only heads {', '.join(map(str, heads[:8].tolist()))}")
        return "; ".join(words)


def compare(out_a, out_b, q, k=None, v=None, **how) -> Comparison:
    """Judge two outputs of one input, each against float64; arguments as for `verdict`.

    >>> rng = np.random.default_rng(0)
    >>> q, k, v = (rng.standard_normal((1, 2, n, 64)).astype(np.float16) for n in (4, 1, 1))
    >>> right = np.repeat(v, 4, axis=2)  # of one key, attention gives its V
    >>> found = compare(right, -right, q, k, v)
    >>> found.wrong, found.different
    ('b', 1.0)
    """
    found = [verdict(out, q, k, v, **how) for out in (out_a, out_b)]
    # the layout of both is that in which one is right
    taken = next((x for x in found if x.answer != BUG), found[0]).note
    how |= {"layout": LAYOUTS[taken == TAKEN_AS_BSHD]}
    a, b = (
        x if x.note == taken else verdict(out, q, k, v, **how)
        for x, out in zip(found, (out_a, out_b), strict=True)
    )
    if a.out.shape != b.out.shape:
        raise ValueError(f"out_b has {b.out.shape}, allowed: {a.out.shape}, as out_a")
    tokens = np.arange(len(a.out))
    return Comparison(a, b, tokens, tokens, a.out, b.out)


def compare_dumps(
    a: Path,
    b: Path,
    *,
    names: dict[str, str] | None = None,
    max_gib: float = DEFAULT_GIB,
    layout: str | None = None,
    heads: tuple[int, int] | None = None,
    **how,
) -> Comparison:
    """Compare two files, as `audit` takes them; tensors that b lacks are those of a.

    Raises: ValueError naming the file, or where the two have no query in common.
    """
    takes = [Take(dict(names or {}), max_gib * GiB) for _ in range(2)]
    said = dumps.told(layout=layout, heads=heads)
    tensors_a = dumps.read(a, takes[0]) | said
    tensors_b = dumps.read(b, takes[1], needs=("out",)) | said
    if not {"q", "qkv", "q_nope"} & tensors_b.keys():
        tensors_b = tensors_a | tensors_b
    found = compare_tensors(tensors_a, tensors_b, **how)
    of_a, of_b = (
        dumps.whole(*given) for given in zip((found.a, found.b), takes, (a, b), strict=True)
    )
    return replace(found, a=of_a, b=of_b)


def compare_tensors(
    a: dict, b: dict, *, p_format: str | None = None, named: bool = True
) -> Comparison:
    """Compare two dumps as dicts of tensors by the names of names.NAMES."""
    how = {"p_format": p_format, "named": named}
    first = dumps.judge(a, **how)
    query = to_numpy(first.problem.q)
    verdicts = [first, dumps.judge(b, query=query, **how)]
    tokens = _matched(*(to_numpy(v.problem.q) for v in verdicts))
    outs = [v.out[some] for v, some in zip(verdicts, tokens, strict=True)]
    if outs[0].shape != outs[1].shape:
        raise ValueError(f"out of b is {outs[1].shape}, allowed: {outs[0].shape}, as of a")
    inputs = _different_inputs(*(v.problem for v in verdicts), *tokens)
    return Comparison(*verdicts, *tokens, *outs, inputs)


def _different_inputs(a: Problem, b: Problem, tokens_a, tokens_b) -> tuple[str, ...]:
    """Return, in words, what differs between what the tokens of two problems see."""
    same_scale = np.float32(a.scale) == np.float32(b.scale)  # in which kernels hold it
    found = [] if same_scale else [f"scale {a.scale:.6g} and {b.scale:.6g}"]
    first, second = (p.variant or VariantTensors() for p in (a, b))
    for item in fields(VariantTensors):
        values = [getattr(x, item.name) for x in (first, second)]
        if item.name in ("mask", "bias"):
            pairs = zip(values, (tokens_a, tokens_b), strict=True)
            rows = [x if x is None else np.asarray(x)[..., some, :] for x, some in pairs]
            found += [f"{item.name} differs"] * (not np.array_equal(*rows))
        elif not np.array_equal(*values):
            found.append(f"{item.name} {values[0]} and {values[1]}")
    keys = a.n_keys[tokens_a] != b.n_keys[tokens_b]
    if keys.any():
        i = int(np.argmax(keys))
        counts = int(a.n_keys[tokens_a[i]]), int(b.n_keys[tokens_b[i]])
        found.append(
            f"{int(keys.sum())} of {len(keys)} tokens see other keys, first: {counts[0]} and "
            f"{counts[1]}; another length, causal, or window"
        )
    return (*found, *_different_keys(a, b, tokens_a, tokens_b))


def _different_keys(a: Problem, b: Problem, tokens_a, tokens_b) -> list[str]:
    """Return words for K and V whose values differ in the keys that two requests have."""
    found = []
    requests = np.stack([a.request_of[tokens_a], b.request_of[tokens_b]], 1)
    counts = np.minimum(a.n_keys[tokens_a], b.n_keys[tokens_b])
    for name in "kv":
        pairs = 0
        for one, other in np.unique(requests, axis=0).tolist():
            n = int(counts[(requests == (one, other)).all(1)].max())
            heads = {(i // a.group, i // b.group) for i in range(a.q.shape[1])}
            pairs += not all(
                np.array_equal(
                    keys_of(a, name, i, one)[:n], keys_of(b, name, j, other)[:n], equal_nan=True
                )
                for i, j in heads
            )
        if pairs:
            found.append(f"{name.upper()} differs in {pairs} requests")
    return found


def _matched(q_a, q_b) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of both whose queries are the same, each once, in the order of a."""
    if q_a.shape == q_b.shape and np.array_equal(q_a, q_b):
        return np.arange(len(q_a)), np.arange(len(q_b))
    places: dict[bytes, list[int]] = {}
    for token, query in reversed(list(enumerate(np.asarray(q_b, np.float32)))):
        places.setdefault(query.tobytes(), []).append(token)
    found = [places.get(query.tobytes()) for query in np.asarray(q_a, np.float32)]
    pairs = [(token, there.pop()) for token, there in enumerate(found) if there]
    if not pairs:
        raise ValueError("a and b have no query in common, allowed: outputs of the same tokens")
    left, right = zip(*pairs, strict=True)
    return np.array(left), np.array(right)
