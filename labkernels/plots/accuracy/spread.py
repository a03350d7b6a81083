"""How errors spread over heads and over requests, a box for each way of computing."""

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from labkernels.plots import style

WAYS_MAX = len(style.LINE_COLOURS)
_MOST = 40_000  # elements of a way that a box is drawn from
_LABELS = {"head": "query head", "sample": "request (widest box: half of the errors)"}


@plt.rc_context(style.HOUSE)
def error_spread(elements: pd.DataFrame, *, origin: str, log: bool = False) -> Figure:
    """Draw |error| of each head and of each request; the widest part of a box is half of them.

    Shapes: elements has way, sample, head and error, one row per element, of WAYS_MAX ways or less.
    log: whether sizes are drawn on a logarithmic axis, on which an error of 0 has no place.
    """
    ways = list(dict.fromkeys(elements.way))
    shown = style.thinned(elements, ["way"], _MOST)
    shown = shown.assign(size=shown.error.abs())
    if log:
        shown = shown[shown["size"] > 0]
    figure, panels = style.new_figure(2, 1, height_inches=4.6)
    colours = dict(zip(ways, style.LINE_COLOURS, strict=False))
    for axes, column in zip(panels, _LABELS, strict=True):
        sns.boxenplot(
            shown,
            x=column,
            y="size",
            hue="way",
            hue_order=ways,
            palette=colours,
            width=0.8,
            log_scale=(False, True) if log else None,
            legend=False,
            ax=axes,
            **style.BOXES,
        )
        axes.set(xlabel=_LABELS[column], ylabel="|error|")
        axes.grid(axis="x", visible=False)
        if not log:
            axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    handles = [plt.Rectangle((0, 0), 1, 1, color=colours[way], label=way) for way in ways]
    figure.legend(handles=handles, loc="outside upper left", ncols=min(3, len(ways)))
    return style.say_origin(figure, origin)
