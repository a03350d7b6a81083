"""Matched filters: how much of an error lies along the direction that a mistake would give it.

Symbols: e = out - o, s its expected sigma, D a direction, one vector a row (sample and head).
beta = <e / s^2, D> / <D / s^2, D>: 1 where the mistake was made, about 0 where it was not.
"""

from dataclasses import dataclass

import numpy as np

from labkernels.numerics import error_model
from labkernels.numerics.problem import LOG2_E, Problem, Rows
from labkernels.numerics.rounds import Rounds

DIRECTIONS = ("common mode", "P truncated", "scale", "signed bias")
_PROBES = 6
_NEARLY_ALL = 1e-9  # a key of all the weight: without it nothing would be left


@dataclass(frozen=True)
class Keys:
    """The key whose absence explains most. Shapes: [...]; z and beta along that direction."""

    key: np.ndarray
    z: np.ndarray
    beta: np.ndarray


@dataclass(frozen=True)
class Filters:
    """What the passes over the keys give.

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
    row: Keys
    sample: Keys


def matched_filters(problem: Problem, rounds: Rounds, error, sigma) -> Filters:
    """Filter the errors of all rows. An error that is not finite counts as 0; it shows elsewhere.

    Shapes: error and sigma [total_q, Hq, Dv]; sigma is not 0.
    """
    shape = error.shape[:2]
    sums = [np.zeros((*shape, len(DIRECTIONS))) for _ in range(3)]
    sharing, coherence = np.ones(shape), np.full(shape, 1.0 / error.shape[-1])
    row = Keys(np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape))
    of_keys = [np.zeros((2, n)) for n in problem.kv_lens]
    about = 1.0 if rounds.denominators[0] == "rounded" else 0.0
    error = np.where(np.isfinite(error), error, 0.0)
    for rows in problem.row_blocks():
        part = slice(rows.first, rows.last)
        request = _Rows(rows, rows.take(error[part]), rows.take(sigma[part]), rounds, about)
        scan = _Scan(request, of_keys[rows.request])
        *found, sharing_found, coherence_found = _filter(request, scan)
        for target, values in zip(sums, found, strict=True):
            rows.put(target, np.moveaxis(values, 0, -1))
        rows.put(sharing, sharing_found)
        rows.put(coherence, coherence_found)
        for target, values in zip((row.key, row.z, row.beta), scan.row, strict=True):
            rows.put(target, values)
    sums = (np.moveaxis(x, -1, 0) for x in sums)
    return Filters(*sums, sharing, coherence, row, _best_keys(of_keys))


def _best_keys(of_keys) -> Keys:
    """Of each request the key that explains most over all of its rows."""
    best = np.zeros((3, len(of_keys)))
    for b, (along, power) in enumerate(of_keys):
        if len(along):
            z = along / np.sqrt(np.maximum(power, 1e-300))
            j = int(np.abs(z).argmax())
            best[:, b] = j, z[j], along[j] / max(power[j], 1e-300)
    return Keys(best[0].astype(np.int64), best[1], best[2])


@dataclass(frozen=True)
class _Rows:
    """Rows and their errors. Shapes: error, sigma [Hkv, R, Dv]."""

    rows: Rows
    error: np.ndarray
    sigma: np.ndarray
    rounds: Rounds
    about: float

    def weighted_blocks(self):
        """Yield the block, score (log2), p and the spacing of P, over l, of each block of keys."""
        divisor = self.rows.softmax.divisor
        for block, score, p in self.rows.weighted_blocks():
            spacing = error_model.p_spacing(p, self.rounds.p_format) / divisor
            yield block, score, p / divisor, spacing


def _filter(request: _Rows, scan: "_Scan"):
    o, directions, sharing = _directions(request)
    scan.start(o)
    tests = directions / request.sigma**2
    rng = np.random.default_rng(7)
    probes = rng.choice([-1.0, 1.0], (_PROBES, *o.shape)) / request.sigma
    x = np.concatenate([tests, probes])
    from_p = np.zeros(x.shape)  # covariance of P's rounding times each vector
    parts = np.zeros(o.shape)
    for block, _, p, spacing in request.weighted_blocks():
        v, variance = block.v, spacing**2 / 12
        shown = x @ np.swapaxes(v, 1, 2) - request.about * (x * o).sum(-1, keepdims=True)
        weighted = variance * shown
        from_p += weighted @ v - request.about * weighted.sum(-1, keepdims=True) * o
        parts += variance @ v**2 - request.about * (
            2 * o * (variance @ v) - variance.sum(-1, keepdims=True) * o**2
        )
        scan.see(block.first, p, v)
    # What sigma holds beyond P's rounding is independent from channel to channel.
    rest = np.maximum(request.sigma**2 - parts, 0.0)
    spread = from_p + rest * x
    n = len(DIRECTIONS)
    variance = (spread[:n] * tests).sum(-1)
    coherence = ((spread[n:] / request.sigma) ** 2).sum(-1).mean(0) / o.shape[-1] ** 2
    along, power = (request.error * tests).sum(-1), (directions * tests).sum(-1)
    # What the common mode alone holds of it: six probes may miss a single direction.
    shared = variance[0] / np.maximum(power[0], 1e-300) / o.shape[-1]
    coherence = np.clip(coherence, np.maximum(1 / o.shape[-1], np.minimum(shared**2, 1.0)), 1.0)
    return along, power, variance, sharing, coherence


def _directions(request: _Rows):
    """Output, the vectors of DIRECTIONS, and how many keys share the variance of P's rounding."""
    o, mean_score, weighted, truncated, w1, w2 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for block, score, p, spacing in request.weighted_blocks():
        scored = p * np.where(p == 0, 0.0, score / LOG2_E)
        o = o + p @ block.v
        mean_score = mean_score + scored.sum(-1, keepdims=True)
        weighted = weighted + scored @ block.v
        truncated = truncated - (spacing / 2) @ block.v
        w1, w2 = w1 + (spacing**2).sum(-1), w2 + (spacing**4).sum(-1)
    sharing = np.where(w2 > 0, w1**2 / np.where(w2 > 0, w2, 1.0), 1.0)
    bias = np.sign(o) * request.sigma**2
    return o, np.stack([o, truncated, weighted - mean_score * o, bias]), sharing


class _Scan:
    """Every key as the one left out: D = p / (1 - p) (o - v), apart from the row's common mode.

    of_keys: the sums <e / s^2, D> and <D / s^2, D> of each key of the request over all its rows,
    to which those of these rows are added. Shapes: [2, L].
    """

    def __init__(self, request: _Rows, of_keys):
        self.error, self.inverse, self.of_keys = request.error, 1 / request.sigma**2, of_keys
        rows = self.error.shape[:2]
        self.row = [np.zeros(rows, np.int64), np.zeros(rows), np.zeros(rows)]

    def start(self, o) -> None:
        """Begin before the first key, once o is known."""
        self.e, self.o = self.inverse * self.error, self.inverse * o
        self.eo = (self.e * o).sum(-1)[..., None]
        self.oo = np.maximum((self.o * o).sum(-1)[..., None], 1e-300)

    def see(self, first: int, p, v) -> None:
        """Scan a block of keys. Shapes: p [Hkv, R, n], v [Hkv, n, Dv]."""
        v_t = np.swapaxes(v, 1, 2)
        ve, vo = self.e @ v_t, self.o @ v_t
        do = self.oo - vo
        power = self.oo - 2 * vo + self.inverse @ v_t**2 - do**2 / self.oo
        along = self.eo - ve - do * self.eo / self.oo
        left = 1 - p
        factor = np.where(left > _NEARLY_ALL, p / np.where(left > _NEARLY_ALL, left, 1.0), 0.0)
        along, power = factor * along, np.maximum(factor**2 * power, 1e-300)
        z = along / np.sqrt(power)
        best = np.abs(z).argmax(-1)[..., None]
        values = [np.take_along_axis(x, best, -1)[..., 0] for x in (z, along / power)]
        better = np.abs(values[0]) > np.abs(self.row[1])
        for i, new in enumerate((first + best[..., 0], *values)):
            self.row[i] = np.where(better, new, self.row[i])
        keys = slice(first, first + p.shape[-1])
        self.of_keys[:, keys] += along.sum((0, 1)), power.sum((0, 1))
