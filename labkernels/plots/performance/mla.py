"""MLA decode: how often each key is read."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from labkernels.plots import style


@plt.rc_context(style.HOUSE)
def read_counts(counts: Mapping[str, np.ndarray], *, first: int, origin: str) -> Figure:
    """Draw how often each of the first keys was read, a row of bars per kernel.

    Shapes: counts has an array [keys] per name, of at least `first` numbers.
    """
    figure, axes = style.new_figure(len(counts), 1, height_inches=2.8, sharex=True, sharey=True)
    for ax, (name, times) in zip(axes, counts.items(), strict=True):
        ax.bar(np.arange(first), times[:first], color=style.ENGINES["mma"], width=0.7)
        ax.axhline(1, color=style.RULE, lw=1)
        ax.set_yticks([0, 1, 2])
        ax.set(ylabel="times read", title=name)
    axes[-1].set_xlabel("key")
    return style.say_origin(figure, origin)
