"""A block of a Hopper kernel in pictures: one warp loads, two warpgroups multiply."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkernels.plots import style

_BLOCKS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a5a00", "#7b3294")
_PRODUCTS = {"K": "S = Q Kᵀ", "V": "O += P V"}


@plt.rc_context(style.HOUSE)
def producers_and_consumers(events: pd.DataFrame, stages: int, *, origin: str) -> Figure:
    """Draw when each stage is asked for and read, and when each warpgroup uses which block.

    Shapes: events has warpgroup (-1 loads), what ("ask", "begin", "end"), of ("K" or "V") and
    block, in their order. A stage is drawn pale until a warpgroup begins to read it, and until the
    last one has ended.
    """
    rows = [f"{of}, stage {stage}" for of in _PRODUCTS for stage in range(stages)]
    groups = sorted(set(events.warpgroup) - {-1})
    rows += [f"warpgroup {group}: {name}" for group in groups for name in _PRODUCTS.values()]
    figure, (axes,) = style.new_figure(height_inches=0.9 + 0.27 * len(rows))
    for (of, block), uses in events.reset_index(drop=True).groupby(["of", "block"], sort=False):
        of_what = uses.groupby("what")
        asked, ends = of_what.groups["ask"][0], of_what.groups["end"]
        row, colour = rows.index(f"{of}, stage {block % stages}"), _BLOCKS[block % len(_BLOCKS)]
        _bar(axes, row, (asked, ends[-1]), colour, "", alpha=0.35)
        _bar(axes, row, (of_what.groups["begin"][0], ends[-1]), colour, str(block))
        for group, own in uses[uses.warpgroup >= 0].groupby("warpgroup"):
            row = rows.index(f"warpgroup {group}: {_PRODUCTS[of]}")
            _bar(axes, row, (own.index[0], own.index[-1]), colour, str(block))
    axes.axhline(2 * stages - 0.5, color=style.CEILING, lw=0.8)
    axes.set_yticks(range(len(rows)), rows, fontsize=8)
    axes.set(xlabel="order in the trace", xlim=(-0.5, len(events)), ylim=(len(rows) - 0.4, -0.6))
    axes.set_xticks([])
    axes.grid(visible=False)
    return style.say_origin(figure, origin)


def _bar(axes: Axes, row: int, ends: tuple[int, int], colour: str, text: str, alpha=1.0) -> None:
    begin, end = ends[0], ends[1] + 0.8
    axes.barh(row, end - begin, left=begin, height=0.72, color=colour, alpha=alpha)
    if text:
        place = {"ha": "center", "va": "center", "color": "white", "fontsize": 8}
        axes.text((begin + end) / 2, row, text, **place)
