"""A tile search: expected against measured times, and how soon the best tile is found."""

import matplotlib.pyplot as plt
import matplotlib.ticker as ticker
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkernels.plots import style

_PANELS = 2  # side by side
_MARKS = {True: "s", False: "o"}  # whether the kernel's own list has the tile


@plt.rc_context(style.HOUSE)
def expected_and_measured(tiles: pd.DataFrame, *, origin: str) -> Figure:
    """Draw each tile's measured time over its expected one, a panel per search.

    Shapes: tiles has search, kernel, expected_ms, measured_ms, listed and correlation (a search's)
    """
    searches = list(tiles.groupby("search", sort=False))
    rows = -(-len(searches) // _PANELS)
    figure, axes = style.new_figure(rows, _PANELS, height_inches=0.5 + 1.35 * rows)
    for panel, (search, frame) in zip(axes, searches, strict=False):
        _panel(panel, frame)
        panel.set_title(f"{search}\nrank correlation {frame.correlation.iloc[0]:.2f}", fontsize=8)
    for panel in axes[len(searches) :]:
        panel.set_visible(False)
    figure.supylabel("measured, ms", fontsize=9)
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=3, fontsize=8
    )
    for panel in axes[max(0, len(searches) - _PANELS) : len(searches)]:
        panel.set_xlabel("expected, ms")
    return style.say_origin(figure, origin)


def _panel(axes: Axes, frame: pd.DataFrame) -> None:
    low, high = frame.expected_ms.min(), frame.expected_ms.max()
    axes.plot([low, high], [low, high], color=style.CEILING, lw=1.0, label="as expected")
    for listed, words in ((False, "not listed"), (True, "in the kernel's list")):
        part = frame[frame.listed == listed]
        axes.plot(
            part.expected_ms,
            part.measured_ms,
            _MARKS[listed],
            color=style.colour(frame.kernel.iloc[0]),
            markerfacecolor="white" if not listed else None,
            ms=4,
            lw=0,
            label=words,
        )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(ticker.MaxNLocator(4))


@plt.rc_context(style.HOUSE)
def best_by_runs(curves: pd.DataFrame, *, goal: float, origin: str) -> Figure:
    """Draw the share of the best speed that is found after each run in the model's order.

    A panel per kernel. Shapes: curves has search, kernel, run and share
    """
    kernels = list(curves.groupby("kernel", sort=False))
    size = {"height_inches": 0.7 + 2.2 * len(kernels)}
    figure, panels = style.new_figure(len(kernels), **size, sharex=True, sharey=True)
    for axes, (kernel, of_kernel) in zip(panels, kernels, strict=True):
        axes.axhline(100 * goal, color=style.CEILING, lw=1.0, ls=(0, (4, 3)))
        for search, frame in of_kernel.groupby("search", sort=False):
            label = search.removeprefix(kernel).lstrip(", ")
            axes.step(frame.run, 100 * frame.share, where="post", lw=1.6, label=label)
        axes.set_title(kernel)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(ticker.FormatStrFormatter("%d"))
        axes.legend(loc="lower right", title="head_dim, mask")
    figure.supylabel("best found, % of the best there is", fontsize=9)
    panels[-1].set_xlabel("runs, in the model's order")
    return style.say_origin(figure, origin)
