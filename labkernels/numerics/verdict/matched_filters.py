"""Matched filters: how much of an error lies along the direction that a mistake would give it.

Symbols: e = out - o, s its expected sigma, D a direction, one vector per row (sample and head).
beta = <e / s^2, D> / <D / s^2, D>: 1 where the mistake was made, about 0 where it was not.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from labkernels.numerics.arrays import ZERO, Array, float64, moved, namespace, to_numpy
from labkernels.numerics.error import sigma as error_sigma
from labkernels.numerics.truth.problem import Block, Problem, Rows
from labkernels.policy import NumericPolicy
from labkernels.units import LOG2_E

DIRECTIONS = ("common mode", "P truncated", "scale", "signed bias")
_PROBES = 6
_NEARLY_ALL = 1e-9  # a key with all the weight: without it no weight would be left
_TINY = 1e-300  # in place of a division by 0
_SMALLEST = 1e-60  # whose square is a number: in place of the size of values that are all 0
_SIXTEEN = ("fp16", "bf16")


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
    <D / s^2, D> and the variance of the first that rounding causes; sharing [total_q, Hq], how many
    keys share the rounding of P; coherence [total_q, Hq], variance of a row's mean z^2 over 2;
    row [total_q, Hq], sample [B].
    """

    along: np.ndarray
    power: np.ndarray
    variance: np.ndarray
    sharing: np.ndarray
    coherence: np.ndarray
    repeats: np.ndarray
    row: Keys
    sample: Keys


def matched_filters(problem: Problem, policy: NumericPolicy, error: Array, sigma: Array) -> Filters:
    """Filter the errors of all rows. An error that is not finite counts as 0; other tests show it.

    Of two possible denominators, the one that makes rounding look larger counts.
    Shapes: error and sigma [total_q, Hq, Dv]; sigma is not 0.
    """
    shape = problem.out_shape[:2]
    sums = [problem.zeros(*shape, len(DIRECTIONS)) for _ in range(3)]
    sharing, coherence, *row = (problem.zeros(*shape) for _ in range(5))
    of_keys = [problem.zeros(2, n) for n in problem.kv_lens.tolist()]
    for rows in problem.row_blocks():
        part = slice(rows.first, rows.last)
        request = _Rows(
            rows,
            rows.take(moved(np.nan_to_num(error[part], posinf=0.0, neginf=0.0), problem.q)),
            rows.take(moved(sigma[part], problem.q)),
            policy,
        )
        scan = _Scan(request, of_keys[rows.request])
        *found, sharing_found, coherence_found = _filter(request, scan)
        for target, values in zip(sums, found, strict=True):
            rows.put(target, namespace(values).moveaxis(values, 1, -1))
        rows.put(sharing, sharing_found)
        rows.put(coherence, coherence_found)
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
        Keys(key.astype(np.int64), z, beta),
        _best_keys([to_numpy(x) for x in of_keys]),
    )


def _repeats(problem: Problem, error: Array) -> np.ndarray:
    """For each row, how many rows of its request and head have the same errors, itself included.

    Equal rows are no further evidence: where all keys are equal, all queries give one row. A random
    sum over its channels identifies a row, in fp32, so that the last bits of float64 do not count.
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
    """For each request, the key that explains most over all of its rows."""
    best = np.zeros((3, len(of_keys)))
    for b, (along, power) in enumerate(of_keys):
        if len(along):
            z = along / np.sqrt(np.maximum(power, _TINY))
            j = int(np.abs(z).argmax())
            best[:, b] = j, z[j], along[j] / max(power[j], _TINY)
    return Keys(best[0].astype(np.int64), best[1], best[2])


@dataclass(frozen=True)
class _Rows:
    """Rows and their errors. Shapes: error, sigma [Hkv, R, Dv]."""

    rows: Rows
    error: np.ndarray
    sigma: np.ndarray
    policy: NumericPolicy

    @property
    def narrow(self) -> bool:
        """Whether P and the store have 16 bits, so that fp32 is enough to estimate them."""
        return self.policy.p in _SIXTEEN and self.policy.out in _SIXTEEN

    @property
    def abouts(self) -> tuple[float, ...]:
        """Whether a weight's error moves the denominator too, 1 or 0, of each possible denominator.

        The error of a weight's exponent always does, and outweighs the rounding of a P in fp32.
        """
        fine = self.policy.p == "fp32"
        kinds = {float(fine or kind == "rounded") for kind in self.policy.denominators}
        return tuple(sorted(kinds))

    def weighted_blocks(self) -> Iterator[tuple[Block, Array, Array, Array, Array]]:
        """Yield block, score (log2), p, spacing of P, variance of p of each block of keys."""
        divisor = self.rows.softmax.divisor
        for block, score, p in self.rows.weighted_blocks():
            spacing = error_sigma.p_spacing(p, self.policy.p) / divisor
            p = p / divisor
            exponent = error_sigma.exponent_variance(block, score, self.policy)
            yield block, score, p, spacing, spacing**2 / 12 + exponent * p**2


def _filter(request: _Rows, scan: "_Scan") -> tuple[Array, Array, Array, Array, Array]:
    o, xp = request.rows.o, namespace(request.error)
    directions, sharing, size = _directions(request)
    inverse = (1 / request.sigma**2)[:, None]
    tests = directions * inverse
    signs = np.random.default_rng(7).choice([-1.0, 1.0], (len(o), _PROBES, *o.shape[1:]))
    x = xp.concatenate([tests, moved(signs, o) / request.sigma[:, None]], 1)
    scanned = xp.concatenate([request.error[:, None] * inverse, tests[:, :1]], 1)
    sums = _Sums(x, size, request.narrow)
    for block, _, p, _, variance in request.weighted_blocks():
        values = xp.swapaxes(block.v, 1, 2)
        shown = _folded(scanned, values)
        scan.see(block.first, p, shown[:, 0], shown[:, 1], values**2)
        sums.add(variance, block.v)
    kinds = [_variances(request, x, tests, sums, about) for about in request.abouts]
    variance, coherence = kinds[0]
    for more in kinds[1:]:
        variance, coherence = xp.maximum(variance, more[0]), xp.maximum(coherence, more[1])
    along, power = (request.error[:, None] * tests).sum(-1), (directions * tests).sum(-1)
    # The part that the common mode alone has: six probes may miss a single direction.
    held = variance[:, 0] / xp.clip(power[:, 0], _TINY, None) / o.shape[-1]
    coherence = xp.clip(xp.maximum(coherence, xp.clip(held**2, None, 1.0)), None, 1.0)
    return along, power, variance, sharing, coherence


class _Sums:
    """Sums over keys of their weights' variances, with their values and with tests of the values.

    In fp32 where P and the store have 16 bits, else in float64. A block of 1024 keys errs by 2^-14
    of its terms at most, and the error model by 15 %. Where the terms cancel, v is near o: what is
    lost is then 2^-14 of P's rounding times o, far less than the rounding of the stored o.
    size: the largest |v| of each channel, so that nothing overflows. Shapes: x [Hkv, T, R, Dv],
    size [Hkv, 1, Dv].
    """

    def __init__(self, x: Array, size: Array, narrow: bool) -> None:
        self.xp, self.size = namespace(x), size
        self.dtype = self.xp.float32 if narrow else self.xp.float64
        x = x * size[:, None]
        self.norm = self.xp.clip(self.xp.amax(abs(x), -1)[..., None], _TINY, None)
        self.x = x / self.norm
        self.narrow_x = self._narrowed(self.x)
        self.shared, self.plain, self.squares = ZERO, ZERO, ZERO

    def add(self, variance: Array, v: Array) -> None:
        """Count a block of keys. Shapes: variance [Hkv, R, n], v [Hkv, n, Dv]."""
        xp, variance = self.xp, self._narrowed(variance)
        v = self._narrowed(v / self.size)
        v_and_1 = xp.concatenate([v, xp.ones_like(v[..., :1])], -1)
        shown = _folded(self.narrow_x, xp.swapaxes(v, 1, 2))
        shown *= variance[:, None]
        self.shared = self.shared + float64(_folded(shown, v_and_1))
        self.plain = self.plain + float64(variance @ v_and_1)
        self.squares = self.squares + float64(variance @ v**2)

    def about(self, x: Array) -> tuple[Array, Array]:
        """The sums of <x, v - x> (v - x), of each test, and of (v - x)^2; x [Hkv, R, Dv]."""
        x = x / self.size
        of_v, of_1 = self.plain[..., :-1], self.plain[..., -1:]
        along = (self.x * x[:, None]).sum(-1)[..., None]
        left = self.shared[..., -1:] - along * of_1[:, None]
        shared = self.shared[..., :-1] - along * of_v[:, None] - left * x[:, None]
        squares = self.squares - 2 * x * of_v + of_1 * x**2
        return shared * self.norm * self.size[:, None], squares * self.size**2

    def _narrowed(self, array: Array) -> Array:
        return self.xp.asarray(array, dtype=self.dtype)


def _variances(
    request: _Rows, x: Array, tests: Array, sums: _Sums, about: float
) -> tuple[Array, Array]:
    """Variance that rounding gives each test, and a row's coherence; about: of the denominator.

    The weights' errors are about o where they move the denominator too, and about 0 where not.
    """
    o, xp = request.rows.o, namespace(request.error)
    from_p, parts = sums.about(about * o)
    # The part of sigma beyond the weights and l is independent from channel to channel.
    of_l = error_sigma.denominator_variance(request.rows)
    own = xp.clip(request.sigma**2 - parts - of_l * o**2, 0.0, None)
    along_o = (x * o[:, None]).sum(-1)[..., None]
    spread = from_p + own[:, None] * x + of_l * along_o * o[:, None]
    n = len(DIRECTIONS)
    variance = (spread[:, :n] * tests).sum(-1)
    probed = (spread[:, n:] / request.sigma[:, None]) ** 2
    return variance, probed.sum(-1).sum(1) / _PROBES / o.shape[-1] ** 2


def _folded(vectors: Array, matrix: Array) -> Array:
    """One product in place of one per vector: [Hkv, T, R, n] @ [Hkv, n, m] -> [Hkv, T, R, m]."""
    heads, _, _, n = vectors.shape
    return (vectors.reshape(heads, -1, n) @ matrix).reshape(*vectors.shape[:3], matrix.shape[-1])


def _directions(request: _Rows) -> tuple[Array, Array, Array]:
    """The vectors of DIRECTIONS, how many keys share P's rounding, the largest |v| by channel."""
    o, xp = request.rows.o, namespace(request.error)
    largest = request.rows.problem.zeros(len(o), o.shape[-1])
    mean_score, weighted, truncated, w1, w2 = 0.0, 0.0, 0.0, 0.0, 0.0
    for block, score, p, spacing, variance in request.weighted_blocks():
        scored = p * xp.where(p == 0, 0.0, score / LOG2_E)
        mean_score = mean_score + scored.sum(-1)[..., None]
        weighted = weighted + scored @ block.v
        truncated = truncated - (spacing / 2) @ block.v
        w1, w2 = w1 + variance.sum(-1), w2 + (variance**2).sum(-1)
        largest = xp.maximum(largest, xp.amax(abs(block.v), 1))
    sharing = xp.where(w2 > 0, w1**2 / xp.where(w2 > 0, w2, 1.0), 1.0)
    bias = xp.sign(o) * request.sigma**2
    # A common mode that is allowed must not show as a scale: sigma, which jumps where |o| passes a
    # power of 2, would let it.
    scale, along_o = weighted - mean_score * o, o / request.sigma**2
    power = xp.clip((o * along_o).sum(-1), _TINY, None)
    scale = scale - ((scale * along_o).sum(-1) / power)[..., None] * o
    size = xp.clip(largest, _SMALLEST, None)[:, None]
    return xp.stack([o, truncated, scale, bias], 1), sharing, size


class _Scan:
    """Every key as the one left out: D = p / (1 - p) (o - v), apart from the row's common mode.

    of_keys: the sums <e / s^2, D> and <D / s^2, D> of each key of the request over all its rows,
    to which those of these rows are added. Shapes: [2, L].
    """

    def __init__(self, request: _Rows, of_keys: Array) -> None:
        o, self.of_keys, self.inverse = request.rows.o, of_keys, 1 / request.sigma**2
        xp = namespace(o)
        self.eo = (self.inverse * request.error * o).sum(-1)[..., None]
        self.oo = xp.clip((self.inverse * o**2).sum(-1)[..., None], _TINY, None)
        self.row = [request.rows.problem.zeros(*o.shape[:2]) for _ in range(3)]
        heads, rows = (xp.arange(n, device=o.device) for n in o.shape[:2])
        self.places = heads[:, None], rows[None]

    def see(self, first: int, p: Array, ve: Array, vo: Array, squares: Array) -> None:
        """Scan a block of keys, by <e / s^2, v> and <o / s^2, v>.

        Shapes: p, ve, vo [Hkv, R, n]; squares, those of v, [Hkv, Dv, n].
        """
        xp = namespace(p)
        do = self.oo - vo
        power = self.oo - 2 * vo + self.inverse @ squares - do**2 / self.oo
        along = self.eo - ve - do * self.eo / self.oo
        left = 1 - p
        factor = xp.where(left > _NEARLY_ALL, p / xp.where(left > _NEARLY_ALL, left, 1.0), 0.0)
        along, power = factor * along, xp.clip(factor**2 * power, _TINY, None)
        z = along / xp.sqrt(power)
        best = (*self.places, xp.argmax(abs(z), -1))
        better = abs(z[best]) > abs(self.row[1])
        values = best[-1] + float(first), z[best], along[best] / power[best]
        self.row = [xp.where(better, new, old) for new, old in zip(values, self.row, strict=True)]
        keys = slice(first, first + p.shape[-1])
        self.of_keys[0, keys] += along.sum((0, 1))
        self.of_keys[1, keys] += power.sum((0, 1))
