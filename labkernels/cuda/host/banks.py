"""Counts the turns that shared memory takes, and so its bank conflicts, on the CPU machine.

A kernel is built once more for this, with a machine that counts (`include/lab/banks/`) and checks
nothing. The machine counts the accesses of the source, while a GPU's compiler may merge accesses of
4 bytes into wider ones. Accesses by wgmma and the TMA, which no lane makes, are not counted.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Turns:
    """How often the accesses at one place of a kernel kept shared memory busy.

    place: file and line. taken: in a turn every bank serves one word of 4 bytes. least: the
    turns of the same accesses if no two lanes that are served together meet in a bank.
    """

    place: str
    taken: int
    least: int

    @property
    def extra(self) -> int:
        """The turns that bank conflicts cost."""
        return self.taken - self.least


_COUNTED: ContextVar[list[Turns] | None] = ContextVar("_COUNTED", default=None)
ALONE = threading.Lock()  # a machine counts for all of its launches together


@contextlib.contextmanager
def counted() -> Iterator[list[Turns]]:
    """List the turns of the launches in this context that are built with checks.

    Their kernels run on the machine that counts, and not on the machine that checks.
    """
    found: list[Turns] = []
    before = _COUNTED.set(found)
    try:
        yield found
    finally:
        _COUNTED.reset(before)


def listed() -> list[Turns] | None:
    """Return the list of this context, or None if nothing is counted."""
    return _COUNTED.get()


def read(text: str) -> list[Turns]:
    """Read the turns from the machine's text, which has taken, least and place in each line."""
    rows = (line.split(" ", 2) for line in text.splitlines())
    return [Turns(place, int(taken), int(least)) for taken, least, place in rows]


def by_place(turns: Iterable[Turns]) -> dict[str, Turns]:
    """Return the sum for each place, those with most extra turns first."""
    sums: dict[str, Turns] = {}
    for each in turns:
        one = sums.get(each.place, Turns(each.place, 0, 0))
        sums[each.place] = Turns(each.place, one.taken + each.taken, one.least + each.least)
    return dict(sorted(sums.items(), key=lambda item: -item[1].extra))
