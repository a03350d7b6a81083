"""How many blocks an SM holds, which resource limits them, and what one more would take."""

import matplotlib.pyplot as plt
import matplotlib.ticker as ticker
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkernels import hardware
from labkernels.plots import style

COLOURS = {
    "registers": "#0072b2",
    "shared memory": "#e69f00",
    "warps": "#8b95a1",
    "blocks": "#cc79a7",
}


@plt.rc_context(style.HOUSE)
def occupancy(rows: pd.DataFrame, *, origin: str) -> Figure:
    """Draw the blocks on an SM as a bar in the colour of what limits them, in a panel per GPU.

    Shapes: rows as from Bench.occupancy; those of kernels without a ledger are left out.
    """
    rows = rows.dropna(subset=["blocks_per_sm"]).drop_duplicates(["gpu", "kernel"])
    gpus, kernels = list(dict.fromkeys(rows.gpu)), list(dict.fromkeys(rows.kernel))
    figure, panels = style.new_figure(
        len(gpus), 1, height_inches=0.7 + len(gpus) * (0.5 + 0.36 * len(kernels)), sharex=True
    )
    for axes, gpu in zip(panels, gpus, strict=True):
        _panel(axes, rows[rows.gpu == gpu].set_index("kernel"), kernels)
        axes.set_title(hardware.gpu(gpu).name, fontsize=9)
    most = float(rows.blocks_per_sm.max())
    panels[-1].set(xlabel="blocks on an SM", xlim=(0, 1.02 * most))
    panels[-1].xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    limits = [name for name in COLOURS if name in set(rows.limit)]
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[name], label=name) for name in limits]
    title = "the least resource"
    figure.legend(handles=handles, loc="outside upper right", ncols=len(limits), title=title)
    style.say_origin(figure, origin)
    return figure


def _panel(axes: Axes, rows: pd.DataFrame, kernels: list[str]) -> None:
    """Draw a bar for each kernel, and below it the words of what one block more would take."""
    for place, kernel in enumerate(kernels):
        if kernel not in rows.index:
            axes.annotate("cannot run here", (0, place), (3, 0), va="center", fontsize=7.5,
                          textcoords="offset points", color="#56606d")  # fmt: skip
            continue
        row = rows.loc[kernel]
        axes.barh(place - 0.2, row.blocks_per_sm, height=0.32, color=COLOURS[row.limit], zorder=2)
        take = row.one_more.replace(" and ", ", ")
        more = take if take.startswith("no ") else f"+1 at {take}"  # short enough for a phone
        axes.annotate(more, (0, place + 0.22), (3, 0), va="center", fontsize=7,
                      textcoords="offset points", color="#2d343d")  # fmt: skip
    axes.set_yticks(range(len(kernels)), [name.replace(" ", "\n") for name in kernels])
    axes.set(ylim=(len(kernels) - 0.5, -0.5))
    axes.grid(axis="y", visible=False)
