"""Error budgets: sources as a waterfall, per head and per sample; the model against measurements.

Rows are those of measure.error_budget.MeasuredBudget.rows, or of
data/accuracy/error_calibration.parquet.
"""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from labkernels.plots import style

TOTAL, BIAS = "total", "bias"
SOURCES = style.TABLES["sources"]
_SURE = 4.0  # least ratio of a squared mean to its squared standard error, for a bias to count
_ALLOWED = 0.15  # largest distance of the spread from 1 that numerics.error.budget promises


def budget_shares(rows: pd.DataFrame) -> pd.DataFrame:
    """Return predicted and measured share of each source, of the bias squared, and of all together.

    Units: shares of the predicted variance; the measured share of all together is the mean square
    of error over sigma.
    Shapes: rows of one kernel; one line per source that has any, in the order of the rows
    """
    mean = rows.groupby("source", sort=False)[["predicted_share", "measured_share"]].mean()
    total = rows[rows.source == TOTAL]
    squares = {
        f"{kind}_share": (total[f"{kind}_bias"] ** 2 / total.predicted_variance).mean()
        for kind in ("predicted", "measured")
    }
    noise = (total.bias_noise**2 / total.predicted_variance).mean()
    if squares["measured_share"] < _SURE * noise:  # a mean within its noise
        squares["measured_share"] = 0.0
    parts = mean.drop(index=TOTAL)
    parts = parts[parts.any(axis=1)]
    parts.loc[BIAS] = squares
    parts.loc[TOTAL] = mean.loc[TOTAL] + parts.loc[BIAS]
    return parts


@plt.rc_context(style.HOUSE)
def error_waterfall(rows: pd.DataFrame, *, origin: str) -> Figure:
    """Draw how the sources add up to the whole error, predicted above measured, and their sizes.

    Shapes: rows as for `budget_shares`
    """
    shares = budget_shares(rows)
    figure, (steps, sizes) = style.new_figure(
        1, 2, height_inches=0.9 + 0.36 * len(shares), width_ratios=(1.5, 1), sharey=True
    )
    for kind, offset in (("predicted", -0.19), ("measured", 0.19)):
        start = 0.0
        for place, (source, share) in enumerate(shares[f"{kind}_share"].items()):
            left = 0.0 if source == TOTAL else start
            steps.barh(place + offset, share, 0.34, left=left, **_look(source, kind))
            start += share
    _sizes(sizes, shares)
    steps.set_yticks(range(len(shares)), [SOURCES[source][0] for source in shares.index])
    steps.invert_yaxis()
    steps.set_xlim(0, 1.04 * shares.loc[TOTAL].max())
    steps.set(xlabel="share of the predicted variance", title="they add up")
    sizes.set(xlabel="share, log scale", title="each by size")
    handles = [
        Patch(label=kind, **_look(TOTAL, kind) | {"edgecolor": "#2d343d"})
        for kind in ("predicted", "measured")
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=2)
    for axes in (steps, sizes):
        axes.grid(axis="y", visible=False)
    return style.say_origin(figure, origin)


def _look(source: str, kind: str) -> dict[str, Any]:
    """Predicted is plain, measured is hatched and paler."""
    colour = SOURCES[source][1]
    if kind == "predicted":
        return {"facecolor": colour, "edgecolor": colour, "linewidth": 0.6}
    face = (*plt.matplotlib.colors.to_rgb(colour), 0.35)
    return {"facecolor": face, "edgecolor": colour, "hatch": "////", "linewidth": 0.6}


def _sizes(axes: Axes, shares: pd.DataFrame) -> None:
    for place, (source, share) in enumerate(shares.iterrows()):
        colour = SOURCES[source][1]
        if share.predicted_share > 0:
            axes.plot(share.predicted_share, place, "|", color=colour, ms=14, mew=2.2)
        if share.measured_share > 0:
            axes.plot(share.measured_share, place, "o", color=colour, mec="#2d343d", mew=0.6)
    axes.set_xscale("log")


@plt.rc_context(style.HOUSE)
def budget_by_group(heads: pd.DataFrame, samples: pd.DataFrame, *, origin: str) -> Figure:
    """Draw the budget of each head, and of each sample, predicted left of measured.

    Shapes: rows of the same kernel by head and by sample
    """
    figure, panels = style.new_figure(2, 1, height_inches=4.6, sharey=True)
    for axes, rows, by in zip(panels, (heads, samples), ("head", "sample"), strict=True):
        _stacks(axes, rows[rows.source != TOTAL], by)
        axes.axhline(1, color=style.CEILING, lw=1)
        axes.set(xlabel="query head" if by == "head" else "request", ylabel="share of variance")
        axes.grid(axis="x", visible=False)
    figure.legend(
        handles=[
            Patch(label=SOURCES[source][0], **_look(source, "predicted"))
            for source in budget_shares(heads).index.drop([BIAS, TOTAL])
        ],
        loc="outside upper center",
        ncols=4,
        title="plain: predicted, hatched: measured",
    )
    return style.say_origin(figure, origin)


def _stacks(axes: Axes, rows: pd.DataFrame, by: str) -> None:
    for kind, offset in (("predicted", -0.2), ("measured", 0.2)):
        table = rows.pivot(index=by, columns="source", values=f"{kind}_share")
        start = np.zeros(len(table))
        for source in rows.source.unique():
            height = table[source].to_numpy()
            places = table.index.to_numpy() + offset
            axes.bar(places, height, 0.36, bottom=start, **_look(source, kind))
            start += height
    axes.xaxis.get_major_locator().set_params(integer=True)


@plt.rc_context(style.HOUSE)
def calibration(rows: pd.DataFrame, *, origin: str) -> Figure:
    """Draw the spread of error over sigma of every head, and measured against predicted biases.

    Shapes: rows of data/accuracy/error_calibration.parquet; biases less than 5 times their noise
    are left out
    """
    figure, (spreads, biases) = style.new_figure(2, 1, height_inches=5.8)
    totals = rows[(rows.source == TOTAL) & (rows.other_policy == "")]
    families = list(dict.fromkeys(totals.family))
    colours = {"off": style.ENGINES["fma"], "on": style.ENGINES["mma"]}
    spread = totals.assign(spread=np.sqrt(totals.measured_share))
    look = {"hue_order": list(colours), "palette": colours, "alpha": 0.3, "linewidth": 0}
    look |= {"inner": None, "cut": 0, "width": 0.8, "density_norm": "width", "legend": False}
    sns.violinplot(spread, x="spread", y="family", hue="tensor_cores", ax=spreads, **look)
    for (on, colour), offset in zip(colours.items(), (-0.2, 0.2), strict=True):
        part = spread[spread.tensor_cores == on]
        places = np.array([families.index(family) for family in part.family]) + offset
        look = {"color": colour, "alpha": 0.6, "ms": 3, "label": f"tensor cores {on}"}
        spreads.plot(part.spread, places, style.MARKERS[on], **look)
    spreads.axvspan(1 - _ALLOWED, 1 + _ALLOWED, color="#e8ebef", zorder=0)
    spreads.axvline(1, color=style.CEILING, lw=1)
    spreads.set_yticks(range(len(families)), families)
    spreads.set(xlabel="spread of error / sigma, a point per head and policy", ylabel="")
    figure.legend(*spreads.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    seen = rows[rows.measured_bias.abs() > 5 * rows.bias_noise]
    seen = seen[(seen.predicted_bias != 0) & seen.source.isin(["accumulation", "exp2", TOTAL])]
    for source, part in seen.groupby("source", sort=False):
        size = part.measured_bias.abs()
        name, colour = SOURCES[source]
        look = {"color": colour, "alpha": 0.6, "mec": "#56606d", "mew": 0.3}
        biases.plot(part.predicted_bias.abs(), size, ".", label=name, ms=7, **look)
    ends = np.array([seen.predicted_bias.abs().min(), seen.predicted_bias.abs().max()])
    biases.plot(ends, ends, color=style.CEILING, lw=1)
    biases.set(xscale="log", yscale="log", xlabel="|bias|, predicted", ylabel="|bias|, measured")
    biases.legend(loc="upper left")
    return style.say_origin(figure, origin)
