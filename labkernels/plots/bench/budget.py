"""Where registers and shared memory go: predicted terms, stacked, beside the compiler's number."""

import re

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from labkernels.plots import style

FAMILIES = style.TABLES["families"]
MOST_REGISTERS = 255  # per thread, by the encoding of an instruction
UNITS = {"registers per thread": 1, "shared memory per block, bytes": 1024}


def family(term: str) -> str:
    """Return the family of a ledger's term, which has one colour in every figure.

    >>> family("K and V stages"), family("kept, sm_90"), family("is_last_split")
    ('K and V', 'added by the compiler', 'others')
    """
    return next(name for name, (pattern, _) in FAMILIES.items() if re.match(pattern, term))


@plt.rc_context(style.HOUSE)
def budget(rows: pd.DataFrame, *, origin: str) -> Figure:
    """Draw each kernel's terms as one bar, and the compiler's number as a mark on it.

    Shapes: rows as from Bench.budgets: kernel, resource, kind, term, value and counts.
    """
    kernels = list(dict.fromkeys(rows.kernel))
    resources = list(dict.fromkeys(rows.resource))
    figure, panels = style.new_figure(
        len(resources), 1, height_inches=len(resources) * (1.15 + 0.24 * len(kernels))
    )
    for axes, resource in zip(panels, resources, strict=True):
        _panel(axes, rows[rows.resource == resource], kernels, resource)
    style.say_origin(figure, origin)
    return figure


def _panel(axes: Axes, rows: pd.DataFrame, kernels: list[str], resource: str) -> None:
    unit = UNITS[resource]
    terms = rows[(rows.kind == "predicted") & rows.counts & (rows.value > 0)]
    terms = terms.drop_duplicates(["kernel", "term"])
    shown = terms.assign(
        term=terms.term.map(family),
        kernel=pd.Categorical(terms.kernel, kernels),
        amount=terms.value / unit,
    )
    order = [name for name in FAMILIES if name in set(shown.term)]
    colours = {name: FAMILIES[name][1] for name in order}
    sns.histplot(
        shown,
        y="kernel",
        weights="amount",
        hue="term",
        hue_order=order[::-1],  # seaborn stacks the last term first
        palette=colours,
        multiple="stack",
        discrete=True,
        shrink=0.72,
        alpha=1.0,
        linewidth=0.4,
        edgecolor="white",
        legend=False,
        ax=axes,
    )
    made = rows[rows.kind == "compiled"].drop_duplicates("kernel")
    places = [kernels.index(kernel) for kernel in made.kernel]
    axes.plot(made.value / unit, places, "D", color="white", mec="#2d343d", ms=5.5, zorder=4)
    given = rows[rows.kind == "granted"].drop_duplicates("kernel")
    places = [kernels.index(kernel) for kernel in given.kernel]
    axes.plot(given.value / unit, places, "o", color="white", mec="#2d343d", ms=5.5, zorder=4)
    if unit == 1:
        axes.axvline(MOST_REGISTERS, color=style.CEILING, lw=1.1, ls=(0, (4, 2)), zorder=1)
    what = resource.removesuffix(", bytes") + (", KiB" if unit > 1 else "")
    axes.set(xlabel=what, ylabel="")
    axes.grid(axis="y", visible=False)
    handles = [plt.Rectangle((0, 0), 1, 1, color=colours[term]) for term in order]
    marks = {"compiled": "D"} | ({"after hand-over": "o"} if len(given) else {})
    look = {"ls": "", "color": "white", "mec": "#2d343d", "ms": 5.5}
    handles += [Line2D([], [], marker=marker, **look) for marker in marks.values()]
    if unit == 1:
        marks |= {"most per thread, 255": "line"}
        handles += [Line2D([], [], color=style.CEILING, lw=1.1, ls=(0, (4, 2)))]
    axes.legend(
        handles,
        [*order, *marks],
        loc="lower right",
        bbox_to_anchor=(1.02, 1.0),
        ncols=3,
        fontsize=7.5,
        handlelength=1.0,
        columnspacing=1.0,
    )
