"""Errors of one operation: a map of requests and heads for each kernel, and their distributions."""

import functools
import math
from collections.abc import Sequence

import matplotlib.pyplot as plt
import matplotlib.ticker as ticker
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from labkernels.plots import style
from labkernels.plots.accuracy.errors import panel_title

MOST_DRAWN = 20_000  # elements of a kernel, in each plot of a distribution
MOST_ELEMENTS = 8 * MOST_DRAWN  # of a kernel: a plot of four requests draws a part of these
MOST_BOXES = 32  # heads beside each other: the boxes of more would be lines
MOST_NUMBERS = 8  # along a side of a map
ROW_INCHES, MOST_INCHES = 0.13, 2.6  # height of a request in a map; most height of the map
_WIDE = 30.0  # ratio of largest to least rmse from which the ticks are powers of ten
# How a kernel multiplied; what an interpreter multiplies in fp32 is neither on nor off.
WAYS = ("tensor cores on", "on, interpreted", "tensor cores off")
_LEAST = 1e-12  # an output with no larger rmse counts as exact, such as that of the reference


@plt.rc_context(style.HOUSE)
def errors(cells: pd.DataFrame, elements: pd.DataFrame, *, origin: str) -> Figure:
    """Draw rmse by request and head, |error| by head, and |error| over its bound by request.

    Shapes: cells as from Bench.errors, elements as from Bench.elements, of one operation; the
    reference, whose error counts as zero, is left out. A kernel with a note, whose arithmetic here
    is not that of a GPU, has a box of its own and no curve.
    """
    largest = cells.groupby("kernel").rmse.transform("max")
    cells = cells[largest > _LEAST]
    elements = elements[elements.kernel.isin(set(cells.kernel))]
    told = zip(elements.tensor_cores, elements.note, strict=True)
    elements = elements.assign(way=[_way(*of) for of in told])
    panels = list(cells.groupby(["kernel", "tensor_cores", "tensor"], sort=False))
    tensors = cells.tensor.nunique()
    columns = tensors if tensors > 1 else 1 + (len(panels) > 1)
    map_rows = -(-len(panels) // columns)
    samples = cells["sample"].nunique()
    heights = [0.42 + min(ROW_INCHES * samples, MOST_INCHES)] * map_rows
    high = sum(heights) + 1.0  # with the colour bar
    figure = plt.figure(figsize=(style.WIDTH_INCHES, high + 2.7), layout="constrained")
    maps, below = figure.subfigures(2, 1, height_ratios=(high, 2.6))
    _maps(maps, panels, map_rows, columns)
    by_head, by_sample = below.subplots(2, 1)
    _boxes(by_head, elements)
    _curves(by_sample, elements)
    style.say_origin(below, origin)
    return figure


def _maps(figure, panels: list, rows: int, columns: int) -> None:
    every = list(figure.subplots(rows, columns, squeeze=False, sharex=False).flat)
    rmse = pd.concat([frame.rmse for _, frame in panels])
    scale = LogNorm(rmse[rmse > 0].min(), rmse.max())
    first, several = panels[0][0][2], columns > 2
    for i, (axes, ((kernel, way, tensor), frame)) in enumerate(zip(every, panels, strict=False)):
        grid = frame.pivot(index="sample", columns="head", values="rmse")
        # not seaborn's heatmap, which draws the whole figure to see whether numbers overlap
        axes.pcolormesh(grid, norm=scale, cmap=style.ERROR_MAP)
        axes.set_ylim(len(grid), 0)
        sns.despine(ax=axes, left=True, bottom=True)
        axes.grid(visible=False)
        # Columns are numbered where no panel stands below, rows in the leftmost panels.
        lowest, leftmost = i + columns >= len(panels), i % columns == 0
        _number(axes.xaxis, grid.columns if lowest else ())
        _number(axes.yaxis, grid.index if leftmost else ())
        if lowest:
            axes.set_xlabel("query head", fontsize=8.5)
        axes.tick_params(length=0, labelsize=7)
        title = panel_title(kernel, way)
        if several and tensor == first:  # each kernel has a row of panels, and its name is long
            title = f"{title}: {tensor}"
        elif several:
            axes.set_title(tensor, fontsize=7.5, loc="right")
            title = ""
        axes.set_title(title, fontsize=7.5 if several else 8)
    for axes in every[len(panels) :]:
        axes.set_visible(False)
    figure.supylabel("request", fontsize=8.5)
    picture = plt.cm.ScalarMappable(norm=scale, cmap=style.ERROR_MAP)
    # The bar is below the maps, because a phone has no room beside them.
    bar = figure.colorbar(picture, ax=every, location="bottom", aspect=40, pad=0.02)
    bar.ax.xaxis.set_minor_formatter(ticker.NullFormatter())
    if scale.vmax < _WIDE * scale.vmin:
        power = _power(scale.vmax)
        ticks = ticker.MaxNLocator(4).tick_values(scale.vmin, scale.vmax)
        bar.set_ticks([tick for tick in ticks if scale.vmin <= tick <= scale.vmax])
        # The formatter is a function of the module, since a page copies the figure by pickling it.
        bar.ax.xaxis.set_major_formatter(functools.partial(_in_units_of, 10.0**power))
        bar.set_label(f"rmse against float64, 1e{power}")
    else:
        bar.set_label("rmse against float64")
    bar.outline.set_visible(False)


def _number(axis: Axis, names: Sequence[int]) -> None:
    """Write the names of a map's cells along an axis: every one, every second, and so on."""
    step = 1
    while len(names) > MOST_NUMBERS * step:
        step *= 2
    places = range(0, len(names), step)
    axis.set_ticks([place + 0.5 for place in places], labels=[str(names[p]) for p in places])


def _in_units_of(unit: float, value: float, _: int) -> str:
    return f"{value / unit:g}"


def _power(value: float) -> int:
    """Return the power of ten in which a positive number is written."""
    return math.floor(math.log10(value))


def _way(tensor_cores: str, note: str) -> str:
    if tensor_cores == "off":
        return WAYS[2]
    return WAYS[1] if note else WAYS[0]


def _boxes(axes: Axes, elements: pd.DataFrame) -> None:
    """Draw |error| of each head, or of heads at equal distances, a box for each arithmetic."""
    heads = sorted(set(elements["head"]))
    step = -(-len(heads) // MOST_BOXES)
    shown = elements[elements["head"].isin(heads[::step])]
    shown = style.thinned(shown, ["kernel", "tensor_cores"], MOST_DRAWN)
    many = len(heads) > MOST_NUMBERS
    power = _power(max(shown.error.abs().max(), _LEAST))
    colours = (style.ENGINES["mma"], style.ENGINES["triton"], style.ENGINES["fma"])
    ways = dict(zip(WAYS, colours, strict=True))
    sns.boxenplot(
        shown.assign(size=shown.error.abs() / 10.0**power),
        x="head",
        y="size",
        hue="way",
        hue_order=[way for way in ways if way in set(shown.way)],
        palette=ways,
        width=0.75,
        native_scale=many,
        ax=axes,
        **style.BOXES,
    )
    label = "head" if step == 1 else f"head, one in {step}"
    axes.set(xlabel=f"{label} (widest box: half of its elements)", ylabel=f"|error|, 1e{power}")
    axes.grid(axis="x", visible=False)
    if many:
        axes.xaxis.set_major_locator(ticker.MaxNLocator(9, integer=True))
    axes.legend(title="", loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=3)


def _curves(axes: Axes, elements: pd.DataFrame) -> None:
    """Draw, per request, the share of elements whose error stays below each part of its bound."""
    samples = sorted(set(elements["sample"]))
    if len(samples) > 4:
        samples = [samples[round(i * (len(samples) - 1) / 3)] for i in range(4)]
    shown = elements[elements["sample"].isin(samples)]
    shown = style.thinned(shown, ["kernel", "tensor_cores"], MOST_DRAWN)
    shown = shown[shown.ratio > 0].assign(percent=100 * shown.ratio)
    shown["request"] = shown["sample"].astype(str)
    sns.ecdfplot(
        shown[shown.way == WAYS[0]],
        x="percent",
        hue="request",
        hue_order=[str(sample) for sample in samples],
        palette="colorblind",
        linewidth=1.5,
        ax=axes,
    )
    off = shown[shown.way == WAYS[2]]
    if len(off):
        look = {"hue": "request", "palette": "colorblind", "legend": False, "linestyle": "--"}
        order = [str(sample) for sample in samples]
        sns.ecdfplot(off, x="percent", hue_order=order, linewidth=1.1, ax=axes, **look)
    axes.set_xscale("log")
    axes.set_xlim(left=max(1e-3, float(shown.percent.quantile(0.005))))
    axes.set(xlabel="|error| / bound, % (dashed: tensor cores off)", ylabel="share of elements")
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
    sns.move_legend(axes, "upper left", ncols=len(samples))
