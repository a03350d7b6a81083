"""Matched filters: how much of an error lies along the direction that a mistake would give it.

Symbols: e = out - o, s its expected sigma, D a direction, one vector per row (query and head).
beta = <e / s^2, D> / <D / s^2, D>: 1 where the mistake was made, about 0 where it was not.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkernels.kept import computed_once
from labkernels.numerics.arrays import ZERO, Array, float64, moved, namespace, to_numpy
from labkernels.numerics.error import sigma as error_sigma
from labkernels.numerics.truth.frame import Frame
from labkernels.numerics.truth.problem import Problem, Rows
from labkernels.numerics.truth.threads import over_rows
from labkernels.policy import NumericPolicy
from labkernels.units import LOG2_E

DIRECTIONS = ("common mode", "P truncated", "scale", "signed bias")
_PROBES, _MANY_ROWS = 6, 2**14  # from so many rows on, half of the probes are enough
_TINY = 1e-300  # in place of a division by 0
_NO_UNDERFLOW = 2.0**40  # a factor on variances of P, so that fp32 holds their squares
# The part of a sum below which a difference is rounding alone, also the least weight that must be
# left beside a key; and a number that is added before a division. In fp32 and in float64.
_SMALLEST_NARROW, _SMALLEST_WIDE = (2e-6, 1e-30), (1e-9, 1e-300)


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
    shape = problem.out_shape[:2]
    sums = [problem.zeros(*shape, len(DIRECTIONS)) for _ in range(3)]
    sharing, coherence, alike, *row = (problem.zeros(*shape) for _ in range(6))
    of_keys = [problem.zeros(2, n) for n in problem.kv_lens.tolist()]

    def of_rows(rows: Rows) -> tuple[Any, ...]:
        part = slice(rows.first, rows.last)
        request = _Rows.of(rows, error[part], sigma[part], policy)
        scan = _Scan(request)
        return *_filter(request, scan), scan

    for rows, (*found, of_sharing, of_coherence, of_alike, scan) in over_rows(problem, of_rows):
        for target, values in zip(sums, found, strict=True):
            rows.put(target, namespace(values).moveaxis(values, 1, -1))
        rows.put(sharing, of_sharing)
        rows.put(coherence, of_coherence)
        rows.put(alike, of_alike)
        of_keys[rows.request] += scan.of_keys
        for target, values in zip(row, scan.row, strict=True):
            rows.put(target, values)
    key, z, beta = (to_numpy(x) for x in row)
    along, power, variance = (np.moveaxis(to_numpy(x), -1, 0) for x in sums)
    return Filters(
        along,
        power,
        variance,
        np.maximum(to_numpy(sharing), 1.0),
        np.maximum(to_numpy(coherence), 1.0 / problem.out_shape[-1]),
        _repeats(problem, error),
        np.maximum(to_numpy(alike), 1.0),
        Keys(key.astype(np.int64), z, beta),
        _best_keys([to_numpy(x) for x in of_keys]),
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
            z = along / np.sqrt(np.maximum(power, _TINY))
            j = int(np.abs(z).argmax())
            best[:, b] = j, z[j], along[j] / max(power[j], _TINY)
    return Keys(best[0].astype(np.int64), best[1], best[2])


@dataclass(frozen=True)
class _Rows:
    """Rows and their errors, in units of the frame's size. Shapes: error, sigma [Hkv, R, Dv]."""

    frame: Frame
    error: np.ndarray
    sigma: np.ndarray
    policy: NumericPolicy

    @classmethod
    def of(cls, rows: Rows, error: Array, sigma: Array, policy: NumericPolicy) -> "_Rows":
        """Return the rows with their errors and sigmas, given [tokens, Hq, Dv]."""
        frame = Frame(rows, policy.narrow)
        error = np.nan_to_num(error, posinf=0.0, neginf=0.0)
        e, s = (rows.take(moved(x, rows.problem.q)) / frame.size for x in (error, sigma))
        return cls(frame, e, s, policy)

    @property
    def rows(self) -> Rows:
        """The rows."""
        return self.frame.rows

    @computed_once
    def o(self) -> Array:
        """The output, in units of the frame's size. Shapes: [Hkv, R, Dv]."""
        return self.rows.o / self.frame.size

    @computed_once
    def centred(self) -> Array:
        """The output less the mean of the values. Shapes: [Hkv, R, Dv]."""
        return self.frame.inside(self.rows.o)

    @property
    def abouts(self) -> tuple[float, ...]:
        """For each possible denominator, 1 if a weight's error moves the denominator too, else 0.

        The error of a weight's exponent always moves it, and outweighs the rounding of P in fp32.
        """
        fine = self.policy.p == "fp32"
        kinds = {float(fine or kind == "rounded") for kind in self.policy.denominators}
        return tuple(sorted(kinds))

    def weighted_blocks(self) -> Iterator[tuple[Any, ...]]:
        """Yield block, score (log2), p, spacing of P, variance of p, values of each block."""
        divisor = self.frame.narrowed(self.rows.softmax.divisor)
        for block, score, p, values in self.frame.weighted_blocks():
            spacing = error_sigma.p_spacing(p, self.policy.p) / divisor
            p = p / divisor
            exponent = error_sigma.exponent_variance(block, score, self.policy)
            variance = spacing**2 / 12 + self.frame.narrowed(exponent * p**2)
            yield block, score, p, spacing, variance, values


def _filter(request: _Rows, scan: "_Scan") -> tuple[Any, ...]:
    o, xp = request.o, namespace(request.error)
    directions, sharing = _directions(request)
    tests = directions * scan.inverse[:, None]
    shape = request.rows.problem.out_shape[:2]
    probes = _PROBES if np.prod(shape) < _MANY_ROWS else _PROBES // 2
    signs = np.random.default_rng(7).choice([-1.0, 1.0], (len(o), probes, *o.shape[1:]))
    probes = moved(signs, o) / request.sigma[:, None]
    sums = _Sums(request, xp.concatenate([tests, probes], 1))
    marks, rng = ZERO, np.random.default_rng(3)
    for block, _, p, _, variance, values in request.weighted_blocks():
        v, squares = values[..., : o.shape[-1]], values[..., o.shape[-1] :]
        scan.see(block.first, p, v, squares)
        sums.add(variance, v, squares)
        marks = marks + (v * moved(rng.random((v.shape[1], 1)), v)).sum(1)
    equal = _equal_channels(to_numpy(marks))
    same = None if equal is None else moved(equal, o)
    kinds = [_variances(request, probes, tests, sums, about, same) for about in request.abouts]
    variance, coherence = kinds[0]
    for more in kinds[1:]:
        variance, coherence = xp.maximum(variance, more[0]), xp.maximum(coherence, more[1])
    along, power = (request.error[:, None] * tests).sum(-1), (directions * tests).sum(-1)
    # The common mode is counted by itself, since a few probes may miss a single direction.
    held = variance[:, 0] / xp.clip(power[:, 0], _TINY, None) / o.shape[-1]
    coherence = xp.clip(xp.maximum(coherence, xp.clip(held**2, None, 1.0)), None, 1.0)
    alike = xp.ones_like(sharing)
    if same is not None:  # the covariance of equal channels is known without probes
        coherence = xp.maximum(coherence, abs(same).sum((-1, -2)) / o.shape[-1] ** 2)
        alike = alike * xp.amax(abs(same).sum(-1), -1)
    return along, power, variance, sharing, coherence, alike


class _Sums:
    """Sums over keys of their weights' variances, with their values and with tests of the values.

    The sums are in fp32 where P and the store have 16 bits, else in float64. In fp32 a block of
    1024 keys errs by at most 2^-14 of its terms, while the error model errs by 15 %. The vectors x
    are the tests of DIRECTIONS, then probes. Shapes: x [Hkv, T, R, Dv].
    """

    def __init__(self, request: _Rows, x: Array) -> None:
        self.xp = namespace(x)
        self.norm = self.xp.clip(self.xp.amax(abs(x), -1)[..., None], _TINY, None)
        self.x = x / self.norm
        self.narrow_x = request.frame.narrowed(self.x)
        self.shared, self.of_1, self.of_v, self.of_squares, self.squares = [ZERO] * 5

    def add(self, variance: Array, v: Array, squares: Array) -> None:
        """Count a block of keys. Shapes: variance [Hkv, R, n]; v, and its squares, [Hkv, n, Dv]."""
        xp, n = self.xp, len(DIRECTIONS)
        shown = _folded(self.narrow_x, xp.swapaxes(v, 1, 2))
        probes = shown[:, n:] * variance[:, None]
        self.squares = self.squares + float64((shown[:, :n] ** 2 * variance[:, None]).sum(-1))
        self.shared = self.shared + float64(
            xp.concatenate([_folded(probes, v), probes.sum(-1)[..., None]], -1)
        )
        self.of_1 = self.of_1 + float64(variance.sum(-1)[..., None])
        self.of_v = self.of_v + float64(variance @ v)
        self.of_squares = self.of_squares + float64(variance @ squares)

    def of_tests(self, about: Array) -> Array:
        """Return the sum of <x, v - about>^2 of each of DIRECTIONS. Shapes: about [Hkv, R, Dv]."""
        x, norm = (part[:, : len(DIRECTIONS)] for part in (self.x, self.norm[..., 0]))
        along, mixed = ((x * y[:, None]).sum(-1) for y in (about, self.of_v))
        total = self.squares - 2 * along * mixed + along**2 * self.of_1[:, None, :, 0]
        return self.xp.clip(total, 0.0, None) * norm**2

    def of_probes(self, about: Array) -> Array:
        """Return the sum of <x, v - about> (v - about) per probe. Shapes: [Hkv, T, R, Dv]."""
        x, norm = (part[:, len(DIRECTIONS) :] for part in (self.x, self.norm))
        along = (x * about[:, None]).sum(-1)[..., None]
        left = self.shared[..., -1:] - along * self.of_1[:, None]
        shared = self.shared[..., :-1] - along * self.of_v[:, None] - left * about[:, None]
        return shared * norm

    def of_values(self, about: Array) -> Array:
        """Return the sum of (v - about)^2. Shapes: [Hkv, R, Dv]."""
        total = self.of_squares - 2 * about * self.of_v + self.of_1 * about**2
        return self.xp.clip(total, 0.0, None)


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
    request: _Rows, probes: Array, tests: Array, sums: _Sums, about: float, same: Array | None
) -> tuple[Any, ...]:
    """Return the variance that rounding gives each test, and a row's coherence.

    about: 1 where the weights' errors move the denominator too, so that they act on v - o; 0 where
    they act on v. same: the channels that are rounded alike, as _equal_channels returns them.
    """
    o, centre = request.o, request.frame.inside(about * request.rows.o)
    # The part of sigma beyond the weights and l is independent among channels that are not equal.
    of_l = error_sigma.denominator_variance(request.rows)
    own = request.sigma**2 - sums.of_values(centre) - of_l * o**2
    own = namespace(o).clip(own, 0.0, None)[:, None]
    of_tests, of_probes = ((x * o[:, None]).sum(-1)[..., None] for x in (tests, probes))
    along_tests, along_probes = own * tests, own * probes
    if same is not None:
        root = own**0.5
        along_tests, along_probes = (root * ((root * x) @ same) for x in (tests, probes))
    variance = sums.of_tests(centre) + (along_tests * tests).sum(-1)
    variance = variance + (of_l * of_tests**2)[..., 0]
    spread = sums.of_probes(centre) + along_probes + of_l * of_probes * o[:, None]
    probed = (spread / request.sigma[:, None]) ** 2
    return variance, probed.sum(-1).sum(1) / probes.shape[1] / o.shape[-1] ** 2


def _folded(vectors: Array, matrix: Array) -> Array:
    """Return [Hkv, T, R, n] @ [Hkv, n, m] -> [Hkv, T, R, m] as one product for all T vectors."""
    heads, _, _, n = vectors.shape
    return (vectors.reshape(heads, -1, n) @ matrix).reshape(*vectors.shape[:3], matrix.shape[-1])


def _directions(request: _Rows) -> tuple[Any, ...]:
    """Return the vectors of DIRECTIONS, and how many keys share P's rounding."""
    o, frame, xp = request.o, request.frame, namespace(request.error)
    sums, counts, w1, w2 = ZERO, ZERO, ZERO, ZERO
    for _, score, p, spacing, variance, values in request.weighted_blocks():
        score = frame.narrowed(score / LOG2_E)
        both = xp.stack([p * xp.where(p == 0, 0.0, score), spacing / 2], 1)
        counts = counts + float64(both.sum(-1)[..., None])
        sums = sums + float64(_folded(both, values[..., : o.shape[-1]]))
        large = variance * _NO_UNDERFLOW
        w1, w2 = w1 + float64(large.sum(-1)), w2 + float64((large**2).sum(-1))
    sharing = xp.where(w2 > 0, w1**2 / xp.where(w2 > 0, w2, 1.0), 1.0)
    bias = xp.sign(o) * request.sigma**2 * frame.size
    # A common mode that is allowed must not show as a scale. It would without this projection,
    # because sigma jumps where |o| passes a power of 2.
    scale, along_o = sums[:, 0] - counts[:, 0] * request.centred, o / request.sigma**2
    power = xp.clip((o * along_o).sum(-1), _TINY, None)
    scale = scale - ((scale * along_o).sum(-1) / power)[..., None] * o
    truncated = -sums[:, 1] - counts[:, 1] * (frame.mean / frame.size)
    return xp.stack([o, truncated, scale, bias], 1), sharing


class _Scan:
    """Tries every key as left out: D = p / (1 - p) (o - v), less the row's common mode.

    of_keys: the sums <e / s^2, D> and <D / s^2, D> of each key of the request over these rows.
    Shapes: [2, L].
    """

    def __init__(self, request: _Rows) -> None:
        o, c, self.inverse = request.o, request.centred, 1 / request.sigma**2
        problem = request.rows.problem
        self.of_keys = problem.zeros(2, int(problem.kv_lens[request.rows.request]))
        xp, frame = namespace(o), request.frame
        vectors = [self.inverse * x for x in (request.error, o, c)]
        self.vectors = frame.narrowed(xp.stack(vectors, 1))
        self.narrow_inverse = frame.narrowed(self.inverse)
        eo, oo = ((x * o).sum(-1)[..., None] for x in vectors[:2])
        self.smallest = _SMALLEST_NARROW if frame.narrow else _SMALLEST_WIDE
        oo = xp.clip(oo, self.smallest[1], None)
        self.ec, self.oc, self.cc = (frame.narrowed((x * c).sum(-1)[..., None]) for x in vectors)
        self.share, self.per_oo = frame.narrowed(eo / oo), frame.narrowed(1 / oo)
        self.row = [request.rows.problem.zeros(*o.shape[:2]) for _ in range(3)]
        heads, rows = (xp.arange(n, device=o.device) for n in o.shape[:2])
        self.places = heads[:, None], rows[None]

    def see(self, first: int, p: Array, v: Array, squares: Array) -> None:
        """Scan a block of keys. Shapes: p [Hkv, R, n]; v, and its squares, [Hkv, n, Dv]."""
        xp = namespace(p)
        shown = _folded(self.vectors, xp.swapaxes(v, 1, 2))
        do = self.oc - shown[:, 1]
        sizes = self.cc + self.narrow_inverse @ xp.swapaxes(squares, 1, 2)
        power = sizes - 2 * shown[:, 2] - do**2 * self.per_oo
        part, tiny = self.smallest
        power = xp.maximum(power, part * sizes) + tiny  # a smaller difference is rounding alone
        along = self.ec - shown[:, 0] - do * self.share
        left = 1 - p
        factor = xp.where(left > part, p / xp.where(left > part, left, 1.0), 0.0)
        z = xp.where(factor > 0, along / xp.sqrt(power), 0.0)
        best = (*self.places, xp.argmax(abs(z), -1))
        beta = along[best] / xp.clip(power[best] * factor[best], tiny, None)
        better = abs(z[best]) > abs(self.row[1])
        values = best[-1] + float(first), z[best], xp.where(factor[best] > 0, beta, 0.0)
        self.row = [
            xp.where(better, float64(new), old) for new, old in zip(values, self.row, strict=True)
        ]
        keys = slice(first, first + p.shape[-1])
        self.of_keys[0, keys] += float64((factor * along).sum((0, 1)))
        self.of_keys[1, keys] += float64((factor**2 * power).sum((0, 1)))
