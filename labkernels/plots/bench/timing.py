"""Times of a bench's workloads: live, recorded, of peers, and the least possible time."""

import matplotlib.pyplot as plt
import matplotlib.ticker as ticker
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from labkernels.plots import style

LIVE, RECORDED = "live", "recorded"
_FLOOR_LINES = {"on": "-", "off": (0, (4, 2))}


@plt.rc_context(style.HOUSE)
def timing(times: pd.DataFrame, floors: pd.DataFrame) -> Figure:
    """Draw a mark per kernel and peer in a panel per workload, but none for simulations.

    Shapes: times as from Bench.times, floors as from Bench.floors.
    """
    timed = times[times.kind.isin([LIVE, RECORDED])] if len(times) else times
    if len(timed):
        timed = timed.assign(name=list(map(style.name, timed.kernel, timed.tensor_cores)))
    panels = list(floors.groupby("operation", sort=False))
    shown = [timed[timed.operation == name] if len(timed) else timed for name, _ in panels]
    counts = [max(2, each.name.nunique() if len(each) else 0) for each in shown]
    figure, every = style.new_figure(
        len(panels),
        1,
        height_inches=0.7 + sum(1.05 + 0.21 * count for count in counts),
        height_ratios=tuple(1.0 + 0.21 * count for count in counts),
    )
    for axes, each, (_, least) in zip(every, shown, panels, strict=True):
        _panel(axes, each, least)
    figure.legend(handles=_legend(timed), loc="outside upper left", ncols=3)
    origins = list(dict.fromkeys(timed.origin)) if len(timed) else ["no time is recorded for these"]
    style.say_origin(figure, "\n".join(origins[:3]))
    return figure


def _panel(axes: Axes, times: pd.DataFrame, least: pd.DataFrame) -> None:
    workload = least.workload.iloc[0]
    if len(times):
        shown = times.sort_values("time_ms")
        colours = {n: style.colour(k) for n, k in zip(shown.name, shown.kernel, strict=True)}
        for kind, filled in ((RECORDED, False), (LIVE, True)):
            for way, marker in style.MARKERS.items():
                rows = shown[(shown.kind == kind) & (shown.tensor_cores == way)]
                rows = rows.assign(name=pd.Categorical(rows.name, list(dict.fromkeys(shown.name))))
                if len(rows):
                    _marks(axes, rows, colours, marker, filled)
        axes.set_ylim(shown.name.nunique() - 0.5, -0.5)
    for row in least.itertuples():
        axes.axvline(
            row.least_ms, color=style.CEILING, lw=1.1, ls=_FLOOR_LINES[row.tensor_cores], zorder=1
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.set(xlabel="time, ms", ylabel="")
    axes.set_title(workload, fontsize=8)
    axes.grid(axis="y", visible=False)


def _marks(axes: Axes, rows: pd.DataFrame, colours: dict, marker: str, filled: bool) -> None:
    sns.stripplot(
        rows,
        x="time_ms",
        y="name",
        hue="name",
        palette=colours,
        marker=marker,
        size=8 if filled else 6,
        jitter=False,
        legend=False,
        ax=axes,
        **({"linewidth": 1.2, "edgecolor": "#2d343d"} if filled else {}),
    )


def _legend(times: pd.DataFrame) -> list[Line2D]:
    dark = "#2d343d"
    told = [
        Line2D([], [], marker=style.MARKERS[way], ls="", color=dark, label=f"tensor cores {way}")
        for way in ("on", "off")
    ]
    told += [
        Line2D([], [], color=style.CEILING, lw=1.1, ls=ls, label=f"least time, {way}")
        for way, ls in _FLOOR_LINES.items()
    ]
    if LIVE in set(times.kind if len(times) else ()):
        look = {"marker": "s", "ls": "", "color": "#7d8894"}
        told += [Line2D([], [], **look, mec=dark, mew=1.2, ms=8, label="live")]
        told += [Line2D([], [], **look, label="recorded")]
    return told
