"""A budget as named lines that add up, where lines that overlap in time share their space."""

from dataclasses import dataclass

from labkernels.budget.quantity import Quantity, quantity
from labkernels.units import format_bytes, require_choice

UNITS = ("bytes", "registers")


@dataclass(frozen=True)
class Line:
    """One entry of a budget: an amount with the formula that it was computed by.

    `shares` names a union: its lines use the same space at different times, so that only the
    largest counts. Lines of a union with the same `phase` are live together and add up first.
    Raises: ValueError if quantity is not an integer >= 0, or phase is given without shares.
    """

    name: str
    quantity: Quantity | int
    note: str = ""
    shares: str | None = None
    phase: str | None = None

    def __post_init__(self) -> None:
        quantity(self.quantity)  # raises
        if self.phase is not None and self.shares is None:
            raise ValueError(f"phase = {self.phase!r}, allowed: None if shares is None")

    @property
    def amount(self) -> int:
        """The line's value, in the unit of its ledger."""
        return self.exact.value

    @property
    def exact(self) -> Quantity:
        """The quantity, with a formula even if a plain number was given."""
        return quantity(self.quantity)

    @property
    def formula(self) -> str:
        """The formula with numbers put in, as plain text: "16 rows x 128 channels x 2 B"."""
        return self.exact.words


@dataclass(frozen=True)
class Ledger:
    """A budget: its lines, and their total in bytes per block or registers per thread.

    Raises: ValueError if unit is not one of these, or two lines have the same name.
    """

    title: str
    unit: str
    lines: tuple[Line, ...]

    def __post_init__(self) -> None:
        require_choice("unit", self.unit, UNITS)
        object.__setattr__(self, "lines", tuple(self.lines))
        names = [line.name for line in self.lines]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"lines = {repeated!r} repeated, allowed: each name once")

    @property
    def total(self) -> int:
        """The sum of the lines, each union counted as its largest phase; in `unit`."""
        parts: dict[str, dict[str, int]] = {}
        for line in self.lines:
            # a line that shares nothing is a union of one line; a line without a phase is a phase
            # of one line
            union = f"union {line.shares}" if line.shares is not None else f"line {line.name}"
            phase = f"phase {line.phase}" if line.phase is not None else f"line {line.name}"
            phases = parts.setdefault(union, {})
            phases[phase] = phases.get(phase, 0) + line.amount
        return sum(max(phases.values()) for phases in parts.values())

    def line_over(self, limit: int) -> Line | None:
        """Return the first line at which the running total exceeds a limit; None if none does."""
        for count, line in enumerate(self.lines, 1):
            if Ledger(self.title, self.unit, self.lines[:count]).total > limit:
                return line
        return None

    def table(self) -> str:
        """Return the ledger as plain text: a row per line, then the total."""
        head = ("line", self.unit, "formula", "note")
        rows = [head, *(self._row(line) for line in self.lines)]
        rows.append(("total", self._text(self.total), "", ""))
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        texts = [_align(row, widths) for row in rows]
        rule = "-" * max(len(text) for text in texts)
        return "\n".join([self.title, rule, texts[0], rule, *texts[1:-1], rule, texts[-1]])

    def _row(self, line: Line) -> tuple[str, str, str, str]:
        return line.name, self._text(line.amount), line.formula, self._note(line)

    def _note(self, line: Line) -> str:
        overlap = f"shares {line.shares}" if line.shares else ""
        return "; ".join(part for part in (overlap, line.note) if part)

    def _text(self, amount: int) -> str:
        return format_bytes(amount) if self.unit == "bytes" else f"{amount:,}"


def _align(row: tuple[str, str, str, str], widths: list[int]) -> str:
    name, amount, formula, note = row
    text = f"{name:<{widths[0]}}  {amount:>{widths[1]}}  {formula:<{widths[2]}}  {note}"
    return text.rstrip()
