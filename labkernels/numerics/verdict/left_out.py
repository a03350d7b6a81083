"""Every key is tried as one that a kernel left out: a matched filter for each key."""

from labkernels.numerics.arrays import Array, float64, namespace
from labkernels.numerics.verdict.row_sums import ErrorRows, dot

# The part of a sum below which a difference is rounding alone, also the least weight that must be
# left beside a key; and a number that is added before a division. In fp32 and in float64.
_SMALLEST_NARROW, _SMALLEST_WIDE = (2e-6, 1e-30), (1e-9, 1e-300)


class Scan:
    """Tries every key as left out: D = p / (1 - p) (o - v), less the row's common mode.

    of_keys: the sums <e / s^2, D> and <D / s^2, D> of each key of the request over these rows.
    Shapes: [2, L].
    """

    def __init__(self, request: ErrorRows) -> None:
        o, c, self.inverse = request.o, request.centred, 1 / request.variance
        rows, xp, frame = request.rows, namespace(o), request.frame
        self.of_keys = rows.problem.zeros(2, int(rows.problem.kv_lens[rows.request]))
        self.part, self.tiny = _SMALLEST_NARROW if frame.narrow else _SMALLEST_WIDE
        of_e, of_o, of_c = (self.inverse * x for x in (request.error, o, c))
        eo, oo = (dot(x, o)[..., None] for x in (of_e, of_o))
        oo = xp.clip(oo, self.tiny, None)
        share = eo / oo
        # The sums of a key's vector v: <e / s^2, D> less its common mode, and <D / s^2, D>, are
        # ends + <x, v> for the vectors x, up to the sum of v^2 and the square of v's common mode.
        self.vectors = frame.narrowed(xp.stack([share * of_o - of_e, -2 * of_c], 1))
        self.narrow_inverse = frame.narrowed(self.inverse)
        ec, oc, cc = (dot(x, c)[..., None] for x in (of_e, of_o, of_c))
        self.ends = frame.narrowed(ec - share * oc), frame.narrowed(cc)
        # The common mode of D is oc - <o / s^2, v>, in units of oo^(1/2).
        self.unit = oo**-0.5
        self.common = frame.narrowed(oc * self.unit)
        self.row = [rows.problem.zeros(*o.shape[:2]) for _ in range(3)]
        heads, places = (xp.arange(n, device=o.device) for n in o.shape[:2])
        self.places = heads[:, None], places[None]

    def see(self, first: int, p: Array, common: Array, shown: Array, values: Array) -> None:
        """Scan a block of keys, and overwrite all but `values`.

        Shapes: p, and <o / s^2, v> in units of oo^(1/2), [Hkv, R, n]; shown, <x, v> for the vectors
        x, [Hkv, 2, R, n]; values [Hkv, n, 2 Dv].
        """
        xp = namespace(p)
        along, power = self._sums(common, shown, values)
        factor = self._factor(p)
        z = along / xp.sqrt(power)
        z[factor == 0] = 0.0
        best = (*self.places, xp.argmax(abs(z), -1))
        beta = along[best] / xp.clip(power[best] * factor[best], self.tiny, None)
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

    def _sums(self, common: Array, shown: Array, values: Array) -> tuple[Array, Array]:
        """Return the sums <e / s^2, D> and <D / s^2, D> over p / (1 - p) and its square."""
        xp, width = namespace(common), values.shape[-1] // 2
        along, power = shown[:, 0], shown[:, 1]
        along += self.ends[0]
        sizes = self.narrow_inverse @ xp.swapaxes(values[..., width:], 1, 2)
        sizes += self.ends[1]
        power += sizes
        common -= self.common
        common *= common
        power -= common
        sizes *= self.part
        xp.maximum(power, sizes, out=power)  # a smaller difference is rounding alone
        power += self.tiny
        return along, power

    def _factor(self, p: Array) -> Array:
        """Return p / (1 - p), or 0 where the other keys have almost no weight."""
        xp, part = namespace(p), self.part
        left = 1 - p
        if xp.amin(left) > part:
            return p / left
        return xp.where(left > part, p / xp.where(left > part, left, 1.0), 0.0)
