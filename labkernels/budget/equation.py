"""A quantity as an equation in LaTeX: in symbols, with numbers put in, and its value."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from labkernels.budget.quantity import Named, Quantity, total

WIDTH = 56  # characters per row that fit a page, and a phone held sideways


@dataclass(frozen=True)
class Equation:
    """What is computed, the unit of the result, and the terms that add up to it.

    beside: the value of the same quantity by another source, and the name of the source.
    """

    left: str
    unit: str
    terms: tuple[Quantity, ...]
    beside: tuple[tuple[str, str], ...] = ()

    @property
    def value(self) -> int:
        """The value of the right side."""
        return total(self.terms).value

    @property
    def symbols(self) -> str:
        """The right side in symbols, in one row of LaTeX."""
        return total(self.terms).symbols

    @property
    def numbers(self) -> str:
        """The right side with numbers put in, in one row of LaTeX."""
        return total(self.terms).numbers

    @property
    def names(self) -> tuple[Named, ...]:
        """The symbols that occur, each once, with value and meaning."""
        return total(self.terms).names

    def with_beside(self, value: int, source: str) -> Self:
        """Return the same equation, with the value by another source in a separate row."""
        said = (f"{_grouped(value)}{self.unit}", source)
        return replace(self, beside=(*self.beside, said))

    @property
    def latex(self) -> str:
        r"""All steps, one per row, long ones broken before a term: the body of a LaTeX display.

        >>> from labkernels.budget.quantity import number, symbol
        >>> rows = symbol("R", 16, "rows")
        >>> print(Equation("M", r"\text{ B}", (rows * 2, number(8))).latex)
        \begin{aligned}
        M &= R \cdot 2 + 8 \\
         &= 16 \times 2 + 8 \\
         &= 40\text{ B}
        \end{aligned}
        """
        value = f"{_grouped(self.value)}{self.unit}"
        steps = [
            _rows(term.symbols for term in self.terms),
            _rows(term.numbers for term in self.terms),
            value,
        ]
        lines = [f"&= {step}" for step in dict.fromkeys(steps)]  # equal steps once
        lines += [rf"&\phantom{{=}}\; {said} \text{{ {source}}}" for said, source in self.beside]
        lines[0] = f"{self.left} {lines[0]}"
        return "\\begin{aligned}\n" + " \\\\\n ".join(lines) + "\n\\end{aligned}"

    def legend(self) -> list[dict[str, str | int]]:
        """Return the symbols as tidy rows: symbol (LaTeX), value, meaning."""
        return [
            {"symbol": each.symbol, "value": each.value, "meaning": each.meaning}
            for each in self.names
        ]


def _rows(terms: Iterable[str]) -> str:
    """Return the terms as a sum, broken between terms into rows of WIDTH characters or less."""
    rows: list[str] = []
    for term in terms:
        if rows and _width(rows[-1]) + _width(term) <= WIDTH:
            rows[-1] += f" + {term}"
        else:
            rows.append(term)
    return " \\\\\n &\\quad + ".join(rows) or "0"


def _width(latex: str) -> int:
    """Return about how many characters are visible; a fraction counts with both parts."""
    seen = re.sub(r"\\(left|right|frac|text)|\\[,;]|[{}_\s]", "", latex)
    return len(re.sub(r"\\[a-zA-Z]+", "x", seen))


def _grouped(value: int) -> str:
    return f"{value:,}".replace(",", "{,}")
