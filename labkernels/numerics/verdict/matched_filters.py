"""Matched filters: how much of an error lies along the direction that a mistake would give it.

Symbols: e = out - o, s its expected sigma, D a direction, one vector per row (query and head).
beta = <e / s^2, D> / <D / s^2, D>: 1 where the mistake was made, about 0 where it was not.
"""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkernels.numerics.arrays import ZERO, Array, moved, namespace, to_numpy
from labkernels.numerics.error import sigma as error_sigma
from labkernels.numerics.error.sigma import Squares
from labkernels.numerics.truth.frame import Frame
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.truth.rows import Rows
from labkernels.numerics.truth.threads import over_rows
from labkernels.numerics.verdict.left_out import Scan
from labkernels.numerics.verdict.row_sums import DIRECTIONS as DIRECTIONS
from labkernels.numerics.verdict.row_sums import TINY, Directions, ErrorRows, Sums, dot, folded
from labkernels.policy import NumericPolicy

_FEW_KEYS = 64  # tell channels apart that are not equal
_PROBES, _MANY_ROWS = 6, 2**14  # from so many rows on, half of the probes are enough
# From so many scores on, filters take some blocks of rows: the first ones of a request, whose rows
# differ most, and each 16th, others in the next head. A mistake is hardly in the other rows alone.
_SAMPLED, _FIRST_BLOCKS, _EACH = 2**23, 2, 16


@dataclass(frozen=True)
class Keys:
    """The key whose absence explains most. Shapes: [...]; z and beta along that direction."""

    key: np.ndarray
    z: np.ndarray
    beta: np.ndarray


@dataclass(frozen=True)
class Filters:
    """The results of the passes over the keys.

    Shapes: along, power, variance [len(DIRECTIONS), total_q, Hq], the sums <e / s^2, D>,
    <D / s^2, D> and the variance of the first that rounding causes; all others but `sample`
    [total_q, Hq]. sharing: how many keys share the rounding of P. coherence: the variance of a
    row's mean z^2 over 2. repeats: how many rows have the same errors. alike: how many channels at
    most are rounded alike. row, sample [B]: for each, the key whose absence explains most.
    """

    along: np.ndarray
    power: np.ndarray
    variance: np.ndarray
    sharing: np.ndarray
    coherence: np.ndarray
    repeats: np.ndarray
    alike: np.ndarray
    row: Keys
    sample: Keys


def matched_filters(problem: Problem, policy: NumericPolicy, error: Array, sigma: Array) -> Filters:
    """Filter the errors of all rows. An error that is not finite counts as 0; other tests show it.

    Of two possible denominators, the one that makes rounding look larger counts.
    Shapes: error and sigma [total_q, Hq, Dv]; sigma is not 0.
    """

    def given(rows: Rows, _: Squares) -> Array:
        return moved(rows.of(sigma), problem.q)

    return Filtering(problem, policy, given, in_all=False).over_rows(error)[1]


def with_sigma(problem: Problem, policy: NumericPolicy, bias: Array) -> "Filtering":
    """Return filters by the error model's sigma, with a bias as a part of it.

    The sums over the keys that both need are computed once. Where sigma is 0, filters take 1.
    Shapes: bias, a part of o, [total_q].
    """

    def expected(rows: Rows, sums: Squares) -> Array:
        part = np.repeat(bias[rows.first : rows.last], problem.group)[:, None]
        of_bias = moved(part, problem.q) * rows.o
        return namespace(rows.o).hypot(error_sigma.of_squares(rows, sums, policy), of_bias)

    return Filtering(problem, policy, expected)


def is_sampled(problem: Problem) -> bool:
    """Return whether a problem is so large that a sample of its rows is filtered."""
    return problem.n_scores >= _SAMPLED


def stand_ins(problem: Problem) -> dict[Rows, Rows]:
    """Return, for each block of rows, the one that is filtered for it: itself in a small problem.

    Another one is an earlier block of the same request and heads, with as many rows or more.
    """
    blocks = problem.row_blocks()
    if not is_sampled(problem):
        return {rows: rows for rows in blocks}
    found: dict[Rows, Rows] = {}
    for place, of_place in itertools.groupby(blocks, lambda rows: (rows.request, rows.kv_first)):
        for number, rows in enumerate(of_place):
            if number < _FIRST_BLOCKS or (number + sum(place)) % _EACH == 0:
                taken = rows
            found[rows] = taken
    return found


class Filtering:
    """Filters the errors of some rows after the other.

    sigma_of: sigma by rows and their sums. in_all: sigma of all rows is asked for, not that of
    filtered rows alone.
    """

    def __init__(
        self,
        problem: Problem,
        policy: NumericPolicy,
        sigma_of: Callable[[Rows, Squares], Array],
        *,
        in_all: bool = True,
    ) -> None:
        self.problem, self.policy, self.sigma_of, self.in_all = problem, policy, sigma_of, in_all
        self.stand_ins = stand_ins(problem)
        shape = problem.out_shape[:2]
        self.sigma = problem.zeros(*problem.out_shape)
        self.sums = [problem.zeros(*shape, len(DIRECTIONS)) for _ in range(3)]
        self.numbers = [problem.zeros(*shape) for _ in range(6)]
        self.of_keys = [problem.zeros(2, n) for n in problem.kv_lens.tolist()]

    def over_rows(self, error: Array) -> tuple[np.ndarray, Filters]:
        """Return sigma and the filters of all rows. Shapes: error [total_q, Hq, Dv]."""
        for rows, found in over_rows(self.problem, lambda rows: self.of_rows(rows, rows.of(error))):
            self.put(rows, found)
        return self.result(error)

    def of_rows(self, rows: Rows, error: np.ndarray) -> tuple[Any, ...]:
        """Return what `put` takes of some rows. Shapes: error, in NumPy, [Hkv, R, Dv]."""
        is_filtered = self.stand_ins[rows] is rows
        if not (is_filtered or self.in_all):
            return ()
        frame = Frame(rows, self.policy.narrow)
        coarse = self.policy.narrow and not is_filtered
        squares, directions = Squares(frame, self.policy, coarse=coarse), Directions(frame)
        for block, score, p, values in frame.weighted_blocks():
            spacing = error_sigma.p_spacing(p, self.policy.p)
            variance = squares.add(block, score, p, spacing, values)
            if is_filtered:
                directions.see(block, score, p, spacing, variance, values)
        sigma = self.sigma_of(rows, squares)
        if not is_filtered:
            return (sigma,)
        request = ErrorRows.of(frame, error, sigma, self.policy)
        scan = Scan(request)
        sums, numbers = _filter(request, scan, squares, directions)
        return sigma, sums, (*numbers, *scan.row), scan.of_keys

    def put(self, rows: Rows, found: tuple[Any, ...]) -> None:
        """Put what `of_rows` found in its place."""
        if found:
            rows.put(self.sigma, found[0])
        if len(found) < 2:
            return
        _, sums, numbers, of_keys = found
        for target, values in zip(self.sums, sums, strict=True):
            rows.put(target, namespace(values).moveaxis(values, 1, -1))
        for target, values in zip(self.numbers, numbers, strict=True):
            rows.put(target, values)
        self.of_keys[rows.request] += of_keys

    def result(self, error: Array) -> tuple[np.ndarray, Filters]:
        """Return sigma and the filters of all rows. Shapes: error [total_q, Hq, Dv]."""
        for rows, other in self.stand_ins.items():
            (tokens, heads), first = rows.place, other.first
            last = first + tokens.stop - tokens.start
            for target in self.numbers[:3]:  # the others are of a row's own errors
                target[tokens, heads] = target[first:last, heads]
        sharing, coherence, alike, key, z, beta = (to_numpy(x) for x in self.numbers)
        along, power, variance = (np.moveaxis(to_numpy(x), -1, 0) for x in self.sums)
        return to_numpy(self.sigma), Filters(
            along,
            power,
            variance,
            np.maximum(sharing, 1.0),
            np.maximum(coherence, 1.0 / self.problem.out_shape[-1]),
            _repeats(self.problem, error),
            np.maximum(alike, 1.0),
            Keys(key.astype(np.int64), z, beta),
            _best_keys([to_numpy(x) for x in self.of_keys]),
        )


def _repeats(problem: Problem, error: Array) -> np.ndarray:
    """Return, per row, how many rows of its request and head have its errors, itself included.

    Equal rows are no further evidence: where all keys are equal, all queries give one row. A random
    sum over the channels identifies a row. Errors are cut to fp32, so that float64's last bits do
    not count.
    """
    weights = np.random.default_rng(0).random(error.shape[-1])
    sums = (np.asarray(error, np.float32) * weights).sum(-1)
    counts = np.empty(sums.shape)
    for head in range(sums.shape[1]):
        rows = np.stack([problem.request_of, sums[:, head]])
        _, group, sizes = np.unique(rows, axis=1, return_inverse=True, return_counts=True)
        counts[:, head] = sizes[group.reshape(-1)]
    return counts


def _best_keys(of_keys: list[Array]) -> Keys:
    """Return, for each request, the key whose absence explains most over all of its rows."""
    best = np.zeros((3, len(of_keys)))
    for b, (along, power) in enumerate(of_keys):
        if len(along):
            z = along / np.sqrt(np.maximum(power, TINY))
            j = int(np.abs(z).argmax())
            best[:, b] = j, z[j], along[j] / max(power[j], TINY)
    return Keys(best[0].astype(np.int64), best[1], best[2])


def _filter(request: ErrorRows, scan: Scan, squares: Squares, found: Directions) -> tuple[Any, ...]:
    o, xp = request.o, namespace(request.error)
    directions, sharing = found.vectors(request, squares)
    tests = directions * scan.inverse[:, None]
    shape = request.rows.problem.out_shape[:2]
    probes = _PROBES if np.prod(shape) < _MANY_ROWS else _PROBES // 2
    probes = moved(_signs(len(o), probes, *o.shape[1:]), o) / request.sigma[:, None]
    sums = Sums(request, xp.concatenate([tests, probes], 1), squares)
    divisor = request.frame.narrowed(request.rows.softmax.divisor)
    unit = request.frame.narrowed(sums.norm[:, 0] * scan.unit)  # of the first test, for the scan
    vectors, n = xp.concatenate([sums.narrow_x, scan.vectors], 1), sums.x.shape[1]
    for block, score, p, values in request.frame.weighted_blocks():
        v = values[..., : o.shape[-1]]
        shown = folded(vectors, xp.swapaxes(v, 1, 2))  # one product for both
        scan.see(block.first, p / divisor, shown[:, 0] * unit, shown[:, n:], values)
        sums.add(shown[:, :n], squares.variance(block, score, p), v)
    sums.divide()
    same = _alike(request.frame)
    of_o = dot(tests, o[:, None])[..., None], dot(probes, o[:, None])[..., None]
    kinds = [
        _variances(request, probes, tests, of_o, sums, about, same) for about in request.abouts
    ]
    variance, coherence = kinds[0]
    for more in kinds[1:]:
        variance, coherence = xp.maximum(variance, more[0]), xp.maximum(coherence, more[1])
    along, power = dot(request.error[:, None], tests), dot(directions, tests)
    # The common mode is counted by itself, since a few probes may miss a single direction.
    held = variance[:, 0] / xp.clip(power[:, 0], TINY, None) / o.shape[-1]
    coherence = xp.clip(xp.maximum(coherence, xp.clip(held**2, None, 1.0)), None, 1.0)
    alike = xp.ones_like(sharing)
    if same is not None:  # the covariance of equal channels is known without probes
        coherence = xp.maximum(coherence, abs(same).sum((-1, -2)) / o.shape[-1] ** 2)
        alike = alike * xp.amax(abs(same).sum(-1), -1)
    return (along, power, variance), (sharing, coherence, alike)


@functools.lru_cache(maxsize=8)
def _signs(*shape: int) -> np.ndarray:
    """Return random signs, always the same."""
    return np.random.default_rng(7).choice([-1.0, 1.0], shape)


def _alike(frame: Frame) -> Array | None:
    """Return which channels are rounded alike, or None: all keys are asked if a few do not tell."""
    if frame.once("few keys tell", min(_FEW_KEYS, frame.rows.keys), _all_differ):
        return None
    equal = _equal_channels(_marks(frame))
    return None if equal is None else moved(equal, frame.rows.o)


def _all_differ(frame: Frame, most: int) -> bool:
    """Return whether the first keys tell all channels apart; zeros may belong to any channel."""
    marks = _marks(frame, most)
    return bool(marks.all()) and _equal_channels(marks) is None


def _marks(frame: Frame, most: int | None = None) -> np.ndarray:
    """Return sums of V with random weights over the rows' keys, or the first. Shapes: [Hkv, Dv]."""
    marks, rng = ZERO, np.random.default_rng(3)
    for block in itertools.islice(frame.rows.blocks(), 1 if most else None):
        v = frame.values(block)[:, :most]
        v = v[..., : v.shape[-1] // 2]
        marks = marks + (v * moved(rng.random((v.shape[1], 1)), v)).sum(1)
    return to_numpy(marks)


def _equal_channels(marks: Array) -> np.ndarray | None:
    """Return which channels of V are equal but for a sign and a power of 2; None if no two are.

    Such channels are rounded alike and are no further evidence. marks: sums of V with random
    weights, which tell channels apart. Shapes: [Hkv, Dv] -> [Hkv, 1, Dv, Dv], -1, 0 or 1.
    """
    size = np.abs(np.frexp(marks)[0])
    same = (size[:, :, None] == size[:, None]) & (size[:, None] > 0)
    same |= np.eye(marks.shape[1], dtype=bool)
    if same.sum() == marks.size:
        return None
    sign = np.where(marks < 0, -1.0, 1.0)
    return (same * sign[:, :, None] * sign[:, None])[:, None]


def _variances(
    request: ErrorRows,
    probes: Array,
    tests: Array,
    of_o: tuple[Array, Array],
    sums: Sums,
    about: float,
    same: Array | None,
) -> tuple[Any, ...]:
    """Return the variance that rounding gives each test, and a row's coherence.

    of_o: the sums <x, o> of tests and of probes. about: 1 where the weights' errors move the
    denominator too, so that they act on v - o; 0 where they act on v. same: the channels that are
    rounded alike, as _equal_channels returns them.
    """
    o, centre = request.o, request.about(about)
    # The part of sigma beyond the weights and l is independent among channels that are not equal.
    of_l = error_sigma.denominator_variance(request.rows)
    own = request.variance - sums.of_values(centre) - of_l * o**2
    own = namespace(o).clip(own, 0.0, None)[:, None]
    of_tests, of_probes = of_o
    along_tests, along_probes = own * tests, own * probes
    if same is not None:
        root = own**0.5
        along_tests, along_probes = (root * ((root * x) @ same) for x in (tests, probes))
    variance = sums.of_tests(centre) + dot(along_tests, tests)
    variance = variance + (of_l * of_tests**2)[..., 0]
    spread = sums.of_probes(probes, centre)
    spread += along_probes
    spread += (of_l * of_probes) * o[:, None]
    spread /= request.sigma[:, None]
    return variance, dot(spread, spread).sum(1) / probes.shape[1] / o.shape[-1] ** 2
