"""Times over the size of a window."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib import ticker
from matplotlib.figure import Figure

from labkernels.plots import style


@plt.rc_context(style.HOUSE)
def times_by_window(rows: pd.DataFrame, *, label: str, origin: str) -> Figure:
    """Draw times over windows, a panel for each `panel` and a curve for each `kind`.

    Shapes: rows has panel, kind, dashed (bool), window and value, and kernel where its colour is
    meant. label: what the value is, with its unit. Units: window in keys
    """
    panels = list(rows.groupby("panel", sort=False))
    figure, every = style.new_figure(1, len(panels), height_inches=3.2)
    kinds = list(dict.fromkeys(rows.kind))
    for axes, (panel, part) in zip(every, panels, strict=True):
        for kind, line in part.groupby("kind", sort=False):
            line, dashed = line.sort_values("window"), bool(line.dashed.iloc[0])
            look = {"ls": "--" if dashed else "-", "marker": "" if dashed else "o", "ms": 4}
            look["color"] = style.LINE_COLOURS[kinds.index(kind) % len(style.LINE_COLOURS)]
            if "kernel" in line:
                look["color"] = style.colour(line.kernel.iloc[0])
            axes.plot(line.window, line.value, label=kind, **look)
        axes.set(title=panel, xscale="log", yscale="log", xlabel="keys of the window")
        windows = sorted(part.window.unique())
        axes.set_xticks(windows, [f"{n // 1024}k" if n >= 1024 else str(n) for n in windows])
        axes.xaxis.set_minor_locator(ticker.NullLocator())
        axes.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
        axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    every[0].set_ylabel(label)
    named = {
        name: line
        for axes in every
        for line, name in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(named.values(), named.keys(), loc="outside upper left", ncols=2)
    return style.say_origin(figure, origin)
