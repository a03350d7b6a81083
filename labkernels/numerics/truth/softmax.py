"""What a softmax over the keys leaves of each row."""

import math
from dataclasses import dataclass

import numpy as np

from labkernels.numerics.arrays import Array, namespace


@dataclass(frozen=True)
class Softmax:
    """For each row: the largest score m, the sum l of 2^(s - m), the largest |s|, and the key of m.

    A sink counts in m, l and the largest |s|. A row without keys and sink has m = 0 and l = 0.
    Shapes: [Hkv, R]. Units: m, |s| in log2 units.
    """

    m: np.ndarray
    l: np.ndarray
    largest: np.ndarray
    top: np.ndarray

    @property
    def divisor(self) -> Array:
        """The l of each row, 1 where l is 0. Shapes: [Hkv, R, 1]."""
        return namespace(self.l).where(self.l == 0, 1.0, self.l)[..., None]

    @property
    def lse2(self) -> Array:
        """Base-2 log-sum-exp, -inf where l is 0."""
        xp = namespace(self.l)
        return xp.where(self.l == 0, -math.inf, self.m + xp.log2(self.divisor[..., 0]))
