"""What the units compute: one sum of a tensor core, wrong models, chains, and the unit of 2^x."""

import matplotlib.pyplot as plt
import matplotlib.ticker as ticker
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from labkernels.plots import style

MODEL_COLOURS = ("#2b2b2b", "#d55e00", "#0072b2", "#cc79a7", "#1b3a6b", "#009e73")
KEPT, CUT = "#0072b2", "#d55e00"
ARCH_COLOURS = {"sm_70": "#e69f00", "sm_80": "#56b4e9", "sm_90": "#0072b2", "sm_100": "#009e73"}


@plt.rc_context(style.HOUSE)
def alignment(terms: pd.DataFrame, *, last_kept: int, origin: str) -> Figure:
    """Draw the terms of one sum as rows of bits, aligned by their weight, and where they are cut.

    Shapes: terms has name, top and bottom, the exponents of a term's first and last bit that is 1.
    Units: last_kept is the exponent of the last place that the unit keeps.
    """
    figure, (axes,) = style.new_figure(height_inches=0.9 + 0.17 * len(terms))
    for row, term in enumerate(terms.itertuples()):
        kept = max(term.bottom, last_kept)
        if term.top >= last_kept:
            axes.barh(row, term.top - kept + 1, left=kept, height=0.66, color=KEPT)
        if term.bottom < last_kept:
            edge = min(term.top, last_kept - 1)
            axes.barh(row, edge - term.bottom + 1, left=term.bottom, height=0.66, color=CUT)
    axes.axvline(last_kept, color=style.CEILING, lw=1.4)
    axes.text(last_kept, -1.1, "last place kept ", ha="left", va="bottom", fontsize=8.5)
    axes.set_yticks(range(len(terms)), terms.name)
    axes.set(xlabel="exponent of the bit", ylim=(len(terms) - 0.4, -1.3))
    axes.invert_xaxis()
    axes.grid(axis="y", visible=False)
    return style.say_origin(figure, origin)


@plt.rc_context(style.HOUSE)
def rejections(shares: pd.DataFrame, *, origin: str) -> Figure:
    """Draw how often models differ from the GPU, a row per instruction, on a logarithmic axis.

    Shapes: shares has kernel, model and share, the part of all outputs that differ; shares of 0
    are written as such. Units: share is a fraction.
    """
    kernels = list(dict.fromkeys(shares.kernel))
    figure, (axes,) = style.new_figure(height_inches=1.0 + 0.3 * len(kernels))
    least = shares.share[shares.share > 0].min()
    zero = least / 10
    for i, (model, rows) in enumerate(shares.groupby("model", sort=False)):
        height = [kernels.index(kernel) for kernel in rows.kernel]
        axes.plot(
            *(rows.share.where(rows.share > 0, zero), height),
            "oDsv^P"[i % 6],
            label=model,
            color=MODEL_COLOURS[i % 6],
            alpha=0.85,
        )
    axes.set(xscale="log", xlabel="share of outputs that differ from the GPU's")
    axes.axvline(zero, color=style.RULE, lw=6, zorder=0)
    axes.set_xlim(zero / 3, 1.5)
    axes.text(zero, -0.6, "none", ha="center", fontsize=8.5)
    axes.set_yticks(range(len(kernels)), kernels, fontsize=8)
    axes.set_ylim(len(kernels) - 0.5, -1.0)
    figure.legend(loc="outside upper center", ncols=3)
    return style.say_origin(figure, origin)


@plt.rc_context(style.HOUSE)
def chain_bias(errors: pd.DataFrame, *, origin: str) -> Figure:
    """Draw the mean relative error of a sum of products against its length, a line per generation.

    Shapes: errors has arch, k, bias (negative: too small) and predicted, of equal signs.
    """
    figure, (axes,) = style.new_figure(height_inches=3.1)
    for arch, rows in errors.groupby("arch", sort=False):
        colour = ARCH_COLOURS[arch]
        axes.plot(rows.k, -rows.bias, "o", color=colour, label=arch)
        axes.plot(rows.k, -rows.predicted, color=colour, lw=1.2)
    axes.set(xscale="log", yscale="log", xlabel="products in the sum", ylabel="relative bias, × −1")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(ticker.ScalarFormatter())
    axes.legend()
    return style.say_origin(figure, origin)


@plt.rc_context(style.HOUSE)
def exponential_unit(error_ulp: np.ndarray, *, origin: str) -> Figure:
    """Draw the error of 2^x over one binade, all of it and its first segments, in ulps.

    Shapes: error_ulp [2^23], of the results at x = i / 2^23. Units: ulps of the result.
    """
    figure, (whole, some) = style.new_figure(2, 1, height_inches=4.4)
    segments = error_ulp.reshape(64, -1)
    for axes, parts, n in ((whole, segments, 16), (some, segments[:4], 256)):
        means = parts.reshape(len(parts) * n, -1).mean(axis=1)
        x = (np.arange(len(means)) + 0.5) / len(means) * len(parts)
        low, high = (f(parts.reshape(len(parts) * n, -1), axis=1) for f in (np.min, np.max))
        axes.fill_between(x, low, high, color=KEPT, alpha=0.2, lw=0)
        axes.plot(x, means, color=KEPT, lw=1.2)
        axes.set(xlim=(0, len(parts)), ylabel="error, ulp")
    some.set_xticks(range(5))
    for axes in (whole, some):
        axes.set_xlabel("x, in 64ths")
    return style.say_origin(figure, origin)
