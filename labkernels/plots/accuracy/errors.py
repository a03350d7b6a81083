"""Errors: maps over samples and heads, distributions, and what a relative error hides."""

import matplotlib.pyplot as plt
import matplotlib.ticker as ticker
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from labkernels.plots import style

_GOLDEN = 0.6180339887  # its multiples modulo 1 are spread evenly, and the same in every run
_FEW = 4  # most wide maps that stand in one column


@plt.rc_context(style.HOUSE)
def error_maps(cells: pd.DataFrame, *, origin: str, label: str, log: bool = False) -> Figure:
    """Draw the rmse of every sample (down) and query head (across), one panel per kernel.

    Shapes: cells has kernel, tensor_cores, sample, head and rmse; all panels share one scale
    """
    panels = list(cells.groupby(["kernel", "tensor_cores"], sort=False))
    samples, heads = cells["sample"].nunique(), cells["head"].nunique()
    tall = samples > heads
    columns = len(panels) if tall else 1 + (len(panels) > _FEW)
    rows = -(-len(panels) // columns)
    height = 3.9 if tall else 0.7 + rows * (0.6 + 0.11 * samples)
    figure, axes = style.new_figure(rows, columns, height_inches=height, sharex=True, sharey=True)
    scale = colour_scale(cells, log=log)
    for ax, ((kernel, on), frame) in zip(axes, panels, strict=False):
        picture = map_panel(ax, frame, scale)
        title = panel_title(kernel, on)
        ax.set_title(title.replace(", ", "\n") if tall else title, fontsize=9)
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    for ax in axes[-columns:]:
        ax.set_xlabel("query head")
    for ax in axes[::columns]:
        ax.set_ylabel("request")
    bar = figure.colorbar(picture, ax=axes, shrink=0.9, aspect=26, pad=0.02)
    bar.set_label(label)
    bar.outline.set_visible(False)
    return style.say_origin(figure, origin)


def colour_scale(cells: pd.DataFrame, *, log: bool = False) -> Normalize:
    """Return the scale of rmse that the panels of one figure share."""
    low, high = cells.rmse.min(), cells.rmse.max()
    return LogNorm(low, high) if log else Normalize(low, high)


def map_panel(axes: Axes, cells: pd.DataFrame, scale: Normalize) -> AxesImage:
    """Draw one kernel's map and return the picture, for a colour bar."""
    grid = cells.pivot(index="sample", columns="head", values="rmse")
    picture = axes.imshow(
        grid, cmap=style.ERROR_MAP, norm=scale, aspect="auto", interpolation="nearest"
    )
    axes.grid(visible=False)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(5, integer=True))
    axes.yaxis.set_major_locator(ticker.MaxNLocator(5, integer=True))
    return picture


def panel_title(kernel: str, tensor_cores: str) -> str:
    """Return what a map shows: a kernel, on or off."""
    return f"{style.name(kernel)}, {tensor_cores}" if tensor_cores else style.name(kernel)


@plt.rc_context(style.HOUSE)
def distributions(cells: pd.DataFrame, *, origin: str) -> Figure:
    """Draw how a kernel's error spreads over samples and heads: its size, and its sign.

    A point is one sample and head, and its height has no meaning. The larger mark is the mean.
    Shapes: cells has kernel, tensor_cores, ratio (measured over predicted rmse) and bias_sigma
    (the bias over its own expected spread), one row per sample and head
    """
    figure, (size, sign) = style.new_figure(2, 1, height_inches=4.2)
    kernels = list(cells.groupby(["kernel", "tensor_cores"], sort=False))
    colours = {panel_title(*key): style.colour(key[0]) for key, _ in kernels}
    named = cells.assign(title=list(map(panel_title, cells.kernel, cells.tensor_cores)))
    for axes, column, centre in ((size, "ratio", 1.0), (sign, "bias_sigma", 0.0)):
        look = {"hue": "title", "palette": colours, "legend": False, "alpha": 0.35, "linewidth": 0}
        sns.violinplot(named, x=column, y="title", inner=None, cut=0, width=0.85, ax=axes, **look)
        for place, ((kernel, on), frame) in enumerate(kernels):
            heights = place + 0.4 * (np.arange(len(frame)) * _GOLDEN % 1 - 0.5)
            dots = {"color": style.colour(kernel), "s": 2, "lw": 0, "alpha": 0.5}
            axes.scatter(frame[column], heights, rasterized=True, zorder=3, **dots)
            mean = frame[column].mean()
            axes.plot(mean, place, style.MARKERS[on], color="white", mec="#2d343d", zorder=4)
        axes.axvline(centre, color=style.CEILING, lw=1.2)
        axes.grid(axis="y", visible=False)
        axes.set_ylabel("")
    size.set(xlabel="rmse per sample and head, measured / predicted")
    sign.set(xlabel="bias per sample and head, in standard errors")
    return style.say_origin(figure, origin)


@plt.rc_context(style.HOUSE)
def relative_difference(elements: pd.DataFrame, *, ulp: pd.DataFrame, origin: str) -> Figure:
    """Draw the absolute and the relative difference of two outputs against the exact size.

    Shapes: elements has size (|o| in float64) and difference (absolute), one row per element that
    differs; ulp has size and ulp, the spacing of the output's format
    """
    figure, (above, below) = style.new_figure(2, 1, height_inches=4.6, sharex=True)
    relative = elements.difference / elements["size"]
    dots = {"marker": ".", "s": 5, "lw": 0, "alpha": 0.35, "rasterized": True}
    above.scatter(elements["size"], elements.difference, color=style.ENGINES["mma"], **dots)
    above.plot(ulp["size"], ulp["ulp"], color=style.CEILING, lw=1.2, label="one ulp")
    below.scatter(elements["size"], relative, color=style.ENGINES["mma"], **dots)
    worst = relative.idxmax()
    place = (elements["size"][worst], relative[worst])
    below.plot(*place, "o", mfc="none", mec=style.ENGINES["fma"], ms=10, mew=1.6)
    below.annotate(
        f"   the maximum, {relative[worst]:.3g}", place, va="center", color="#2d343d", fontsize=8.5
    )
    below.axhline(1, color=style.CEILING, lw=1.2, label="as large as o itself")
    above.set(xscale="log", yscale="log", ylabel="|on − off|")
    below.set(xscale="log", yscale="log", ylabel="|on − off| / |o|", xlabel="|o| in float64")
    for axes in (above, below):
        axes.legend(loc="upper left" if axes is above else "upper right")
    return style.say_origin(figure, origin)
