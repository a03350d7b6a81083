"""Matrices in registers and in banks, and the spacing of number formats."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from labkernels.plots import style

_QUADS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7b3294", "#8b95a1")
_WHITE, _DARK = "#ffffff", "#10161d"
_DARK_QUADS, _DARK_CHUNKS = (0, 6), (6, 7)  # on whose colours white is easier to read
_FORMATS = {"fp32": "#8b95a1", "fp16": "#0072b2", "bf16": "#d55e00", "e4m3": "#009e73"}


@plt.rc_context(style.HOUSE)
def owners(matrices: dict[str, np.ndarray], *, origin: str) -> Figure:
    """Draw which lane holds each pair of neighbours in a row, and in which of its registers.

    The four lanes of a quad have one colour. Shapes: each matrix [rows, columns, 2] has lane and
    register of every element, by its name; columns are even, and a pair has one lane.
    """
    widths = tuple(matrix.shape[1] for matrix in matrices.values())
    figure, panels = style.new_figure(
        1, len(matrices), height_inches=4.5, width_inches=6.4, width_ratios=widths
    )
    for axes, (name, matrix) in zip(panels, matrices.items(), strict=True):
        _grid(axes, matrix[..., 0] // 4)
        for (row, pair), lane in np.ndenumerate(matrix[:, ::2, 0]):
            registers = sorted(set(matrix[row, 2 * pair : 2 * pair + 2, 1].tolist()))
            look = {
                "ha": "center",
                "va": "center",
                "color": _WHITE if lane // 4 in _DARK_QUADS else _DARK,
            }
            words = f"{lane}·{','.join(map(str, registers))}"
            axes.text(2 * pair + 0.5, row, words, fontsize=8.2, **look)
        for edge in range(2, matrix.shape[1], 2):
            axes.axvline(edge - 0.5, color="white", lw=0.8)
        axes.set_title(name, fontsize=9)
        axes.set(xlabel="column", ylabel="row")
    return style.say_origin(figure, origin)


@plt.rc_context(style.HOUSE)
def banks(places: dict[str, np.ndarray], ways: dict[str, int], *, origin: str) -> Figure:
    """Draw the place of every chunk, for each layout; a row has eight places of four banks each.

    Shapes: places [rows, 8] has the place of each chunk, for each layout; ways: the turns that a
    read of chunk 0 of eight rows takes. Chunk 0 is marked.
    """
    figure, panels = style.new_figure(1, len(places), height_inches=3.0, width_inches=6.4)
    for axes, (name, place) in zip(panels, places.items(), strict=True):
        chunk_at = np.argsort(place, axis=1)
        axes.imshow(chunk_at, cmap="Blues", vmin=-3, vmax=9, aspect="equal")
        for (row, column), chunk in np.ndenumerate(chunk_at):
            heavy = {"color": _WHITE if chunk in _DARK_CHUNKS else _DARK}
            if chunk == 0:
                heavy = {"weight": "bold", "color": "#b04a00"}
            axes.text(column, row, f"{chunk}", ha="center", va="center", fontsize=8, **heavy)
        turns = ways[name]
        axes.set_title(f"{name}: {turns} turn{'s' * (turns > 1)} per read", fontsize=9)
        axes.set_xticks(range(8), [f"{4 * i}" for i in range(8)], fontsize=7)
        axes.set(xlabel="first of its four banks", ylabel="row")
        axes.grid(visible=False)
    return style.say_origin(figure, origin)


@plt.rc_context(style.HOUSE)
def spacing(steps: pd.DataFrame, *, origin: str) -> Figure:
    """Draw the distance to the next number against the number, a staircase for each format.

    Shapes: steps has format, x and ulp.
    """
    figure, (axes,) = style.new_figure(height_inches=3.2)
    for name, rows in steps.groupby("format", sort=False):
        colour = _FORMATS.get(name, style.CEILING)
        axes.plot(rows.x, rows.ulp, drawstyle="steps-post", color=colour, label=name)
    axes.set(xlabel="number", ylabel="distance to the next one")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.legend(loc="lower right")
    return style.say_origin(figure, origin)


def _grid(axes: Axes, quads: np.ndarray) -> None:
    axes.imshow(quads, cmap=ListedColormap(_QUADS), vmin=0, vmax=7, aspect="auto")
    rows, columns = quads.shape
    axes.set_xticks(range(0, columns, 2), range(0, columns, 2), fontsize=8)
    axes.set_yticks(range(rows), range(rows), fontsize=8)
    axes.grid(visible=False)
    axes.tick_params(length=0)
