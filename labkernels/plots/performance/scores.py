"""Targets of speed: how the measured ratios compare with the promised ones."""

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from labkernels.plots import style

_DTYPES = {"fp16": "#0072b2", "bf16": "#d55e00"}


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
