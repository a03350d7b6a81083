"""The search for mistakes that explain all sheets: what each leaves, and those that are kept."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics.arrays import ZERO
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet, part

LEFT = 1.5  # rms of z that may be left: rounding gives 1, and the error model is good to 15 %
GAIN = 60.0  # least fall of sum z^2: one fitted number gains 60 by chance once in 10^14
_REST = 0.08  # largest share of mean z^2 - 1 that may be left: many mistakes explain a part
_FAR = 1e24  # z^2 of an element that a mistake makes NaN, or worse
_FEW = 6  # about so many rows of a sheet are tried first
_NUMBERS = 2**13  # most rows times keys of a sheet that are tried first, but one row at least

Family = Callable[..., Iterator[Mistake]]


def _thinned(sheet: Sheet) -> Sheet:
    rows = max(1, min(_FEW, _NUMBERS // max(sheet.kv_len, 1)))
    return part(sheet, slice(None, None, max(1, len(sheet.tokens) // rows)))


class Search:
    """Sheets, and the mistakes that were found to explain them.

    few: some rows of each sheet; before: mean z^2 of all rows as they are; kept: mistakes, each
    with the rms of z that it leaves.
    """

    def __init__(self, found: list[Sheet], out_format: str):
        """found: sheets of rows that went wrong; out_format: the format of their outputs."""
        self.found, self.out_format = found, out_format
        self.few = [_thinned(sheet) for sheet in found]
        self.before = self.misfit(lambda sheet: None, found)
        self.kept: list[tuple[float, Mistake]] = []
        self.tried: set[Family] = set()

    def try_all(self, families: Iterable[Family], without_numbers: tuple[Family, ...]) -> None:
        """Keep the mistakes that explain the rows, of families that were not tried yet."""
        for family in families:
            if family in self.tried:
                continue
            self.tried.add(family)
            known = family in without_numbers
            for mistake in family(self.found) if known else family(self.few, self.of_few):
                self.judge(mistake)

    def misfit(
        self,
        outputs: Callable[..., Any],
        some: list[Sheet],
        noise: Callable[..., Any] | None = None,
        limit: float = math.inf,
    ) -> float:
        """Return the mean z^2 that outputs leave; infinity if it exceeds the limit."""
        total, n = 0.0, sum(sheet.out.size for sheet in some)
        for sheet in some:
            given = outputs(sheet)
            given = sheet.truth if given is None else given
            squares = sheet.squares(given, self.out_format, noise(sheet) if noise else ZERO)
            total += float(np.where(squares < _FAR, squares, _FAR).sum())
            if total > n * limit:
                return math.inf
        return total / n

    def of_few(
        self,
        outputs: Callable[..., Any],
        some: list[Sheet] | None = None,
        limit: float = math.inf,
    ) -> float:
        """Return the misfit of a few rows of each sheet, to which numbers are fitted."""
        return self.misfit(outputs, self.few if some is None else some, None, limit)

    def judge(self, mistake: Mistake) -> None:
        """Keep a mistake that leaves no more than rounding."""
        most = max(4 * LEFT**2, 0.25 * self.before)
        if self.misfit(mistake.outputs, self.few, mistake.noise, most) > most:
            return
        grows = mistake.noise is None
        most = max(LEFT**2, 1e-3 * self.before * grows)
        after = self.misfit(mistake.outputs, self.found, mistake.noise, most)
        if LEFT**2 < after <= most and grows:
            noise = lambda sheet: sheet.grown(mistake.outputs)  # noqa: E731
            after = self.misfit(mistake.outputs, self.found, noise, LEFT**2)
        before = self.before
        if mistake.control is not None:
            before = min(before, self.misfit(mistake.control, self.found))
        if after - 1 > _REST * (before - 1):
            return
        n = sum(sheet.out.size for sheet in self.found)
        if after <= LEFT**2 and (before - after) * n >= GAIN:
            self.kept.append((math.sqrt(after), mistake))
