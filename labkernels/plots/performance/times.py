"""Times and rates: figures from rows of the measurements table, the least times, and targets."""

import matplotlib.pyplot as plt
import matplotlib.ticker as ticker
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkernels.plots import style

_WORKLOAD = ["batch", "kv_len", "q_heads", "kv_heads", "head_dim", "page_size", "dtype"]
_KERNEL = ["kernel", "tensor_cores"]
_DTYPES = {"fp16": "#0072b2", "bf16": "#d55e00"}


def graph_times(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per kernel and workload: time_ms with quartiles, percent, ceiling_ms, group.

    rows: of a recording that has the copy's rate. Units: percent of this rate; ceiling_ms is the
    time of K and V at this rate; group counts the query heads per KV head.
    """
    rates = rows[rows.metric == "bandwidth"]
    wanted = rows[rows.metric.isin(["time_graph", "bandwidth"]) & (rows.batch > 0)]
    column = wanted.metric.str.cat(wanted.statistic, sep=" ")
    wide = wanted.assign(column=column).pivot(
        index=_KERNEL + _WORKLOAD, columns="column", values="value"
    )
    table = wide.reset_index().rename_axis(columns=None)
    names = {"median": "time_ms", "q25": "q25_ms", "q75": "q75_ms"}
    for statistic, title in names.items():
        table[title] = 1e3 * table.pop(f"time_graph {statistic}")
    of_copy = rates[rates.kernel == "copy"].value.iloc[-1]
    table["percent"] = 100 * table.pop("bandwidth median") / of_copy
    table["ceiling_ms"] = table.time_ms * table.percent / 100
    table["group"] = table.q_heads // table.kv_heads
    return table


@plt.rc_context(style.HOUSE)
def case_times(times: pd.DataFrame, *, origin: str) -> Figure:
    """Draw each kernel's time on one workload, with its percent of the copy ceiling beside it.

    Shapes: times as from `graph_times`, one workload, one or two dtypes
    """
    order = times.groupby(_KERNEL, sort=False).time_ms.max().sort_values().index
    dtypes = sorted(times.dtype.unique(), reverse=True)
    figure, (axes,) = style.new_figure(height_inches=0.9 + 0.21 * len(order) * len(dtypes))
    axes.axvline(times.ceiling_ms.median(), color=style.CEILING, lw=1.2)
    ceiling = (times.ceiling_ms.median(), -0.75)
    axes.annotate(" copy ceiling", ceiling, color=style.CEILING, fontsize=8, va="center")
    for place, (kernel, on) in enumerate(order):
        for step, dtype in enumerate(dtypes):
            found = times[
                (times.kernel == kernel) & (times.tensor_cores == on) & (times.dtype == dtype)
            ]
            if not found.empty:
                y = place + (step - (len(dtypes) - 1) / 2) * 0.42
                _lollipop(axes, y, found.iloc[0], filled=step == 0)
    axes.set_yticks(range(len(order)), [style.name(*key) for key in order])
    axes.set(xlabel="time of one decode step, ms", xlim=(0, 1.65 * times.time_ms.max()))
    axes.set_ylim(len(order) - 0.4, -1.1)
    axes.grid(axis="y", visible=False)
    return style.say_origin(figure, origin)


def _lollipop(axes: Axes, y: float, row: pd.Series, *, filled: bool) -> None:
    colour = style.colour(row.kernel)
    axes.hlines(y, 0, row.time_ms, color=colour, lw=1.6, alpha=1.0 if filled else 0.55)
    axes.plot(
        row.time_ms,
        y,
        style.MARKERS[row.tensor_cores],
        color=colour,
        markerfacecolor=colour if filled else "white",
    )
    text = f"  {row['dtype']}  {row.time_ms:.3f} ms, {row.percent:.0f} %"
    axes.annotate(text, (row.time_ms, y), va="center", fontsize=8.2, color="#2d343d")


@plt.rc_context(style.HOUSE)
def group_and_page(groups: pd.DataFrame, pages: pd.DataFrame, *, origin: str) -> Figure:
    """Draw time against the query group, and beside it against the page size, on one scale.

    Shapes: as from `graph_times`, one dtype; all else equal within each
    """
    figure, (left, right) = style.new_figure(
        1, 2, height_inches=3.9, width_ratios=(2.6, 1), sharey=True
    )
    sweep(left, groups, "group")
    sweep(right, pages, "page_size")
    left.set_yscale("log", base=2)
    left.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    left.set(xlabel="query heads per KV head", ylabel="time of one decode step, ms")
    right.set(xlabel="keys per page")
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper left", ncols=2)
    return style.say_origin(figure, origin)


def sweep(axes: Axes, times: pd.DataFrame, x: str) -> None:
    """Draw a line of time against column x for each kernel, with quartiles, and the ceiling."""
    times = times.sort_values(x)
    ceiling = times.groupby(x).ceiling_ms.median()
    axes.plot(ceiling.index, ceiling, color=style.CEILING, lw=1.2, label="copy ceiling")
    lines = list(times.groupby(_KERNEL, sort=False))
    for place, ((kernel, on), line) in enumerate(lines):
        colour = style.colour(kernel)
        axes.vlines(line[x], line.q25_ms, line.q75_ms, color=colour, lw=1.2)
        axes.plot(
            line[x],
            line.time_ms,
            style.MARKERS[on],
            ms=4.5 + 0.6 * (len(lines) - place),  # marks below others are larger, and still show
            ls=style.LINES[on],
            color=colour,
            label=style.name(kernel, on),
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(times[x].unique()))
    axes.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axes.xaxis.set_minor_locator(ticker.NullLocator())


@plt.rc_context(style.HOUSE)
def least_times(rows: pd.DataFrame, *, origin: str) -> Figure:
    """Draw a mark for each GPU with tensor cores on and one with them off, joined by a line.

    Shapes: rows has gpu (its name) and the least times on and off. Units: milliseconds.
    """
    figure, (axes,) = style.new_figure(1, 1, height_inches=0.9 + 0.32 * len(rows))
    places = range(len(rows))
    axes.hlines(places, rows.on, rows.off, color=style.RULE, lw=2, zorder=1)
    for way, engine in (("on", "mma"), ("off", "fma")):
        look = {"marker": style.MARKERS[way], "color": style.ENGINES[engine], "ls": ""}
        axes.plot(rows[way], places, label=f"tensor cores {way}", **look)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.set_yticks(places, rows.gpu)
    axes.set(xlabel="least time, ms", ylim=(len(rows) - 0.5, -0.5))
    axes.grid(axis="y", visible=False)
    figure.legend(loc="outside upper left", ncols=2)
    return style.say_origin(figure, origin)


@plt.rc_context(style.HOUSE)
def ratios_by_part(scores: pd.DataFrame, *, origin: str) -> Figure:
    """Draw a mark for each target, at the measured ratio over the promised one, a row per part.

    Shapes: scores has part, dtype, ratio (NaN: not measured) and promised, by target and dtype
    """
    shown = scores.assign(share=scores.ratio / scores.promised).dropna(subset="share")
    parts = list(dict.fromkeys(scores.part))
    figure, (axes,) = style.new_figure(1, 1, height_inches=1.1 + 0.75 * len(parts))
    sns.stripplot(
        shown,
        x="share",
        y="part",
        order=parts,
        hue="dtype",
        palette=_DTYPES,
        hue_order=[name for name in _DTYPES if name in set(shown.dtype)],
        dodge=True,
        jitter=0.12,
        size=4,
        alpha=0.7,
        ax=axes,
    )
    axes.axvline(1, color=style.CEILING, lw=1.1, zorder=0)
    axes.set(xlabel="measured ratio / promised ratio (1: just met)", ylabel="")
    sns.move_legend(axes, "lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, title="")
    return style.say_origin(figure, origin)
