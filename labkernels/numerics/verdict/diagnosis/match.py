"""What a diagnosis says: a class of mistakes, a region, the best edit, and both residuals."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Region:
    """Where an output went wrong; a field that is None stands for all.

    heads: query heads. rows: the first and the last query of a request. channels: of the output.
    keys: those that an edit concerns, which an output shows only where an edit explains it.
    """

    requests: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    rows: tuple[int, int] | None = None
    channels: tuple[int, ...] | None = None
    keys: tuple[int, ...] | None = None
    words: str = "all rows"


@dataclass(frozen=True)
class Edit:
    """One change of the reference program: what is changed, how, and by which numbers.

    note: what a fitted number is, as "the scale left out".

    >>> str(Edit("V", "times", (1.02,))), str(Edit("K", "read from key", ("j - 1",)))
    ('V times 1.02', 'K read from key j - 1')
    """

    operand: str
    operation: str
    numbers: tuple[float | str, ...] = ()
    note: str = ""

    def __str__(self) -> str:
        said = [x if isinstance(x, str) else f"{x:.5g}" for x in self.numbers]
        note = f" ({self.note})" if self.note else ""
        return " ".join([self.operand, self.operation, *said]) + note


@dataclass(frozen=True)
class Match:
    """A mistake that explains the errors.

    kind: one of `labkernels.defects.CLASSES`. edit: None where only the class is known. before,
    after: rms of z without the mistake and with it; after is NaN where nothing was solved.
    precision: the mistake only rounds more than the formats need.
    """

    kind: str
    edit: Edit | None
    region: Region
    before: float
    after: float
    precision: bool = False

    @property
    def name(self) -> str:
        """The class and the edit, in which the class is not said again."""
        said = str(self.edit).removeprefix(f"{self.kind} ")
        return f"{self.kind}: {said}" if self.edit else self.kind

    @property
    def where(self) -> str:
        """The region in words."""
        return self.region.words

    def __str__(self) -> str:
        left = "" if math.isnan(self.after) else f": rms z {self.before:.3g} -> {self.after:.2g}"
        return f"{self.name} ({self.where}){left}"
