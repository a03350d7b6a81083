"""Errors against the number of keys."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from labkernels.plots import style

_PANELS = {"rel_l2": "|error| / |output|", "max_abs": "largest |error|"}


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
