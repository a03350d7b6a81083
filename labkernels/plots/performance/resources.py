"""Blocks on an SM, for many GPUs at once."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from labkernels.plots import style

LIMIT_COLOURS = {
    "registers": "#cfe3f3",
    "shared memory": "#f9dfb5",
    "warps": "#e3e3e3",
    "blocks": "#f3d3e5",
}


@plt.rc_context(style.HOUSE)
def blocks_per_sm(rows: pd.DataFrame, *, origin: str) -> Figure:
    """Draw a grid of GPUs and kernels: the number of blocks, coloured by what limits it.

    Shapes: rows has gpu, kernel, blocks, warps and limit (a key of LIMIT_COLOURS)
    """
    gpus, kernels = list(rows.gpu.unique()), list(rows.kernel.unique())
    figure, (axes,) = style.new_figure(height_inches=1.1 + 0.42 * len(gpus))
    for row in rows.itertuples():
        x, y = kernels.index(row.kernel), gpus.index(row.gpu)
        colour = LIMIT_COLOURS[row.limit]
        axes.barh(y, 0.96, left=x - 0.48, height=0.9, color=colour)
        axes.text(x, y - 0.18, f"{row.blocks}", ha="center", va="center", weight="bold")
        axes.text(x, y + 0.22, f"{row.warps} warps", ha="center", va="center", fontsize=8)
    axes.set_xticks(range(len(kernels)), [style.name(kernel) for kernel in kernels])
    axes.set_yticks(range(len(gpus)), gpus)
    axes.set(xlim=(-0.5, len(kernels) - 0.5), ylim=(len(gpus) - 0.5, -0.5))
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    used = [limit for limit in LIMIT_COLOURS if limit in set(rows.limit)]
    handles = [Patch(color=LIMIT_COLOURS[limit], label=f"limited by {limit}") for limit in used]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(used))
    return style.say_origin(figure, origin)
