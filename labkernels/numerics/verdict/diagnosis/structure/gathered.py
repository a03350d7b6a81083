"""Rows that went wrong, of as many heads and requests as there are, and their right weights."""

import functools
from dataclasses import dataclass

import numpy as np

from labkernels.numerics import rounding
from labkernels.numerics.arrays import Array
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict.diagnosis.structure.linear import Terms
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet

_PAIRS = 24  # most pairs of a request and a KV head
_TOKENS = 24  # most tokens per pair
_NUMBERS = 2**16  # most rows times keys over all pairs: with more, the fits take minutes


@dataclass(frozen=True, eq=False)
class Block:
    """Rows of a request and a KV head. Shapes: out, sigma, truth [R, Dv]; p [R, L]."""

    sheet: Sheet
    sigma: np.ndarray

    @functools.cached_property
    def p(self) -> np.ndarray:
        """The right weights, divided by their sum; those of hidden keys as if they were seen."""
        top = self.sheet.scores.max(1, keepdims=True)
        total = np.exp2(self.sheet.scores - top).sum(1, keepdims=True)
        total = total + np.exp2(self.sheet.sink - top)
        with np.errstate(over="ignore"):
            return np.exp2(self.sheet.raw - top) / total

    @property
    def seen(self) -> np.ndarray:
        """The keys that a row sees. Shapes: [R, L]."""
        return ~self.sheet.hidden

    @property
    def v(self) -> np.ndarray:
        """The values of the block. Shapes: [L, Dv]."""
        return self.sheet.v

    @property
    def query(self) -> np.ndarray:
        """The place of each row's query in its request. Shapes: [R]."""
        return self.sheet.tokens - int(self.sheet.problem.q_ends[self.sheet.request])

    def terms(self, above: Array, below: Array | None) -> Terms:
        """Return the equations of the block's rows."""
        return Terms(above, below, self.sheet.out, self.sigma)

    def of_rows(self, rows: Array) -> "Block":
        """Return a block of some of the rows."""
        from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import part

        return Block(part(self.sheet, rows), self.sigma[rows])


def equations_of(blocks: "list[Block]") -> int:
    """Return how many numbers the rows of all blocks can show."""
    return int(sum(block.sheet.reach.sum() for block in blocks))


def gathered(
    problem: Problem,
    out: Array,
    truth: Array,
    sigma: Array,
    bad: Array,
    p_format: str,
    fmt: str,
    channels: Array | None = None,
) -> list[Block]:
    """Return wrong rows, with all wrong heads of a token. Shapes: bad [total_q, Hq], bool."""
    some = slice(None) if channels is None else channels
    group, ends = problem.group, problem.q_ends
    pairs = [
        (request, head)
        for request in range(problem.batch)
        for head in range(problem.kv_heads)
        if bad[ends[request] : ends[request + 1], head * group : (head + 1) * group].any()
    ]
    longest = max((int(problem.kv_lens[request]) for request, _ in pairs), default=1)
    most = min(_PAIRS, max(2, _NUMBERS // (longest * group or 1)))
    pairs = [pairs[i] for i in np.unique(np.linspace(0, len(pairs) - 1, most).astype(int))]
    tokens_most = max(1, min(_TOKENS, _NUMBERS // (longest * len(pairs) * group or 1)))
    found = []
    for request, head in pairs:
        part = bad[ends[request] : ends[request + 1], head * group : (head + 1) * group]
        tokens = np.flatnonzero(part.any(1))
        tokens = tokens[np.unique(np.linspace(0, len(tokens) - 1, tokens_most).astype(int))]
        rows = np.argwhere(part[tokens])
        place = tokens[rows[:, 0]] + ends[request], rows[:, 1] + head * group
        given, right, spread = (x[place][:, some] for x in (out, truth, sigma))
        where = problem, request, head, *place
        sheet = Sheet(*where, given, right, spread, p_format, some)
        store = rounding.quantum(given, fmt) / 12**0.5
        found.append(Block(sheet, np.maximum(spread, store)))
    return found
