"""Errors: maps over samples and heads, distributions, and what a relative error hides."""

import matplotlib.pyplot as plt
import matplotlib.ticker as ticker
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from labkernels.plots import style

_FEW = 4  # wide maps that stand below each other
_DIFFERENCE = " - "  # in the kernel column of data/decode_accuracy.csv


def error_cells(table: np.ndarray, *, kernel: str, tensor_cores: str) -> pd.DataFrame:
    """Return a table of numerics.metrics as rows of sample and head, named as in the data.

    Shapes: table [B, Hq], as from error_table(by="sample_and_head")
    """
    sample, head = np.indices(table.shape)
    columns = {"sample": sample, "head": head} | {name: table[name] for name in table.dtype.names}
    cells = pd.DataFrame({name: values.ravel() for name, values in columns.items()})
    return cells.assign(kernel=kernel, tensor_cores=tensor_cores)


@plt.rc_context(style.HOUSE)
def error_maps(cells: pd.DataFrame, *, origin: str, label: str, log: bool = False) -> Figure:
    """Draw the rmse of every sample (down) and query head (across), one panel a kernel.

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
        ax.set_ylabel("sample")
    bar = figure.colorbar(picture, ax=axes, shrink=0.9, aspect=26, pad=0.02)
    bar.set_label(label)
    bar.outline.set_visible(False)
    style.say_origin(figure, origin)
    return figure


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
    """Return what a map shows: a kernel, on or off, or how two outputs differ."""
    if _DIFFERENCE in kernel:
        return "on minus off"
    return f"{style.name(kernel)}, {tensor_cores}" if tensor_cores else style.name(kernel)


@plt.rc_context(style.HOUSE)
def distributions(cells: pd.DataFrame, *, origin: str) -> Figure:
    """Draw how a kernel's error spreads over samples and heads: its size, and its sign.

    Shapes: cells has kernel, tensor_cores, ratio (measured over predicted rmse) and bias_sigma
    (the bias over its own expected spread), one row a sample and head
    """
    figure, (size, sign) = style.new_figure(2, 1, height_inches=4.2, sharey=True)
    kernels = list(cells.groupby(["kernel", "tensor_cores"], sort=False))
    for place, ((kernel, on), frame) in enumerate(kernels):
        for axes, column in ((size, "ratio"), (sign, "bias_sigma")):
            _violin(axes, frame[column].to_numpy(), place, style.colour(kernel))
            axes.plot(frame[column].mean(), place, style.MARKERS[on], color="white", mec="#2d343d")
    for axes, centre in ((size, 1.0), (sign, 0.0)):
        axes.axvline(centre, color=style.CEILING, lw=1.2)
        axes.grid(axis="y", visible=False)
        axes.set_yticks(range(len(kernels)), [panel_title(*key) for key, _ in kernels])
    size.set(xlabel="rmse of one sample and head, measured / predicted")
    sign.set(xlabel="signed bias of one sample and head, in standard errors")
    sign.invert_yaxis()
    style.say_origin(figure, origin)
    return figure


def _violin(axes: Axes, values: np.ndarray, place: int, colour: str) -> None:
    parts = axes.violinplot([values], [place], orientation="horizontal", widths=0.8, points=200)
    for body in parts["bodies"]:
        body.set(facecolor=colour, alpha=0.35, edgecolor="none")
    for edge in ("cbars", "cmins", "cmaxes"):
        parts[edge].set(color=colour, linewidth=1.2)


@plt.rc_context(style.HOUSE)
def relative_difference(elements: pd.DataFrame, *, ulp: pd.DataFrame, origin: str) -> Figure:
    """Draw the absolute and the relative difference of two outputs against the exact size.

    Shapes: elements has size (|o| in float64) and difference (absolute), one row an element that
    differs; ulp has size and ulp, the spacing of the output's format
    """
    figure, (above, below) = style.new_figure(2, 1, height_inches=4.6, sharex=True)
    relative = elements.difference / elements["size"]
    dots = {"marker": ".", "s": 5, "lw": 0, "alpha": 0.35, "rasterized": True}
    above.scatter(elements["size"], elements.difference, color=style.COLOURS["decode_mma"], **dots)
    above.plot(ulp["size"], ulp["ulp"], color=style.CEILING, lw=1.2, label="one ulp")
    below.scatter(elements["size"], relative, color=style.COLOURS["decode_mma"], **dots)
    worst = relative.idxmax()
    place = (elements["size"][worst], relative[worst])
    below.plot(*place, "o", mfc="none", mec=style.COLOURS["decode_fma"], ms=10, mew=1.6)
    below.annotate(
        f"   the maximum, {relative[worst]:.3g}", place, va="center", color="#2d343d", fontsize=8.5
    )
    below.axhline(1, color=style.CEILING, lw=1.2, label="as large as o itself")
    above.set(xscale="log", yscale="log", ylabel="|on − off|")
    below.set(xscale="log", yscale="log", ylabel="|on − off| / |o|", xlabel="|o| in float64")
    for axes in (above, below):
        axes.legend(loc="upper left" if axes is above else "upper right")
    style.say_origin(figure, origin)
    return figure
