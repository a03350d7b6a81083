"""Curves of one number over another, one for each kind, also in panels; and bars."""

from collections.abc import Iterable, Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib import ticker
from matplotlib.figure import Figure

from labkernels.plots import style

_LETTERS = 63  # of the names that stand beside each other in a legend


@plt.rc_context(style.HOUSE)
def curves(
    rows: pd.DataFrame,
    *,
    labels: tuple[str, str],
    log: str = "",
    mark: str = "",
    at: Sequence[float] = (),
    origin: str,
) -> Figure:
    """Draw y over x, a curve a kind, with the curves' names above.

    Shapes: rows has kind, x and y. labels: what x and y are, with their units. log: the axes that
    are logarithmic, "x", "y" or "xy". mark: of each point. at: x of dashed vertical lines.
    """
    figure, (axes,) = style.new_figure(height_inches=2.9)
    for kind, line in rows.groupby("kind", sort=False):
        axes.plot(line.x, line.y, marker=mark, label=kind)
    for x in at:
        axes.axvline(x, color=style.CEILING, lw=1.0, ls=(0, (4, 3)))
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        if name in log:
            getattr(axes, f"set_{name}scale")("log")
        values = sorted(set(rows[name]))
        if len(values) <= 6:
            axis.set_major_locator(ticker.FixedLocator(values))
            axis.set_major_formatter(ticker.FormatStrFormatter("%.3g"))
            axis.set_minor_locator(ticker.NullLocator())
    axes.set(xlabel=labels[0], ylabel=labels[1])
    axes.legend(ncols=_beside(rows.kind), loc="lower left", bbox_to_anchor=(0, 1.0))
    return style.say_origin(figure, origin)


@plt.rc_context(style.HOUSE)
def in_panels(
    rows: pd.DataFrame, *, labels: tuple[str, str], log: str = "", shared: bool = True, origin: str
) -> Figure:
    """Draw y over powers of 2, a panel for each `panel` and a curve for each `kind`.

    Shapes: rows has panel, kind, x, y and dashed (bool), and kernel where its colour is meant.
    labels, log: as of `curves`; x is logarithmic anyway. shared: all panels have one scale of y.
    """
    parts, kinds = list(rows.groupby("panel", sort=False)), list(dict.fromkeys(rows.kind))
    across, down = min(3, len(parts)), -(-len(parts) // 3)
    beside = _beside(kinds)
    height = 1.1 + 1.7 * down + 0.17 * -(-len(kinds) // beside)  # of panels, and of the legend
    figure, every = style.new_figure(
        down, across, height_inches=height, sharex=shared, sharey=shared
    )
    drawn = {}
    for axes, (panel, part) in zip(every, parts, strict=False):
        for kind, line in part.groupby("kind", sort=False):
            line, first = line.sort_values("x"), line.iloc[0]
            look = {"ls": "--", "marker": ""} if first.dashed else {"ls": "-", "marker": "o"}
            own = style.LINE_COLOURS[kinds.index(kind) % len(style.LINE_COLOURS)]
            look["color"] = style.colour(first.kernel) if "kernel" in line else own
            (drawn[kind],) = axes.plot(line.x, line.y, ms=4, **look)
        axes.set_xscale("log", base=2)
        values = sorted(set(part.x))
        axes.set_xticks(values, [f"{n // 1024}k" if n >= 1024 else f"{n}" for n in values])
        axes.minorticks_off()
        axes.set_title(panel)
        if "y" in log:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
            axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    for axes in every[-across:]:
        axes.set_xlabel(labels[0])
    for axes in every[::across]:
        axes.set(ylabel=labels[1], ylim=(None if "y" in log else 0, None))
    figure.legend(drawn.values(), drawn.keys(), loc="outside upper left", ncols=beside)
    return style.say_origin(figure, origin)


def _beside(names: Iterable[str]) -> int:
    """Return how many of these names stand beside each other in a legend."""
    return min(3, max(1, _LETTERS // max(len(str(name)) for name in names)))


@plt.rc_context(style.HOUSE)
def bars(rows: pd.DataFrame, *, label: str, origin: str) -> Figure:
    """Draw a horizontal bar for each row, with its words behind it.

    Shapes: rows has name, value and words. label: what the value is, with its unit.
    """
    figure, (axes,) = style.new_figure(height_inches=0.9 + 0.3 * len(rows))
    axes.barh(rows["name"], rows.value, color=style.LINE_COLOURS[0], height=0.6)
    for place, row in enumerate(rows.itertuples()):
        axes.annotate(
            row.words, (row.value, place), (4, 0), textcoords="offset points", va="center", size=8
        )
    axes.set(xlabel=label, xlim=(0, 1.45 * rows.value.max()), ylim=(len(rows) - 0.5, -0.5))
    axes.grid(axis="y", visible=False)
    return style.say_origin(figure, origin)
