"""Which requests of two saved batches have other bits, and whether the cuts of both say so.

Requests belong together where their queries have the same bits.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkernels.audit import dumps
from labkernels.audit.comparison import Comparison, compare_tensors
from labkernels.audit.names import DEFAULT_GIB, Take
from labkernels.numerics.arrays import to_numpy
from labkernels.numerics.truth.problem import Problem, keys_of
from labkernels.numerics.truth.variant import VariantTensors
from labkernels.planners import Batch, Cut, NotKnown
from labkernels.planners.cut import because
from labkernels.planners.prediction import changed_heads
from labkernels.policy import SIXTEEN_BITS
from labkernels.units import LOG2_E, GiB


@dataclass(frozen=True, eq=False)
class Parted:
    """A request that two batches have. numbers: in each of them. keys: that its last query sees.

    differs, predicted: heads with other bits, as seen and as the cuts say. Shapes: [Hq].
    """

    numbers: tuple[int, int]
    keys: int
    sizes: tuple[int, int]
    cuts: tuple[Cut, Cut]
    differs: np.ndarray
    predicted: np.ndarray

    @property
    def is_cut_alike(self) -> bool:
        """Whether both batches give the request one arithmetic."""
        left, right = (cut.arithmetic(i) for cut, i in zip(self.cuts, self.numbers, strict=True))
        return left == right

    def __str__(self) -> str:
        n, heads = int(self.differs.sum()), len(self.differs)
        of_heads, start = f"{n} of {heads} heads differ", f"request {self.numbers[0]}"
        if self.is_cut_alike:
            alike = f"its {self.keys:,} keys are cut alike: {self.cuts[0].label(self.numbers[0])}"
            if not n:
                return f"{start} has equal bits, and {alike}"
            return f"{start} changed, and not by its cut: {of_heads}, though {alike}"
        right = int((self.differs == self.predicted).sum())
        told = "as predicted" if right == heads else f"predicted rightly for {right}"
        how = "changed because" if n else "has equal bits although"
        why = because(self.keys, self.cuts, self.numbers, self.sizes)
        return f"{start} {how} {why}; {of_heads}, {told}"


def parted(a: Path, b: Path, plan: Callable[[Batch], Cut]) -> tuple[Comparison, list[Parted]]:
    """Compare two dumps, and hold each request's bits against the cuts of a planner.

    Raises: ValueError for files that cannot be compared or inputs that differ; NotKnown for a
    variant of attention, and where the planner's rule was not read.
    """
    tensors = [dumps.read(path, Take({}, DEFAULT_GIB * GiB)) for path in (a, b)]
    found = compare_tensors(*tensors, named=False)
    if found.inputs:
        raise ValueError(f"{a} and {b}: {'; '.join(found.inputs)}, allowed: the same requests")
    problems, dtype = [found.a.problem, found.b.problem], found.a.policy.out
    pairs = zip(problems, tensors, strict=True)
    cuts = [plan(batch_of(problem, given, dtype)) for problem, given in pairs]
    return found, list(_requests(found, problems, cuts, dtype))


def batch_of(problem: Problem, tensors: dict, dtype: str) -> Batch:
    """Return the shapes of a dump's call. Raises: NotKnown for a variant but a causal mask."""
    if problem.variant is not None and problem.variant != VariantTensors():
        raise NotKnown(
            "windows, soft caps, slopes, sinks, masks and biases: heads are not predicted"
        )
    if dtype not in SIXTEEN_BITS:
        raise NotKnown(f"an output in {dtype}: heads are predicted of {' and '.join(SIXTEEN_BITS)}")
    paged = {"page_table", "kv_indices"} & tensors.keys()
    queries = tuple(np.diff(problem.q_ends).tolist())
    return Batch(
        tuple(problem.kv_lens.tolist()),
        problem.q.shape[1],
        problem.kv_heads,
        problem.q.shape[2],
        queries,
        page_size=problem.k_pool.shape[1] if paged else None,
        dtype=dtype,
        causal=problem.causal,
    )


def _requests(
    found: Comparison, problems: list[Problem], cuts: list[Cut], dtype: str
) -> Iterator[Parted]:
    """Yield each request that both dumps have, with its heads as seen and as predicted."""
    places = np.stack(
        [p.request_of[t] for p, t in zip(problems, (found.tokens_a, found.tokens_b), strict=True)],
        1,
    )
    for pair in np.unique(places, axis=0):
        mine = (places == pair).all(axis=1)
        numbers = int(pair[0]), int(pair[1])
        heads = [
            changed_heads(
                *_seen(problems[0], token, numbers[0]), *cuts, dtype=dtype, requests=numbers
            )
            for token in found.tokens_a[mine].tolist()
        ]
        keys = int(problems[0].n_keys[found.tokens_a[mine]].max())
        differs = found.differs[mine].any(axis=(0, 2))
        sizes = problems[0].batch, problems[1].batch
        yield Parted(numbers, keys, sizes, tuple(cuts), differs, np.any(heads, axis=0))


def _seen(problem: Problem, token: int, request: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a token's scores in log2 units and the values. Shapes: [Hq, n], [Hq, n, Dv]."""
    n, group = int(problem.n_keys[token]), problem.group
    keys, values = (
        np.stack([keys_of(problem, name, head, request)[:n] for head in range(problem.kv_heads)])
        for name in "kv"
    )
    q = to_numpy(problem.q)[token].astype(np.float64).reshape(problem.kv_heads, group, -1)
    scores = q @ keys.swapaxes(1, 2) * (problem.scale * LOG2_E)
    return scores.reshape(-1, n), values.repeat(group, axis=0)
