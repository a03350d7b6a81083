"""Every key is tried as one that a kernel left out: a matched filter for each key."""

from labkernels.numerics.arrays import Array, float64, namespace
from labkernels.numerics.verdict.row_sums import ErrorRows, dot, folded

# The part of a sum below which a difference is rounding alone, also the least weight that must be
# left beside a key; and a number that is added before a division. In fp32 and in float64.
_SMALLEST_NARROW, _SMALLEST_WIDE = (2e-6, 1e-30), (1e-9, 1e-300)


class Scan:
    """Tries every key as left out: D = p / (1 - p) (o - v), less the row's common mode.

    of_keys: the sums <e / s^2, D> and <D / s^2, D> of each key of the request over these rows.
    Shapes: [2, L].
    """

    def __init__(self, request: ErrorRows) -> None:
        o, c, self.inverse = request.o, request.centred, 1 / request.sigma**2
        problem = request.rows.problem
        self.of_keys = problem.zeros(2, int(problem.kv_lens[request.rows.request]))
        xp, frame = namespace(o), request.frame
        vectors = [self.inverse * x for x in (request.error, o, c)]
        self.vectors = frame.narrowed(xp.stack(vectors[::2], 1))
        self.narrow_inverse = frame.narrowed(self.inverse)
        eo, oo = (dot(x, o)[..., None] for x in vectors[:2])
        self.smallest = _SMALLEST_NARROW if frame.narrow else _SMALLEST_WIDE
        oo = xp.clip(oo, self.smallest[1], None)
        self.ec, self.oc, self.cc = (frame.narrowed(dot(x, c)[..., None]) for x in vectors)
        self.share, self.per_oo = frame.narrowed(eo / oo), frame.narrowed(1 / oo)
        self.row = [request.rows.problem.zeros(*o.shape[:2]) for _ in range(3)]
        heads, rows = (xp.arange(n, device=o.device) for n in o.shape[:2])
        self.places = heads[:, None], rows[None]

    def see(self, first: int, p: Array, of_o: Array, values: Array) -> None:
        """Scan a block of keys.

        Shapes: p, and <o / s^2, v>, [Hkv, R, n]; values [Hkv, n, 2 Dv].
        """
        xp = namespace(p)
        along, power = self._sums(of_o, values)
        factor = self._factor(p)
        z = along / xp.sqrt(power)
        z[factor == 0] = 0.0
        best = (*self.places, xp.argmax(abs(z), -1))
        beta = along[best] / xp.clip(power[best] * factor[best], self.smallest[1], None)
        better = abs(z[best]) > abs(self.row[1])
        found = best[-1] + float(first), z[best], xp.where(factor[best] > 0, beta, 0.0)
        self.row = [
            xp.where(better, float64(new), old) for new, old in zip(found, self.row, strict=True)
        ]
        keys = slice(first, first + p.shape[-1])
        along *= factor
        self.of_keys[0, keys] += float64(along.sum((0, 1)))
        factor *= factor
        factor *= power
        self.of_keys[1, keys] += float64(factor.sum((0, 1)))

    def _sums(self, of_o: Array, values: Array) -> tuple[Array, Array]:
        """Return the sums <e / s^2, D> and <D / s^2, D> over p / (1 - p) and its square."""
        xp, width = namespace(of_o), values.shape[-1] // 2
        v, squares = (xp.swapaxes(x, 1, 2) for x in (values[..., :width], values[..., width:]))
        shown = folded(self.vectors, v)
        do = self.oc - of_o
        sizes = self.narrow_inverse @ squares
        sizes += self.cc
        power = -2 * shown[:, 1]
        power += sizes
        power -= do**2 * self.per_oo
        part, tiny = self.smallest
        sizes *= part
        power = xp.maximum(power, sizes)  # a smaller difference is rounding alone
        power += tiny
        along = self.ec - shown[:, 0]
        do *= self.share
        along -= do
        return along, power

    def _factor(self, p: Array) -> Array:
        """Return p / (1 - p), or 0 where the other keys have almost no weight."""
        xp, part = namespace(p), self.smallest[0]
        left = 1 - p
        if xp.amin(left) > part:
            return p / left
        return xp.where(left > part, p / xp.where(left > part, left, 1.0), 0.0)
