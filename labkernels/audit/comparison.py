"""Compares two outputs for the same tokens: equal bits, rounding and where it starts, or a bug.

The two may come from calls that differ: decode and prefill, another batch, other splits. Tokens are
matched if their queries have the same bits.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from labkernels.audit import dumps
from labkernels.audit.names import DEFAULT_GIB
from labkernels.numerics.arrays import to_numpy
from labkernels.numerics.verdict.verdict import BUG, INCONCLUSIVE, LESS_EXACT, ROUNDING, Verdict

EQUAL = "EQUAL BITS"
_TILES = (4096, 2048, 1024, 512, 256, 128, 64, 32, 16)


@dataclass(frozen=True, eq=False)
class Pair:
    """Two outputs of the same tokens, each with a verdict by its own inputs.

    Shapes: tokens_a, tokens_b [n], which rows belong together; out_a, out_b [n, Hq, Dv].
    """

    a: Verdict
    b: Verdict
    tokens_a: np.ndarray
    tokens_b: np.ndarray
    out_a: np.ndarray
    out_b: np.ndarray

    @cached_property
    def differs(self) -> np.ndarray:
        """True where the bits differ; all NaN count as equal. Shapes: [n, Hq, Dv]."""
        both_nan = np.isnan(self.out_a) & np.isnan(self.out_b)
        return ~((self.out_a == self.out_b) | both_nan)

    @property
    def answer(self) -> str:
        """EQUAL BITS, ROUNDING, LESS EXACT, BUG or INCONCLUSIVE.

        Equal bits of two wrong outputs are a bug.
        """
        answers = {self.a.answer, self.b.answer}
        for worst in (BUG, LESS_EXACT, INCONCLUSIVE):
            if worst in answers:
                return worst
        return ROUNDING if self.differs.any() else EQUAL

    def summary(self) -> str:
        """Return text: the answer, how many elements differ, how much, where, and both verdicts."""
        lines = [f"{self.answer}: {self._sentence()}"]
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
        wrong = [name for name, v in (("a", self.a), ("b", self.b)) if v.answer == BUG]
        start = f"{' and '.join(wrong)} wrong; " if wrong else ""
        if not self.differs.any():
            return f"{start}all {n} tokens that both have, in every bit"
        expected = np.hypot(self.a.sigma[self.tokens_a], self.b.sigma[self.tokens_b])
        with np.errstate(all="ignore"):
            off = (np.abs(self.out_a - self.out_b) / expected)[self.differs]
        return (
            f"{start}{self.differs.mean():.2%} of the elements of {n} tokens differ, by at most "
            f"{float(off.max()):.3g} standard deviations of a difference by rounding"
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
            last = int(equal.max())
            words.append(f"rows of up to {last} keys have equal bits")
            tile = next((t for t in _TILES if t < first_keys), None)
            if tile:
                words.append(f"tiles or splits of {tile} keys would part them so")
        heads = np.flatnonzero(self.differs.any((0, 2)))
        if len(heads) < self.differs.shape[1]:
            words.append(f"only heads {', '.join(map(str, heads[:8].tolist()))}")
        return "; ".join(words)


def compare_dumps(
    a: Path, b: Path, *, names: dict[str, str] | None = None, max_gib: float = DEFAULT_GIB, **how
) -> Pair:
    """Compare two files, as `audit` takes them; tensors that b lacks are those of a.

    Raises: ValueError naming the file, or where the two have no query in common.
    """
    tensors_a = dumps.read(a, names=names, max_gib=max_gib)
    try:
        tensors_b = dumps.read(b, names=names, max_gib=max_gib)
    except ValueError as error:
        if "tensor q is missing" not in str(error):
            raise
        tensors_b = tensors_a | dumps.importers.read(
            Path(b), dumps.Take(dict(names or {}), max_gib * dumps.GIB)
        )
    return compare(tensors_a, tensors_b, **how)


def compare(a: dict, b: dict, *, p_format: str | None = None) -> Pair:
    """Compare two dumps as dicts of tensors by the names of names.NAMES."""
    first = dumps.judge(a, p_format=p_format)
    query = to_numpy(first.problem.q)
    verdicts = [first, dumps.judge(b, p_format=p_format, query=query)]
    tokens = _matched(*(to_numpy(v.problem.q) for v in verdicts))
    outs = [v.out[some] for v, some in zip(verdicts, tokens, strict=True)]
    if outs[0].shape != outs[1].shape:
        raise ValueError(f"out of b is {outs[1].shape}, allowed: {outs[0].shape}, as of a")
    return Pair(*verdicts, *tokens, *outs)


def _matched(q_a, q_b) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of both whose queries are the same, each once, in the order of a."""
    if q_a.shape == q_b.shape and np.array_equal(q_a, q_b):
        return np.arange(len(q_a)), np.arange(len(q_b))
    places: dict[bytes, list[int]] = {}
    for token, query in enumerate(np.asarray(q_b, np.float32)):
        places.setdefault(query.tobytes(), []).append(token)
    pairs = []
    for token, query in enumerate(np.asarray(q_a, np.float32)):
        found = places.get(query.tobytes())
        if found:
            pairs.append((token, found.pop(0)))
    if not pairs:
        raise ValueError("a and b have no query in common, allowed: outputs of the same tokens")
    left, right = zip(*pairs, strict=True)
    return np.array(left), np.array(right)
