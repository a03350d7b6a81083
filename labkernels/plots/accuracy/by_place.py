"""A number of each request and head, over the heads and over the requests."""

import math

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkernels.plots import style

_WIDTH = 0.7  # of the column of a head or of a request
_GAP = 0.6  # between groups of inputs, in columns
_MOST_TICKS = 6  # of a group
_NAMED = 0.14  # of the height, for the groups' names


@plt.rc_context(style.HOUSE)
def by_place(
    cells: pd.DataFrame, *, label: str, origin: str, log: bool = True, sample: str = "request"
) -> Figure:
    """Draw a dot for each request and head: a row of panels an operation, and a mark a kind.

    Left, dots stand over their head, so that a column shows the spread over requests; right over
    their request. Kinds stand beside each other in a column.
    Shapes: cells has operation, kind, sample, head and value; with a column `inputs`, its groups
    stand beside each other, and a line parts them. sample: what a sample is.
    """
    operations, kinds = (list(dict.fromkeys(cells[c])) for c in ("operation", "kind"))
    figure, panels = style.new_figure(
        len(operations), 2, height_inches=0.8 + 1.75 * len(operations), sharey=True
    )
    places, colours = {"head": "query head", "sample": sample}, style.LINE_COLOURS
    for n, (operation, place) in enumerate((o, p) for o in operations for p in places):
        axes, part = panels[n], cells[cells.operation == operation]
        part = part.assign(x=part[place] + _beside(axes, part, place))
        for k, kind in enumerate(kinds):
            dots = part[part.kind == kind]
            shift = (k + 0.5) / len(kinds) - 0.5
            look = {"color": colours[k], "s": 9, "lw": 0, "alpha": 0.7}
            axes.scatter(dots.x + _WIDTH * shift, dots.value, rasterized=True, **look)
        if log:
            axes.set_yscale("log")
        axes.set(title=operation if place == "head" else "", xlabel=places[place])
    if "inputs" in cells:
        low, high = panels[0].get_ylim()  # of all panels
        room = (high / low) ** _NAMED if log else 1 + _NAMED * (1 - low / high)
        panels[0].set_ylim(low, high * room)
    for axes in panels[::2]:
        axes.set_ylabel(label)
    marks = [plt.Line2D([], [], marker="o", ls="", ms=5, color=each) for each in colours]
    figure.legend(marks[: len(kinds)], kinds, loc="outside upper left", ncols=min(len(kinds), 3))
    return style.say_origin(figure, origin)


def _beside(axes: Axes, part: pd.DataFrame, place: str) -> pd.Series:
    """Set the axis of the places of each group of inputs; return where a dot's group starts."""
    inputs = part["inputs"] if "inputs" in part else pd.Series("", index=part.index)
    start, starts, ticks = 0, {}, {}
    for name, of in part.groupby(inputs, sort=False):
        starts[name], count = start, of[place].max() + 1
        ticks |= {start + n: str(n) for n in range(0, count, math.ceil(count / _MOST_TICKS))}
        if start:
            axes.axvline(start - 0.5 - _GAP / 2, color=style.CEILING, lw=1.0)
        middle = start + (count - 1) / 2
        axes.annotate(
            name,
            (middle, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, -2),
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize="small",
        )
        start += count + _GAP
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.set_xlim(-0.6, start - _GAP - 0.4)
    return inputs.map(starts)
