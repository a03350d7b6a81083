"""Errors: maps over samples and heads, their spread, and what a relative error hides."""

import matplotlib.pyplot as plt
import matplotlib.ticker as ticker
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from labkernels.plots import style

_FEW = 4  # most wide maps that stand in one column
_MOST = 40_000  # elements of a way that a box is drawn from
_LABELS = {"head": "query head", "sample": "request (widest box: half of the errors)"}


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


@plt.rc_context(style.HOUSE)
def error_spread(elements: pd.DataFrame, *, origin: str, log: bool = False) -> Figure:
    """Draw |error| of each head and of each request; the widest part of a box is half of them.

    Shapes: elements has way, sample, head and error, one row per element, of six ways or less.
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


@plt.rc_context(style.HOUSE)
def errors_by_heads(cells: pd.DataFrame, *, origin: str) -> Figure:
    """Draw the rmse of every head and request over the number of heads, and a line of the means.

    Shapes: cells has kernel, tensor_cores, q_heads, sample, head and rmse.
    """
    requests = sorted(cells["sample"].unique())
    figure, panels = style.new_figure(
        len(requests), 1, height_inches=0.9 + 1.35 * len(requests), sharex=True
    )
    for axes, request in zip(panels, requests, strict=True):
        here = cells[cells["sample"] == request]
        kernels = list(here.groupby(["kernel", "tensor_cores"], sort=False))
        for place, ((kernel, on), part) in enumerate(kernels):
            aside = 2.0 ** (0.12 * (place - (len(kernels) - 1) / 2))
            look = {"color": style.colour(kernel), "lw": 0, "alpha": 0.35, "s": 7}
            axes.scatter(part.q_heads * aside, part.rmse, marker=style.MARKERS[on], **look)
            means = part.groupby("q_heads").rmse.mean()
            line = {"color": style.colour(kernel), "ls": style.LINES[on]}
            axes.plot(means.index * aside, means, label=style.name(kernel, on), **line)
        axes.set(ylabel="rmse", ylim=(0, None))
        axes.set_title(f"request {request}", fontsize=9)
        axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted(here.q_heads.unique()))
        axes.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
        axes.xaxis.set_minor_locator(ticker.NullLocator())
    panels[-1].set_xlabel("heads that share a latent row")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=2)
    return style.say_origin(figure, origin)
