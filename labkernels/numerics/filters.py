"""Matched filters: how much of an error lies along the direction that a mistake would give it.

Symbols: e = out - o, s its expected sigma, D a direction, one vector a row (sample and head).
beta = <e / s^2, D> / <D / s^2, D>: 1 where the mistake was made, about 0 where it was not.
"""

from dataclasses import dataclass

import numpy as np

from labkernels.numerics import error_model, online_softmax, oracle

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

    Shapes: along, power, variance [len(DIRECTIONS), B, Hq], the sums <e / s^2, D>, <D / s^2, D> and
    the variance of the first that rounding causes; sharing [B, Hq], how many keys share the
    rounding of P; coherence [B, Hq], variance of a row's mean z^2 over 2; row [B, Hq], sample [B].
    """

    along: np.ndarray
    power: np.ndarray
    variance: np.ndarray
    sharing: np.ndarray
    coherence: np.ndarray
    row: Keys
    sample: Keys


def decode_filters(
    error,
    sigma,
    q,
    k_pool,
    v_pool,
    page_table,
    kv_lens,
    *,
    scale: float,
    p_format: str,
    denominator: str,
) -> Filters:
    """Filter the errors of all rows. An error that is not finite counts as 0; it shows elsewhere.

    Shapes: error and sigma [B, Hq, Dv]; the rest as oracle.decode_float64
    """
    rows = error.shape[:2]
    found = [np.zeros((len(DIRECTIONS), *rows)) for _ in range(3)]
    sharing, coherence = np.ones(rows), np.full(rows, 1.0 / error.shape[-1])
    row = Keys(np.zeros(rows, np.int64), np.zeros(rows), np.zeros(rows))
    sample = Keys(np.zeros(rows[0], np.int64), np.zeros(rows[0]), np.zeros(rows[0]))
    for b, kv_len in enumerate(int(n) for n in kv_lens):
        if kv_len == 0:
            continue
        state = oracle.request_state(q, k_pool, v_pool, page_table, kv_lens, b, scale=scale)
        request = _Request(
            state=state,
            q=oracle.grouped_queries(q[b], k_pool.shape[2]) * scale,
            blocks=lambda b=b, n=kv_len: oracle.key_blocks(k_pool, v_pool, page_table[b], n),
            error=np.where(np.isfinite(error[b]), error[b], 0.0).reshape(state.o.shape),
            sigma=sigma[b].reshape(state.o.shape),
            p_format=p_format,
            about=1.0 if denominator == "rounded" else 0.0,
        )
        *sums, sharing_b, coherence_b, row_b, sample_b = _filter(request)
        for target, values in zip(found, sums, strict=True):
            target[:, b] = values.reshape(len(DIRECTIONS), -1)
        sharing[b], coherence[b] = sharing_b.ravel(), coherence_b.ravel()
        for name in ("key", "z", "beta"):
            getattr(row, name)[b] = getattr(row_b, name).ravel()
            getattr(sample, name)[b] = getattr(sample_b, name)
    return Filters(*found, sharing, coherence, row, sample)


@dataclass(frozen=True)
class _Request:
    """Shapes: q [Hkv, G, D], multiplied by scale; error, sigma [Hkv, G, Dv]."""

    state: online_softmax.State
    q: np.ndarray
    blocks: object
    error: np.ndarray
    sigma: np.ndarray
    p_format: str
    about: float

    def weighted_blocks(self):
        """Yield score (natural), p and the variance of P's rounding, over l^2, with each V."""
        divisor = self.state.l[..., None]
        for k, v in self.blocks():
            score = self.q @ np.swapaxes(k, 1, 2)
            p = np.exp2(score * oracle.LOG2_E - self.state.m[..., None])
            spacing = error_model.p_spacing(p, self.p_format) / divisor
            yield score, p / divisor, spacing, v


def _filter(request: _Request):
    o = request.state.o / request.state.l[..., None]
    inverse = 1.0 / request.sigma**2
    directions, sharing = _directions(request, o)
    tests = directions * inverse
    rng = np.random.default_rng(7)
    probes = rng.choice([-1.0, 1.0], (_PROBES, *o.shape)) / request.sigma
    x = np.concatenate([tests, probes])
    from_p = np.zeros(x.shape)  # covariance of P's rounding times each vector
    parts = np.zeros(o.shape)
    scan = _Scan.start(request.error, o, inverse)
    for _, p, spacing, v in request.weighted_blocks():
        variance = spacing**2 / 12
        shown = x @ np.swapaxes(v, 1, 2) - request.about * (x * o).sum(-1, keepdims=True)
        weighted = variance * shown
        from_p += weighted @ v - request.about * weighted.sum(-1, keepdims=True) * o
        parts += variance @ v**2 - request.about * (
            2 * o * (variance @ v) - variance.sum(-1, keepdims=True) * o**2
        )
        scan.see(p, v)
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
    return along, power, variance, sharing, coherence, *scan.best()


def _directions(request: _Request, o: np.ndarray):
    """The vectors of DIRECTIONS, and how many keys share the variance of P's rounding."""
    mean_score, weighted, truncated, w1, w2 = 0.0, 0.0, 0.0, 0.0, 0.0
    for score, p, spacing, v in request.weighted_blocks():
        mean_score = mean_score + (p * score).sum(-1, keepdims=True)
        weighted = weighted + (p * score) @ v
        truncated = truncated - (spacing / 2) @ v
        w1, w2 = w1 + (spacing**2).sum(-1), w2 + (spacing**4).sum(-1)
    sharing = np.where(w2 > 0, w1**2 / np.where(w2 > 0, w2, 1.0), 1.0)
    bias = np.sign(o) * request.sigma**2
    return np.stack([o, truncated, weighted - mean_score * o, bias]), sharing


class _Scan:
    """Every key as the one left out: D = p / (1 - p) (o - v), apart from the row's common mode."""

    def __init__(self, error, o, inverse):
        self.vectors = np.stack([inverse * error, inverse * o], axis=1)  # [Hkv, 2, G, Dv]
        self.inverse = inverse
        self.eo = (error * inverse * o).sum(-1)[..., None]
        self.oo = np.maximum((o * inverse * o).sum(-1)[..., None], 1e-300)
        rows = error.shape[:2]
        self.row = [np.zeros(rows, np.int64), np.zeros(rows), np.zeros(rows)]
        self.sample = [0, 0.0, 0.0]
        self.seen = 0

    @classmethod
    def start(cls, error, o, inverse):
        """Begin before the first key."""
        return cls(error, o, inverse)

    def see(self, p, v) -> None:
        """Scan one block of keys. Shapes: p [Hkv, G, n], v [Hkv, n, Dv]."""
        v_t = np.swapaxes(v, 1, 2)
        ve, vo = (self.vectors[:, i] @ v_t for i in (0, 1))
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
        for i, new in enumerate((self.seen + best[..., 0], *values)):
            self.row[i] = np.where(better, new, self.row[i])
        along, power = along.sum((0, 1)), power.sum((0, 1))
        z = along / np.sqrt(power)
        j = int(np.abs(z).argmax())
        if abs(z[j]) > abs(self.sample[1]):
            self.sample = [self.seen + j, float(z[j]), float(along[j] / power[j])]
        self.seen += p.shape[-1]

    def best(self) -> tuple[Keys, Keys]:
        """The best key of every row, and of all rows together."""
        return Keys(*self.row), Keys(*(np.asarray(x) for x in self.sample))
