"""A number of each request and head, over the heads and over the requests."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib import ticker
from matplotlib.figure import Figure

from labkernels.plots import style

_WIDTH = 0.7  # of the column of a head or of a request


@plt.rc_context(style.HOUSE)
def by_place(
    cells: pd.DataFrame, *, label: str, origin: str, log: bool = True, sample: str = "request"
) -> Figure:
    """Draw a dot for each request and head: a row of panels an operation, and a mark a kind.

    Left, dots stand over their head, so that a column shows the spread over requests; right over
    their request. Kinds stand beside each other in a column.
    Shapes: cells has operation, kind, sample, head and value. sample: what a sample is.
    """
    operations, kinds = (list(dict.fromkeys(cells[c])) for c in ("operation", "kind"))
    figure, panels = style.new_figure(
        len(operations), 2, height_inches=0.8 + 1.75 * len(operations), sharey=True
    )
    places, colours = {"head": "query head", "sample": sample}, style.LINE_COLOURS
    for n, (operation, place) in enumerate((o, p) for o in operations for p in places):
        axes, part = panels[n], cells[cells.operation == operation]
        for k, kind in enumerate(kinds):
            dots = part[part.kind == kind]
            shift = (k + 0.5) / len(kinds) - 0.5
            look = {"color": colours[k], "s": 9, "lw": 0, "alpha": 0.7}
            axes.scatter(dots[place] + _WIDTH * shift, dots.value, rasterized=True, **look)
        if log:
            axes.set_yscale("log")
        axes.xaxis.set_major_locator(ticker.MaxNLocator(6, integer=True))
        axes.set(title=operation if place == "head" else "", xlabel=places[place])
        axes.set_xlim(-0.6, np.max(part[place]) + 0.6)
    for axes in panels[::2]:
        axes.set_ylabel(label)
    marks = [plt.Line2D([], [], marker="o", ls="", ms=5, color=each) for each in colours]
    figure.legend(marks[: len(kinds)], kinds, loc="outside upper left", ncols=min(len(kinds), 3))
    return style.say_origin(figure, origin)
