"""The least time of a workload on several GPUs, with tensor cores and without."""

import matplotlib.pyplot as plt
import matplotlib.ticker as ticker
import pandas as pd
from matplotlib.figure import Figure

from labkernels.plots import style


@plt.rc_context(style.HOUSE)
def least_times(rows: pd.DataFrame, *, origin: str) -> Figure:
    """Draw a mark for each GPU with tensor cores on and one with them off, joined by a line.

    Shapes: rows has gpu (its name) and the least times on and off. Units: milliseconds.
    """
    figure, (axes,) = style.new_figure(1, 1, height_inches=0.9 + 0.32 * len(rows))
    places = range(len(rows))
    axes.hlines(places, rows.on, rows.off, color=style.RULE, lw=2, zorder=1)
    for way, engine in (("on", "mma"), ("off", "fma")):
        look = {"marker": style.MARKERS[way], "color": style.ENGINES[engine], "ls": ""}
        axes.plot(rows[way], places, label=f"tensor cores {way}", **look)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.set_yticks(places, rows.gpu)
    axes.set(xlabel="least time, ms", ylim=(len(rows) - 0.5, -0.5))
    axes.grid(axis="y", visible=False)
    figure.legend(loc="outside upper left", ncols=2)
    return style.say_origin(figure, origin)
