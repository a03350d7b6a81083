"""A whole number with its formula: in symbols, and in words with numbers put in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from labkernels.units import require_int

SUM, PRODUCT, ATOM = range(3)  # the kind of a formula: a product puts a sum into parentheses


@dataclass(frozen=True)
class Named:
    """A symbol of a formula, its value, and its meaning."""

    symbol: str
    value: int
    meaning: str


@dataclass(frozen=True)
class Quantity:
    r"""A value with the formula that gave it; made by symbol() and number(), and by arithmetic.

    symbols is LaTeX, words is plain text; names are the symbols that occur.

    >>> rows, width = symbol("R", 16, "rows"), number(2, "B")
    >>> bytes_of_q = rows * 128 * width
    >>> bytes_of_q.value, bytes_of_q.words
    (4096, '16 rows x 128 x 2 B')
    >>> print(bytes_of_q.symbols)
    R \cdot 128 \cdot 2
    """

    value: int
    symbols: str
    words: str
    names: tuple[Named, ...] = ()
    level: int = ATOM

    def __add__(self, other: Quantity | int) -> Quantity:
        other = quantity(other)
        return _joined(self.value + other.value, SUM, (" + ",) * 2, self, other)

    def __sub__(self, other: Quantity | int) -> Quantity:
        other = quantity(other)
        # a subtracted sum is put in parentheses
        return _joined(self.value - other.value, SUM, (" - ",) * 2, self, _factor(other))

    def __mul__(self, other: Quantity | int) -> Quantity:
        left, right = _factor(self), _factor(quantity(other))
        times = r" \, " if right.symbols[0] not in "0123456789" else r" \cdot "
        return _joined(left.value * right.value, PRODUCT, (times, " x "), left, right)

    def __truediv__(self, other: Quantity | int) -> Quantity:
        """Return the exact quotient.

        Raises: ValueError if it is not a whole number.
        """
        other = quantity(other)
        whole, rest = divmod(self.value, other.value)
        if rest:
            raise ValueError(f"{self.words} = {self.value}, allowed: a multiple of {other.value}")
        above, below = _factor(self), other if other.level == ATOM else _in_parentheses(other)
        return Quantity(
            whole,
            rf"\frac{{{self.symbols}}}{{{other.symbols}}}",
            f"{above.words} / {below.words}",
            _names(self, other),
            PRODUCT,
        )

    def __radd__(self, other: int) -> Quantity:
        return quantity(other) + self

    def __rmul__(self, other: int) -> Quantity:
        return quantity(other) * self


def symbol(latex: str, value: int, meaning: str, unit: str = "") -> Quantity:
    """Return a quantity with a symbol; unit is the word after its number, by default its meaning.

    Raises: ValueError if value is not an integer >= 0.

    >>> (symbol("D", 128, "channels") * 2).words
    '128 channels x 2'
    """
    require_int(latex, value)
    words = f"{value} {unit or meaning}"
    return Quantity(value, latex, words, (Named(latex, value, meaning),))


def number(value: int, unit: str = "") -> Quantity:
    """Return a quantity without a symbol, such as `number(4, "B")`.

    Raises: ValueError if value is not an integer >= 0.

    >>> (number(4, "B") * 16).words
    '4 B x 16'
    """
    require_int("value", value)
    return Quantity(value, str(value), f"{value} {unit}".rstrip())


def quantity(value: Quantity | int) -> Quantity:
    """Return the quantity itself, or a plain number made a quantity."""
    return value if isinstance(value, Quantity) else number(value)


def ceil_div(value: Quantity | int, divisor: Quantity | int) -> Quantity:
    """Return the quotient, rounded up to a whole number."""
    value, divisor = quantity(value), quantity(divisor)
    return _fraction(-(-value.value // divisor.value), "ceil", value, divisor)


def floor_div(value: Quantity | int, divisor: Quantity | int) -> Quantity:
    """Return the quotient, rounded down to a whole number."""
    value, divisor = quantity(value), quantity(divisor)
    return _fraction(value.value // divisor.value, "floor", value, divisor)


def largest(*choices: Quantity | int) -> Quantity:
    """Return the largest of some quantities."""
    return _function("max", max, *choices)


def least(*choices: Quantity | int) -> Quantity:
    """Return the smallest of some quantities."""
    return _function("min", min, *choices)


def total(parts: tuple[Quantity, ...]) -> Quantity:
    """Return the sum of some quantities, 0 if there are none."""
    if not parts:
        return number(0)
    first, *rest = parts
    for part in rest:
        first = first + part
    return first


def _function(
    name: str, pick: Callable[[Iterable[int]], int], *choices: Quantity | int
) -> Quantity:
    parts = tuple(map(quantity, choices))
    if len(parts) == 1:
        return parts[0]
    inside = r",\; ".join(part.symbols for part in parts)
    symbols = rf"\{name}\left({inside}\right)"
    words = f"{name}({', '.join(part.words for part in parts)})"
    return Quantity(pick(p.value for p in parts), symbols, words, _names(*parts))


def _fraction(value: int, which: str, above: Quantity, below: Quantity) -> Quantity:
    symbols = rf"\left\l{which} \frac{{{above.symbols}}}{{{below.symbols}}} \right\r{which}"
    top, bottom = _factor(above), below if below.level == ATOM else _in_parentheses(below)
    words = f"{which}({top.words} / {bottom.words})"
    return Quantity(value, symbols, words, _names(above, below))


def _joined(
    value: int, level: int, between: tuple[str, str], left: Quantity, right: Quantity
) -> Quantity:
    symbols = f"{left.symbols}{between[0]}{right.symbols}"
    words = f"{left.words}{between[1]}{right.words}"
    return Quantity(value, symbols, words, _names(left, right), level)


def _factor(part: Quantity) -> Quantity:
    return _in_parentheses(part) if part.level == SUM else part


def _in_parentheses(part: Quantity) -> Quantity:
    return Quantity(part.value, f"({part.symbols})", f"({part.words})", part.names)


def _names(*parts: Quantity) -> tuple[Named, ...]:
    return tuple(dict.fromkeys(name for part in parts for name in part.names))
