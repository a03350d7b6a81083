"""Targets beside the measured ratios."""

import textwrap

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from labkernels.plots import style

_DTYPES = (("fp16", "o", "#0072b2"), ("bf16", "s", "#d55e00"))
_LABEL = 34  # letters of a line, so that a phone can show it
_LINE_INCHES, _GAP_INCHES = 0.14, 0.1


@plt.rc_context(style.HOUSE)
def ratios_and_targets(scores: pd.DataFrame, *, origin: str) -> Figure:
    """Draw a row per target: a tick at the promised ratio, and a mark at the measured one.

    Shapes: scores has title, dtype, ratio (NaN: not measured) and promised, by target and dtype
    """
    scores = scores.assign(title=scores.title.map(lambda words: textwrap.fill(words, _LABEL)))
    titles = list(dict.fromkeys(scores.title))
    row_inches = _GAP_INCHES + _LINE_INCHES * max(1 + title.count("\n") for title in titles)
    figure, (axes,) = style.new_figure(1, 1, height_inches=row_inches * len(titles) + 1.1)
    axes.axvline(1, color=style.RULE, zorder=0)
    axes.scatter(
        scores.promised, scores.title, marker="|", color=style.CEILING, s=120, label="promised"
    )
    for dtype, marker, colour in _DTYPES:
        part = scores[scores.dtype == dtype]
        if len(part):
            axes.scatter(part.ratio, part.title, marker=marker, color=colour, s=22, label=dtype)
    axes.set(xlabel="other's time / our time", ylim=(len(titles) - 0.4, -0.6))
    axes.tick_params(axis="y", labelsize=8.5)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return style.say_origin(figure, origin)
