"""The style of all figures: colours by engine and library, markers for tensor cores on and off."""

import colorsys
import re
import textwrap
import tomllib
import zlib
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
ENGINES, LIBRARIES, NAMES = (TABLES[name] for name in ("engines", "libraries", "names"))
# Colours of an engine's variants, which figures show beside the engine.
_VARIATIONS = ("#882255", "#999933", "#b07aa1", "#44aa99", "#009e73", "#8c564b")
# Colours of lines that do not stand for a kernel.
LINE_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
MARKERS = {"on": "s", "off": "o"}
LINES = {"on": "-", "off": (0, (5, 2))}
CEILING = "#56606d"
RULE = "#d5dae1"
ERROR_MAP = "cividis_r"  # large errors stand out: dark on a white page, bright on a dark one
# Boxes of many elements, the widest of which has half of them.
BOXES = {"k_depth": 4, "showfliers": False, "linewidth": 0.6}
ORIGIN_LETTERS_PER_INCH = 18  # of text of 7.5 points
WIDTH_INCHES = 5.0  # narrow, so that text stays readable when a phone shrinks it to 360 pixels

# A drawing function runs under this style: @plt.rc_context(style.HOUSE).
HOUSE = {**TABLES["house"], "axes.prop_cycle": plt.cycler(color=LINE_COLOURS)}


def colour(kernel: str) -> str:
    """Return the colour of a kernel or peer: its engine's, or its own, which never changes.

    Kernels of every operation therefore have the colour of their engine, and a new name needs no
    entry.
    """
    if kernel in LIBRARIES:
        return LIBRARIES[kernel]
    for engine, its_colour in ENGINES.items():
        if found := re.fullmatch(rf"(?:(.+)[_ ])?{engine}(?:[_ ](.+))?", kernel):
            operation, variation = found.groups()  # Triton's operation stands last
            if not (operation and variation):
                return its_colour
            return _VARIATIONS[_number(variation, len(_VARIATIONS))]
    hue, lightness = _number(kernel, 360) / 360, 0.3 + 0.1 * _number(kernel[::-1], 4)
    red, green, blue = (round(255 * part) for part in colorsys.hls_to_rgb(hue, lightness, 0.6))
    return f"#{red:02x}{green:02x}{blue:02x}"


def _number(text: str, below: int) -> int:
    return zlib.crc32(text.encode()) % below


def name(kernel: str, tensor_cores: str = "") -> str:
    """Return how a figure calls a kernel; Triton's one source needs on or off beside it."""
    if re.fullmatch(r"triton_[a-z]+", kernel):
        return f"Triton, {tensor_cores}" if tensor_cores else "Triton"
    return NAMES.get(kernel, kernel)


def new_figure(
    rows: int = 1,
    columns: int = 1,
    *,
    height_inches: float,
    width_inches: float = WIDTH_INCHES,
    **how: Any,
) -> tuple[Figure, list[Axes]]:
    """Return a figure in the house style and its axes, row by row; how: as for plt.subplots."""
    how |= {"figsize": (width_inches, height_inches), "squeeze": False, "layout": "constrained"}
    figure, axes = plt.subplots(rows, columns, **how)
    return figure, list(axes.flat)


def thinned(elements: pd.DataFrame, by: list[str], most: int) -> pd.DataFrame:
    """Return every n-th element of each kind, so that at most twice `most` are left of it."""
    kinds = elements.groupby(by, sort=False)
    return pd.concat(part.iloc[:: max(1, len(part) // most)] for _, part in kinds)


def written_grid(axes: Axes, values: pd.DataFrame, words: pd.DataFrame, *, top: float) -> None:
    """Write words into a grid of cells, whose shades are darker for larger values; NaN counts as 0.

    Rows and columns have the names of those of the values. Units: top is the value of the darkest
    shade.
    """
    shades = {"vmin": 0, "vmax": top, "cmap": sns.light_palette("#56b4e9", as_cmap=True)}
    text = {"annot": words.to_numpy(), "fmt": "", "annot_kws": {"size": 7.5, "color": "#2d343d"}}
    every = {"xticklabels": True, "yticklabels": True, "cbar": False}
    sns.heatmap(values.fillna(0), ax=axes, **shades, **text, **every)
    axes.set(xlabel="", ylabel="")
    axes.tick_params(length=0, labelrotation=0)
    axes.grid(visible=False)


def say_origin(figure: Figure, origin: str) -> Figure:
    """Write the origin of the numbers below a figure, so that it stays with it, and return it."""
    # a longer line would widen the saved picture, in which the axes then shrink
    lines = textwrap.fill(origin, int(ORIGIN_LETTERS_PER_INCH * figure.bbox.width / figure.dpi))
    figure.supxlabel(lines, fontsize=7.5, color="#56606d", x=0.99, ha="right")
    return figure
