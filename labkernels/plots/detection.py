"""Which rule finds which bug: shares of outputs refused, as a matrix of numbers."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkernels.plots import style

_DARK = 50.0  # percent: above it a number is written in white
_SHADES = "Blues"
_SMALL = 7.5


def refused_shares(rows: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return percent of the outputs that each rule refused, one line a value of the column `by`.

    Shapes: rows has rule, runs, refused and the column `by`; rules keep the order they come in
    """
    total = rows.groupby([by, "rule"], sort=False)[["refused", "runs"]].sum()
    shares = 100.0 * total.refused / total.runs
    return shares.unstack("rule")[list(dict.fromkeys(rows.rule))]


@plt.rc_context(style.HOUSE)
def detection_matrix(wrong: pd.DataFrame, right: pd.DataFrame, *, origin: str) -> Figure:
    """Draw what share of each bug's outputs each rule refuses, and below, of right ones.

    Shapes: both from `refused_shares`, with the same rules; bugs are drawn in the order given
    """
    if list(wrong) != list(right):
        raise ValueError(f"rules of right = {list(right)}, allowed: {list(wrong)}")
    figure, axes = style.new_figure(
        2, 1, height_inches=1.5 + 0.24 * (len(wrong) + len(right)), sharex=True
    )
    above, below = axes
    above.get_gridspec().set_height_ratios([len(wrong), max(1, len(right))])
    _panel(above, wrong)
    _panel(below, right)
    above.set_title("bugs: outputs refused, %")
    below.set_title("right kernels: outputs refused, %")
    above.tick_params(labelbottom=False, labeltop=True, top=False, bottom=False)
    below.tick_params(labelbottom=False, bottom=False)
    names = [name.replace(" ", "\n") for name in wrong]
    above.set_xticks(range(len(names)), names, fontsize=_SMALL)
    style.say_origin(figure, origin)
    return figure


def _panel(axes: Axes, shares: pd.DataFrame) -> None:
    axes.imshow(shares, cmap=_SHADES, vmin=0, vmax=130, aspect="auto", interpolation="nearest")
    axes.grid(visible=False)
    for edge in axes.spines.values():
        edge.set_visible(False)
    axes.set_yticks(range(len(shares)), shares.index)
    for line, values in enumerate(shares.to_numpy()):
        for column, share in enumerate(values):
            colour = "white" if share > _DARK else "#2d343d"
            axes.text(
                column, line, _number(share), ha="center", va="center", color=colour, size=_SMALL
            )
    axes.tick_params(left=False)


def _number(share: float) -> str:
    """Whole percents, but never 0 or 100 for what only comes near."""
    if share in (0.0, 100.0) or 0.5 <= share < 99.5:
        return f"{share:.0f}"
    return "<1" if share < 1 else ">99"
