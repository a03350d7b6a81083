"""Errors over the number of heads that share a latent row, and over the number of keys."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib import ticker
from matplotlib.figure import Figure

from labkernels.plots import style

_PANELS = {"rel_l2": "|error| / |output|", "max_abs": "largest |error|"}


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


@plt.rc_context(style.HOUSE)
def errors_by_length(rows: pd.DataFrame, *, origin: str) -> Figure:
    """Draw relative and largest errors over the keys of a request, one line per kernel and dtype.

    Shapes: rows has kernel, tensor_cores, dtype, kv_len, metric and value; metrics rel_l2, max_abs
    """
    figure, axes = style.new_figure(1, 2, height_inches=3.2, sharex=True)
    for ax, (metric, title) in zip(axes, _PANELS.items(), strict=True):
        part = rows[rows.metric == metric]
        for (kernel, on, dtype), line in part.groupby(["kernel", "tensor_cores", "dtype"]):
            line = line.sort_values("kv_len")
            colour = style.colour(kernel)
            ax.plot(
                line.kv_len,
                line.value,
                color=colour,
                marker=style.MARKERS[on],
                linestyle=style.LINES[on],
                markerfacecolor=colour if dtype == "fp16" else "white",
                label=f"{style.name(kernel)}, {dtype}",
            )
        ax.set(xscale="log", yscale="log", xlabel="keys of a request", title=title)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return style.say_origin(figure, origin)
