"""Which of a kernel's announced softmax numbers belong to which query row.

A lane tells FLOATS numbers: m of two rows, l of two rows, and eight numbers of O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FLOATS = 12
_L, _O = 2, 4  # where l and O begin
_LANES, _CHUNK = 32, 8  # channels that a lane of decode_fma has


@dataclass(frozen=True)
class Row:
    """A query row: its name, the warps that have a part of it, and where its numbers are told.

    m, l and each channel of o: indices of numbers that the lanes tell, lane after lane. Those of l
    and o are parts of sums, which are added in pairs.
    """

    name: str
    warps: tuple[int, ...]
    m: int
    l: tuple[int, ...]
    o: tuple[tuple[int, ...], ...]


def _at(lane: int, number: int) -> int:
    return FLOATS * lane + number


def accumulator_rows(
    rows: int, warps: Sequence[int], *, group: int, first: int = 0, has_o: bool = True
) -> list[Row]:
    """Return rows of decode_mma, prefill_mma and wgmma: g and g + 8 lie in the lanes 4 g + t.

    first: the block's row that is the warps' first.
    """
    made = []
    for row in range(rows):
        half, lane = row // 8, 4 * (row % 8)
        o = tuple((_at(lane, _O + 2 * half + channel),) for channel in range(2))
        sums = tuple(_at(lane + t, _L + half) for t in range(4))
        name = _name(first + row, group)
        made.append(Row(name, tuple(warps), _at(lane, half), sums, o if has_o else ()))
    return made


def accumulator_columns(rows: int, warps: Sequence[int]) -> list[Row]:
    """Return rows of decode_mma_n8: queries 2t and 2t + 1 lie in the eight lanes 4 g + t."""
    made = []
    for row in range(rows):
        t, half = row // 2, row % 2
        sums = tuple(_at(4 * g + t, _L + half) for g in range(8))
        o = tuple((_at(4 * channel + t, _O + half),) for channel in range(2))
        made.append(Row(_name(row, rows), tuple(warps), _at(t, half), sums, o))
    return made


def cuda_core_rows(rows: int, head_dim: int, warps: Sequence[int]) -> list[Row]:
    """Return rows of decode_fma: a lane has {m, l} of one row, and O of its channels and keys."""
    lanes = head_dim // _CHUNK  # that share a key
    made = []
    for row in range(rows):
        sums = tuple(_at(lane, _L) for lane in _pairs(row, _LANES // 2, rows))
        o = tuple(
            tuple(_at(lane, _O + 2 * row + channel) for lane in _pairs(0, _LANES // 2, lanes))
            for channel in range(2)
        )
        made.append(Row(_name(row, rows), tuple(warps), _at(row, 0), sums, o))
    return made


def _pairs(lane: int, bit: int, last: int) -> list[int]:
    """Return the lanes that differ in the bits from `bit` to `last`; neighbours differ in `bit`.

    A sum of neighbours, then of neighbouring sums, and so on, takes the bits in that order.
    """
    if bit < last:
        return [lane]
    halves = _pairs(lane, bit // 2, last)
    return [each for low in halves for each in (low, low + bit)]


def _name(row: int, group: int) -> str:
    return f"head {row}" if row < group else f"token {row // group}, head {row % group}"
