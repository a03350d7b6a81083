"""The rooms of a package as boxes by layer, with arrows down to the rooms that they import."""

import itertools
from dataclasses import dataclass

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from labkernels.plots import style

_HEIGHT = 0.6  # height of a box, in rows
_GAP = 0.02  # between two boxes, and between two lanes of arrows, in units of the full width
_MARGIN = 0.2  # width on either side, for the lanes
_LETTER = 0.0109  # width of a letter of 5.2 points, in the same units
_FEWEST = 30  # least letters for which a box has room, so that its name fits
_FILL, _ARROW = "#eaf2f8", "#0072b2"
Pair = tuple[str, str]


@dataclass(frozen=True)
class _Box:
    """Where a room is drawn, and on which sides it has no neighbour."""

    left: float
    right: float
    row: int
    sides: frozenset[str]

    @property
    def centre(self) -> float:
        return (self.left + self.right) / 2


@plt.rc_context(style.HOUSE)
def rooms_by_layer(rooms: pd.DataFrame, imports: pd.DataFrame, *, origin: str) -> Figure:
    """Draw each room in its layer, the top one first, and below its name what is in it.

    An arrow is left out where other arrows lead to the same room by way of a third one.
    Shapes: rooms has room, layer (0 is the top) and words; imports has importer and imported.
    Raises: ValueError if an import does not point to a layer below.
    """
    pairs = set(zip(imports.importer, imports.imported, strict=True))
    layer = dict(zip(rooms.room, rooms.layer, strict=True))
    if wrong := sorted(f"{a} imports {b}" for a, b in pairs if layer[a] >= layer[b]):
        raise ValueError(f"{', '.join(wrong)}; allowed: imports of a layer below")
    rows = rooms.layer.max() + 1
    figure, (axes,) = style.new_figure(height_inches=0.3 + 0.47 * rows)
    axes.set(xlim=(-_MARGIN, 1 + _MARGIN), ylim=(rows - 0.5, -0.5))
    axes.axis("off")
    drawn = sorted(not_implied(pairs), key=lambda pair: layer[pair[1]] - layer[pair[0]])
    boxes = _arranged(rooms, drawn)
    for room in rooms.itertuples():
        _draw(axes, boxes[room.room], room.room, room.words)
    _arrows(axes, [(boxes[a], boxes[b]) for a, b in drawn])
    return style.say_origin(figure, origin)


def not_implied(pairs: set[Pair]) -> set[Pair]:
    """Return the pairs of an acyclic relation that do not follow from its other pairs."""
    below: dict[str, set[str]] = {}
    for first, second in pairs:
        below.setdefault(first, set()).add(second)

    def reached(room: str) -> set[str]:
        return set().union(*({other} | reached(other) for other in below.get(room, ())))

    return {(a, b) for a, b in pairs if not any(b in reached(c) for c in below[a] - {b})}


def _arranged(rooms: pd.DataFrame, pairs: list[Pair]) -> dict[str, _Box]:
    """Return a box for each room; the order within each layer lets most arrows pass outside."""
    layers = [list(beside.room) for _, beside in rooms.groupby("layer")]
    letters = {room.room: max(len(room.words), _FEWEST) for room in rooms.itertuples()}
    orders = itertools.product(*(itertools.permutations(layer) for layer in layers))
    arrangements = [
        {
            name: box
            for row, names in enumerate(order)
            for name, box in _beside(row, names, letters).items()
        }
        for order in orders
    ]
    return min(arrangements, key=lambda boxes: sum(not _way(boxes[a], boxes[b]) for a, b in pairs))


def _beside(row: int, names: tuple[str, ...], letters: dict[str, int]) -> dict[str, _Box]:
    """Return the boxes of one layer, whose widths are in proportion to the words in them."""
    edge, boxes = 0.0, {}
    for name in names:
        sides = {"left"} if name == names[0] else set()
        sides |= {"right"} if name == names[-1] else set()
        width = letters[name] / sum(letters[other] for other in names)
        boxes[name] = _Box(edge + _GAP / 2, edge + width - _GAP / 2, row, frozenset(sides))
        edge += width
    return boxes


def _way(start: _Box, end: _Box) -> str:
    """Return an arrow's way: "straight" to the next layer, else a free side; "" without any."""
    if end.row - start.row == 1:
        return "straight"
    return max(start.sides & end.sides, default="")


def _draw(axes: Axes, box: _Box, name: str, words: str) -> None:
    corner, width = (box.left, box.row - _HEIGHT / 2), box.right - box.left
    look = {"boxstyle": "round,pad=0,rounding_size=0.02", "fc": _FILL, "ec": "#9aa3af", "lw": 0.8}
    axes.add_patch(FancyBboxPatch(corner, width, _HEIGHT, mutation_aspect=8, zorder=2, **look))
    text = {"ha": "center", "va": "center", "zorder": 3}
    lift = 0.13 if words else 0.0
    axes.text(box.centre, box.row - lift, name, fontsize=8.5, weight="bold", **text)
    small = min(6.0, 5.2 * 0.95 * width / (_LETTER * max(len(words), 1)))
    axes.text(box.centre, box.row + 0.16, words, fontsize=small, color="#2d343d", **text)


def _arrows(axes: Axes, pairs: list[tuple[_Box, _Box]]) -> None:
    passing: dict[str, list[list[range]]] = {"left": [], "right": []}  # a side's lanes
    for number, (start, end) in enumerate(pairs):
        way = _way(start, end)
        if way not in passing:
            x = min(max(start.centre, end.left + _GAP), end.right - _GAP)
            out = min(max(x, start.left + _GAP), start.right - _GAP)
            points = [(out, start.row + _HEIGHT / 2), (x, end.row - _HEIGHT / 2)]
        else:
            out = _GAP * (1 + _free_lane(passing[way], range(start.row, end.row + 1)))
            lane = 1 + out if way == "right" else -out
            shift = 0.05 * (number % 5)  # so that arrows out of and into one box do not meet
            points = [(getattr(start, way), start.row + shift), (lane, start.row + shift)]
            points += [(lane, end.row - shift), (getattr(end, way), end.row - shift)]
        axes.plot(*zip(*points[:-1], strict=True), color=_ARROW, lw=0.9, zorder=1)
        look = {"arrowstyle": "-|>", "color": _ARROW, "lw": 0.9, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", points[-1], points[-2], arrowprops=look | {"mutation_scale": 7}, zorder=1)


def _free_lane(lanes: list[list[range]], rows: range) -> int:
    """Return the first lane in which no arrow passes these rows, and take them in it."""
    for number, taken in enumerate(lanes):
        if not any(set(rows) & set(others) for others in taken):
            taken.append(rows)
            return number
    lanes.append([rows])
    return len(lanes) - 1
