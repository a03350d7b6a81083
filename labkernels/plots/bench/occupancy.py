"""How many blocks each resource of an SM allows, and which resource allows fewest."""

import matplotlib.pyplot as plt
import matplotlib.ticker as ticker
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from labkernels import hardware
from labkernels.plots import style

RESOURCES = {
    "by_registers": "registers",
    "by_smem": "shared memory",
    "by_warps": "warps",
    "by_blocks": "blocks",
}
COLOURS = dict(zip(RESOURCES.values(), ("#0072b2", "#e69f00", "#8b95a1", "#cc79a7"), strict=True))
MARKS = dict(zip(RESOURCES.values(), ("s", "o", "^", "X"), strict=True))
_WORDS = 700  # where a row's words end, in blocks: right of the last mark, on a phone too


@plt.rc_context(style.HOUSE)
def occupancy(rows: pd.DataFrame, *, origin: str) -> Figure:
    """Draw a mark per resource, the leftmost of which sets the blocks, in a panel per GPU.

    Shapes: rows as from Bench.occupancy; those of kernels without a ledger are left out.
    """
    rows = rows.dropna(subset=["blocks_per_sm"]).drop_duplicates(["gpu", "kernel"])
    gpus, kernels = list(dict.fromkeys(rows.gpu)), list(dict.fromkeys(rows.kernel))
    figure, panels = style.new_figure(
        len(gpus), 1, height_inches=0.6 + len(gpus) * (0.55 + 0.22 * len(kernels)), sharex=True
    )
    long = rows.melt(
        id_vars=["gpu", "kernel", "blocks_per_sm", "warps"],
        value_vars=list(RESOURCES),
        var_name="by",
        value_name="blocks",
    )
    long["resource"] = long.by.map(RESOURCES)
    for axes, gpu in zip(panels, gpus, strict=True):
        here = long[long.gpu == gpu]
        shown = here.assign(kernel=pd.Categorical(here.kernel, kernels))
        held = shown.drop_duplicates("kernel")
        places = [kernels.index(kernel) for kernel in held.kernel]
        axes.barh(places, held.blocks_per_sm, height=0.62, color="#dbe6ee", zorder=1)
        look = {"hue": "resource", "style": "resource", "palette": COLOURS, "markers": MARKS}
        sns.scatterplot(
            shown, x="blocks", y="kernel", s=42, legend=False, ax=axes, zorder=3, **look
        )
        for place, row in zip(places, held.itertuples(), strict=True):
            words = f"{row.blocks_per_sm:.0f} × {row.warps / row.blocks_per_sm:.0f}"
            axes.annotate(words, (_WORDS, place), ha="right", va="center", fontsize=7.5)
        for place in sorted(set(range(len(kernels))) - set(places)):
            axes.annotate("cannot run here", (1, place), va="center", fontsize=7.5, color="#56606d")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set(xlabel="", ylabel="", xlim=(0.75, _WORDS), ylim=(len(kernels) - 0.5, -0.5))
        axes.xaxis.set_major_locator(ticker.FixedLocator([1, 2, 4, 8, 32]))
        axes.set_title(hardware.gpu(gpu).name, fontsize=9)
        axes.set_title("blocks × warps", loc="right", fontsize=7.5, weight="normal")
        axes.grid(axis="y", visible=False)
    panels[-1].set_xlabel("blocks on an SM that each resource leaves")
    handles = [
        plt.Line2D([], [], marker=MARKS[name], ls="", color=COLOURS[name], label=name)
        for name in RESOURCES.values()
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=4)
    style.say_origin(figure, origin)
    return figure
