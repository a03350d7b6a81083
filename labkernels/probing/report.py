"""What a probe hands back: facts, defects, refusals, and places in words."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labkernels.numerics.verdict.diagnosis.region import numbers

NO_DEFECT, DEFECT, CANNOT_JUDGE = VERDICTS = ("no defect", "defect", "cannot judge")


@dataclass(frozen=True)
class Fact:
    """A property of a kernel that was read off, the numbers that show it, and the calls spent.

    >>> Fact("P", "bf16", "0.00% of bits differ", 1).value
    'bf16'
    """

    name: str
    value: str
    evidence: str
    calls: int


@dataclass(frozen=True)
class Defect:
    """A mistake: its class (labkernels.defects), its place as data and in words, and its evidence.

    rows (a request's queries), heads, requests, keys, channels: the indices concerned; None where
    all are, or where the axis does not matter.

    >>> print(Defect("mask", "all rows; keys 0", "a key is left out", "q = 0", keys=(0,)))
    MASK at all rows; keys 0: a key is left out [q = 0]
    """

    kind: str
    where: str
    sentence: str
    evidence: str
    rows: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    requests: tuple[int, ...] | None = None
    keys: tuple[int, ...] | None = None
    channels: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return f"{self.kind.upper()} at {self.where}: {self.sentence} [{self.evidence}]"


Findings = list[Fact | Defect | None]  # of an experiment: what it adds to a sheet


@dataclass
class Datasheet:
    """The facts and defects of a kernel, as read from outside; `str` makes it readable.

    defects: the cause comes first. refused: the smallest inputs that the kernel refuses, each with
    the first line of its message. reason: why nothing could be judged, if so.

    >>> sheet = Datasheet("mine", "bhsd", "bf16")
    >>> sheet.verdict, sheet.exit_code
    ('cannot judge', 2)
    """

    name: str
    layout: str
    dtype: str
    facts: dict[str, Fact] = field(default_factory=dict)
    defects: list[Defect] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    calls: int = 0
    seconds: float = 0.0
    judged: bool = False
    reason: str = "no experiment was finished"

    @property
    def verdict(self) -> str:
        """One of "no defect", "defect" and "cannot judge"."""
        return DEFECT if self.defects else NO_DEFECT if self.judged else CANNOT_JUDGE

    @property
    def exit_code(self) -> int:
        """0 without a defect, 1 with one, 2 if the kernel cannot be judged."""
        return VERDICTS.index(self.verdict)

    def rows(self) -> list[dict[str, Any]]:
        """Return the verdict, the defects, the facts and the refusals as flat rows of a table."""
        first = self.defects[0].sentence if self.defects else ""
        why = self.reason if self.verdict == CANNOT_JUDGE else first
        found = [
            ("sheet", self.verdict, str(len(self.defects)), why, self.calls, self.seconds),
            *(("defect", d.kind, d.where, f"{d.sentence} [{d.evidence}]") for d in self.defects),
            *(("fact", f.name, f.value, f.evidence, f.calls) for f in self.facts.values()),
            *(("refused", *text.partition(": ")[::2]) for text in self.refused),
        ]
        names = ("kind", "name", "value", "evidence", "calls", "seconds")
        return [dict(zip(names, row, strict=False)) for row in found]

    def __str__(self) -> str:
        title = " ".join(x for x in (self.name, self.layout, self.dtype) if x)
        lines = [f"{title}: {self.verdict} ({self.calls} calls, {self.seconds:.1f} s)"]
        if self.verdict == CANNOT_JUDGE:
            lines.append(f"  {self.reason}")
        lines += [f"  {defect}" for defect in self.defects]
        width = max((len(name) for name in self.facts), default=0)
        lines += [f"  {f.name:{width}}  {f.value}  ({f.evidence})" for f in self.facts.values()]
        lines += [f"  refused: {x}" for x in self.refused]
        return "\n".join(lines)


def defect(kind: str, sentence: str, evidence: str, rows=None, keys=None, channels=None) -> Defect:
    """Return a defect whose place is given by masks; an axis that is True throughout is left out.

    Shapes: rows [B, H, M], keys [N], channels [D], or None.
    """
    words, masks = [], {}
    if rows is not None:
        words.append(rows_in_words(rows))
        others = {"requests": (1, 2), "heads": (0, 2), "rows": (0, 1)}
        masks |= {name: rows.any(axes) for name, axes in others.items()}
    for name, mask in (("key", keys), ("channel", channels)):
        if mask is not None and mask.any():
            masks[f"{name}s"] = mask
            words.append(span(name, mask))
    place = {x: tuple(np.flatnonzero(y).tolist()) for x, y in masks.items() if not y.all()}
    return Defect(kind, "; ".join(words) or "all rows", sentence, evidence, **place)


def span(what: str, where: np.ndarray) -> str:
    """Return words for the True entries of a vector.

    >>> span("key", np.array([False, True, True, False])), span("key", np.ones(3, bool))
    ('keys 1 to 2', 'all keys')
    """
    return f"all {what}s" if where.all() else numbers(what, np.flatnonzero(where), len(where))


def rows_in_words(rows: np.ndarray) -> str:
    """Return words for a set of rows; shape [requests, heads, queries].

    >>> rows_in_words(np.array([[[True, True]], [[False, False]]]))
    'request 0'
    """
    if rows.all():
        return "all rows"
    axes: list[np.ndarray] = [np.any(rows, x) for x in ((1, 2), (0, 2), (0, 1))]
    names = zip(("request", "head", "query"), axes, strict=True)
    words = ", ".join(span(name, x) for name, x in names if not x.all())
    words = words or "all requests, heads and queries"
    product = axes[0][:, None, None] & axes[1][:, None] & axes[2]
    whole = (product == rows).all()
    return words if whole else f"{int(rows.sum())} of {rows.size} rows; {words}"
