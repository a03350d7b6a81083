"""The floating-point formats of the lab, with their bytes, range, precision and spacing."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """A binary floating-point format: a sign, an exponent and a fraction, with subnormals.

    Units: bits counts the storage. tf32 is stored in 32 bits, of which its fields take 19.
    Source: IEEE 754-2019; OCP 8-bit Floating Point Specification (e4m3, e5m2); PTX ISA (tf32).
    """

    name: str
    bits: int
    exponent_bits: int
    fraction_bits: int
    has_inf: bool

    @property
    def bytes(self) -> int:
        """Storage of one value, in bytes."""
        return self.bits // 8

    @property
    def emin(self) -> int:
        """Exponent of the smallest normal number, which is 2 ** emin."""
        return 2 - (1 << (self.exponent_bits - 1))

    @property
    def emax(self) -> int:
        """Exponent of the largest finite number, which lies in [2 ** emax, 2 ** (emax + 1))."""
        # A format without infinities uses the topmost exponent for numbers, too.
        return (1 << (self.exponent_bits - 1)) - (1 if self.has_inf else 0)

    @property
    def max(self) -> float:
        """Largest finite number."""
        # Without infinities, only the all-ones code is NaN, and the code below it is the largest.
        steps_below_two = 1 if self.has_inf else 2
        return (2.0 - steps_below_two * 2.0**-self.fraction_bits) * 2.0**self.emax

    @property
    def smallest_subnormal(self) -> float:
        """Smallest positive number."""
        return math.ldexp(1.0, self.emin - self.fraction_bits)

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of rounding a number of the normal range to nearest."""
        return math.ldexp(1.0, -self.fraction_bits - 1)

    def ulp(self, x: float) -> float:
        """Return the format's spacing at x: the gap between neighbours in the binade of |x|.

        Units: that of x. Below the normal range the spacing is smallest_subnormal; beyond max it is
        the spacing at max.
        Raises: ValueError if x is NaN or infinite.
        """
        if not math.isfinite(x):
            raise ValueError(f"x = {x!r}, allowed: a finite number")
        exponent = math.frexp(x)[1] - 1 if x else self.emin
        return math.ldexp(1.0, min(max(exponent, self.emin), self.emax) - self.fraction_bits)


FORMATS = {
    f.name: f
    for f in (
        Format("fp64", 64, 11, 52, has_inf=True),
        Format("fp32", 32, 8, 23, has_inf=True),
        Format("tf32", 32, 8, 10, has_inf=True),
        Format("bf16", 16, 8, 7, has_inf=True),
        Format("fp16", 16, 5, 10, has_inf=True),
        Format("e4m3", 8, 4, 3, has_inf=False),
        Format("e5m2", 8, 5, 2, has_inf=True),
    )
}


def named(name: str) -> Format:
    """Return the format of that name.

    Raises: ValueError listing the names if there is none.
    """
    if name not in FORMATS:
        raise ValueError(f"name = {name!r}, allowed: {', '.join(FORMATS)}")
    return FORMATS[name]


def coarser(fmt: str, than: str) -> bool:
    """Return whether fmt rounds more than `than`; an "x2" (hi + lo) counts as its high part."""
    return named(fmt).unit_roundoff > named(than.removesuffix("x2")).unit_roundoff
