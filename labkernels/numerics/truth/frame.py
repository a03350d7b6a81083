"""The values of a request, with the mean subtracted, and their squares, for estimates of errors.

Where P and the output have 16 bits, fp32 is enough for such an estimate, at half of float64's cost.
The mean is subtracted so that nothing is lost by cancellation. The differences are divided by the
largest of them, so that their squares neither overflow nor vanish.
"""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from labkernels.kept import Kept, computed_once
from labkernels.numerics.arrays import ZERO, Array, float64, namespace
from labkernels.numerics.truth.rows import Block, Rows

_SMALLEST = 1e-30  # the least size, in place of 0: fp32 holds the number and its inverse
_CONSTANT = 2.0**-20  # the least size, as a part of the mean
_KEPT_VALUES = 2**24  # elements of values that are kept for the next rows of their request


@dataclass(frozen=True, eq=False)
class Frame:
    """Values v of the keys of some rows: in fp32 as (v - mean) / size if narrow, else in float64.

    Shapes: mean and size [Hkv, 1, Dv] if narrow; else they are the numbers 0 and 1.
    """

    rows: Rows
    narrow: bool

    @computed_once
    def _kept(self) -> Kept:
        problem = self.rows.problem
        if "frames" not in problem.__dict__:
            heads = self.rows.kv_last - self.rows.kv_first
            elements = 2 * problem.v_pool.shape[-1] * heads * self.rows.step
            object.__setattr__(problem, "frames", Kept(max(2, _KEPT_VALUES // elements)))
        return problem.__dict__["frames"]

    @computed_once
    def moments(self) -> tuple[Any, ...]:
        """The mean and the size."""
        key = self.rows.request, self.rows.kv_first, self.narrow
        found = self._kept.get(key)  # another thread may drop it at any time
        if found is None:
            found = self._kept[key] = _moments(self.rows) if self.narrow else (0.0, 1.0)
        return found

    def once(self, name: str, given: Hashable, work: Callable[["Frame", Any], Any]) -> Any:
        """Return what work finds, which all rows of this request and these heads share."""
        key = name, self.rows.request, self.rows.kv_first, self.narrow, given
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = work(self, given)
        return found

    @property
    def mean(self) -> Array:
        """The number that is subtracted from the values."""
        return self.moments[0]

    @property
    def size(self) -> Array:
        """The number by which the differences are divided."""
        return self.moments[1]

    def inside(self, o: Array | float) -> Array:
        """Return (o - mean) / size. Shapes: [Hkv, R, Dv], float64."""
        return (o - self.mean) / self.size

    def narrowed(self, array: Array) -> Array:
        """Return an array in fp32 if narrow, else unchanged."""
        xp = namespace(array)
        return xp.asarray(array, dtype=xp.float32) if self.narrow else array

    def weighted_blocks(self) -> Iterator[tuple[Any, ...]]:
        """Yield block, score (log2), weight 2^(s - m) and values of each block of keys."""
        for block, score, p in self.rows.weighted_blocks(narrow=self.narrow):
            yield block, score, p, self.values(block)

    def values(self, block: Block) -> Array:
        """Return values, and their squares beside them. Shapes: [Hkv, n, 2 Dv]."""
        key = self.rows.request, self.rows.kv_first, self.narrow, block.first
        found = self._kept.get(key)
        if found is None:
            last = int(self.rows.problem.kv_lens[block.rows.request])
            v = _finite(self.rows, block.first, min(block.first + self.rows.step, last))
            if self.narrow:
                mean, times = (self.narrowed(x) for x in (self.mean, 1 / self.size))
                v = (v - mean) * times if v.dtype == mean.dtype else self.narrowed(self.inside(v))
            else:
                v = float64(v)
            xp, width = namespace(v), v.shape[-1]
            found = xp.empty((*v.shape[:2], 2 * width), dtype=v.dtype, device=v.device)
            found[..., :width] = v
            xp.multiply(v, v, out=found[..., width:])
            self._kept[key] = found
        return found[:, : block.last - block.first]


def _moments(rows: Rows) -> tuple[Any, ...]:
    """Return, per channel, the mean of a request's values and the largest distance from the mean.

    Error: the mean is rounded to fp32. The distance has the lower limits _CONSTANT and _SMALLEST.
    """
    xp, n = namespace(rows.problem.q), int(rows.problem.kv_lens[rows.request])
    total, extremes = ZERO, []
    for first in range(0, n, rows.step):
        v = _finite(rows, first, min(first + rows.step, n))
        total = total + float64((v / n).sum(1)[:, None])
        extremes += [xp.amin(v, 1), xp.amax(v, 1)]
    # rounded to fp32, so that float64 and fp32 subtract the same number from the values
    mean = float64(xp.asarray(total, dtype=xp.float32))
    size = xp.amax(abs(float64(xp.stack(extremes, 2)) - xp.swapaxes(mean, 1, 2)), -1)[:, None]
    return mean, xp.clip(xp.maximum(size, abs(mean) * _CONSTANT), _SMALLEST, None)


def _finite(rows: Rows, first: int, last: int) -> Array:
    """Return values, 0 in place of inf and NaN; 16-bit values in fp32. Shapes: [Hkv, n, Dv]."""
    v = Block(rows, first, last).stored("v")
    xp = namespace(v)
    return v if xp.isfinite(v.sum()) else xp.where(xp.isfinite(v), v, 0.0)
