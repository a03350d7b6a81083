"""Pictures that move: stages that fill and drain, and the banks that a read meets turn by turn.

The pictures are SVG with CSS, and need no script. A check box pauses them. On paper, and for a
reader who asks for reduced motion, they do not move.
"""

import hashlib
import html
from dataclasses import dataclass
from pathlib import Path

import numpy as np

TURN_S = 1.2
COLOURS = ("#0072b2", "#c44e00", "#007a59", "#b0487f", "#8a5a00")
_STYLE = Path(__file__).with_suffix(".css").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Motion:
    """A moving picture. still: what it shows, in words."""

    height: int
    shapes: tuple[str, ...]
    still: str
    origin: str

    def _repr_html_(self) -> str:
        origin = _text(0, self.height - 6, self.origin)
        box, said = f"0 0 600 {self.height}", html.escape(self.still)
        picture = f'<svg viewBox="{box}" role="img" aria-label="{said}">'
        picture += f"{''.join(self.shapes)}{origin}</svg>"
        pause = '<label><input type="checkbox"> Pause</label>'
        return f'<div class="lab-motion"><style>\n{_STYLE}</style>{picture}{pause}</div>'

    def __repr__(self) -> str:
        return self.still


def pipeline(events: list[tuple[str, int]], stages: int, *, origin: str) -> Motion:
    """Show stages that fill and drain, event by event, above the timeline of all events.

    events: ("fetch", tile) and ("use", tile) in the order of the program, as a trace has them. A
    copy is drawn as if its bytes arrived evenly until the tile is used.
    """
    at = {event: turn for turn, event in enumerate(events)}
    turns, tiles = len(events), len(events) // 2
    wide, sums_at = 600 / turns, 100 + 30 * stages
    shapes = [_text(150 * stage, 16, f"stage {stage}") for stage in range(stages)]
    shapes += [_frame(150 * stage, 24, 130, 56) for stage in range(stages)]
    shapes += [_text(450, 16, "arithmetic"), _frame(450, 24, 130, 56)]
    for tile in range(tiles):
        begins, used = at["fetch", tile], at["use", tile]
        colour, x = COLOURS[tile % len(COLOURS)], 150 * (tile % stages)
        level = [(begins, "scaleY(0)"), (used, "scaleY(1)"), (used + 1, "scaleY(0)")]
        shapes.append(_moves(_rect(x, 24, 130, 56, colour), "transform", level, turns))
        named = _text(x + 40, 58, f"tile {tile}", "#fff")
        shapes.append(_moves(named, "opacity", _while(begins + 0.6, used + 0.4), turns))
        summed = _rect(450, 24, 130, 56, colour) + _text(488, 58, f"sum {tile}", "#fff")
        shapes.append(_moves(summed, "opacity", _while(used, used + 1), turns))
        y = 98 + 30 * (tile % stages)
        shapes.append(_rect(wide * begins, y, wide * (used - begins) - 2, 26, colour))
        shapes.append(_text(wide * begins + 6, y + 19, f"copy {tile}", "#fff"))
        shapes.append(_rect(wide * used, sums_at, wide - 2, 26, colour))
        shapes.append(_text(wide * used + 4, sums_at + 19, f"sum {tile}", "#fff"))
    head = f'<rect x="-1" y="94" width="3" height="{sums_at - 64}" fill="currentColor"/>'
    walk = [(0, "translateX(0)"), (turns, "translateX(600px)")]
    shapes.append(_moves(head, "transform", walk, turns))
    still = (
        f"{tiles} tiles go through {stages} stages. While one tile is summed, the copy of the next"
        " tile fills another stage."
    )
    return Motion(sums_at + 60, tuple(shapes), still, origin)


def turns_of_a_read(addresses: dict[str, np.ndarray], *, origin: str) -> Motion:
    """Show the banks that a read of one chunk per row meets, turn by turn, for each layout.

    Shapes: addresses [rows], the first byte of each row's chunk of 16 bytes, for each layout.
    """
    shapes, said = [], []
    places = {name: found % 128 // 16 for name, found in addresses.items()}
    rows = range(len(next(iter(places.values()))))
    rank = {
        name: [int((place[:row] == place[row]).sum()) for row in rows]
        for name, place in places.items()
    }
    cycle = max(max(found) for found in rank.values()) + 3  # two turns to look at the result
    for panel, (name, place) in enumerate(places.items()):
        left, needed = 310 * panel, max(rank[name]) + 1
        shapes.append(_text(left, 16, f"{name}: {needed} turn{'s' * (needed > 1)}"))
        shapes += [_frame(left + 34 * i, 26 + 24 * row, 34, 24) for row in rows for i in range(8)]
        for row, column in enumerate(place):
            turn = rank[name][row]
            x, y, colour = left + 34 * int(column), 26 + 24 * row, COLOURS[turn % len(COLOURS)]
            shapes.append(_rect(x, y, 34, 24, colour, opacity=0.35))
            shapes.append(_text(x + 12, y + 19, f"{turn + 1}"))
            read = _rect(x, y, 34, 24, colour) + _text(x + 12, y + 19, f"{turn + 1}", "#fff")
            shapes.append(_moves(read, "opacity", _while(turn, cycle), cycle))
        shapes += [_text(left + 34 * i + 6, 240, f"{4 * i}") for i in range(8)]
        shapes.append(_text(left, 264, "first of the place's four banks"))
        said.append(f"{name}, the rows are read in {needed} turn{'s' * (needed > 1)}")
    still = (
        f"One chunk from each of {len(rows)} rows, with the turn that reads it: {'; '.join(said)}."
    )
    return Motion(300, tuple(shapes), still, origin)


def _while(begins: float, ends: float) -> list[tuple[float, str]]:
    """Return frames of an opacity that is 1 between two turns and 0 elsewhere."""
    return [(begins - 0.01, "0"), (begins, "1"), (ends - 0.01, "1"), (ends, "0")]


def _moves(shapes: str, what: str, frames: list[tuple[float, str]], turns: float) -> str:
    """Return shapes with a property that goes through frames (turn, value), again and again."""
    kept = [(0, frames[0][1]), *frames, (turns, frames[-1][1])]
    steps = " ".join(
        f"{100 * min(max(turn, 0), turns) / turns:.3f}% {{ {what}: {value} }}"
        for turn, value in kept
    )
    name = "lab-" + hashlib.sha256(f"{shapes}{steps}".encode()).hexdigest()[:12]
    style = f"@keyframes {name} {{ {steps} }}"
    run = f"animation: {name} {turns * TURN_S:.2f}s linear infinite"
    return f'<style>{style}</style><g class="moves" style="{run}">{shapes}</g>'


def _rect(x: float, y: float, w: float, h: float, fill: str, kind="", opacity=1.0) -> str:
    at = f'x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}"'
    return f'<rect {at} fill="{fill}" fill-opacity="{opacity}" class="{kind}"/>'


def _frame(x: float, y: float, w: float, h: float) -> str:
    return f'<rect x="{x}" y="{y}" width="{w}" height="{h}" class="frame"/>'


def _text(x: float, y: float, words: str, fill: str = "") -> str:
    colour = f' style="fill: {fill}"' if fill else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{colour}>{html.escape(words)}</text>'
