"""Attention in pictures: the walk of the online softmax, a page table, split and merge."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from labkernels.plots import style
from labkernels.plots.primers.machine import box

_PAGES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7b3294", "#8b95a1")
_ARROW = {"arrowstyle": "-|>", "color": style.CEILING, "lw": 1.0, "shrinkA": 1, "shrinkB": 1}


@plt.rc_context(style.HOUSE)
def walk(scores: np.ndarray, steps: pd.DataFrame, *, origin: str) -> Figure:
    """Draw a row's scores tile by tile, with the running maximum, and below them l and the factor.

    Shapes: scores [keys]; steps has first, last (of the tile's keys), m, l and rescale.
    Units: scores and m in log2 units.
    """
    figure, (top, middle, bottom) = style.new_figure(3, 1, height_inches=4.6, sharex=True)
    top.bar(np.arange(len(scores)), scores, width=0.8, color="#9fc8e4")
    for axes in (top, middle, bottom):
        for step in steps.itertuples():
            axes.axvline(step.first - 0.5, color=style.RULE, lw=1.2, zorder=0)
    ends = [steps["first"].iloc[0] - 0.5, *(steps["last"] - 0.5)]
    top.stairs(steps.m, ends, baseline=None, color="#d55e00", lw=2, label="running maximum m")
    top.set(ylabel="score, log2 units")
    top.legend(loc="lower right")
    middle.stairs(steps.l, ends, baseline=None, color="#0072b2", lw=2)
    middle.set(ylabel="l so far")
    bottom.stairs(steps.rescale, ends, fill=True, color="#cc79a7", alpha=0.5)
    bottom.set(ylabel="factor on old sums", xlabel="key, marks where KV tiles begin", ylim=(0, 1.1))
    bottom.set_xticks([*steps["first"], len(scores)])
    return style.say_origin(figure, origin)


@plt.rc_context(style.HOUSE)
def page_table(tables: dict[str, list[int]], n_pages: int, *, origin: str) -> Figure:
    """Draw each request's pages in order, the pool below, and a line from each entry to its page.

    Shapes: tables has the pages of each request, by its name; the pool has n_pages.
    """
    figure, (axes,) = style.new_figure(height_inches=2.6)
    for page in range(n_pages):
        box(axes, page + 0.06, 2.4, 0.88, 0.6, fc="#eceff3")
        axes.text(page + 0.5, 3.2, str(page), ha="center", va="top", fontsize=8)
    gap = (n_pages - sum(map(len, tables.values()))) / max(1, len(tables) - 1)
    start = 0.0
    for number, (name, pages) in enumerate(tables.items()):
        colour = _PAGES[number % len(_PAGES)]
        axes.text(start + 0.06, -0.15, name, va="bottom", fontsize=9)
        for slot, page in enumerate(pages):
            x = start + slot
            box(axes, x + 0.06, 0, 0.88, 0.6, fc=colour, ec=colour)
            axes.text(x + 0.5, 0.3, f"{page}", color="white", ha="center", va="center")
            box(axes, page + 0.06, 2.4, 0.88, 0.6, fc=colour, ec=colour)
            axes.plot([x + 0.5, page + 0.5], [0.64, 2.36], color=colour, lw=0.9)
        start += len(pages) + gap
    axes.text(-0.2, 2.7, "pool", ha="right", va="center", fontsize=9)
    axes.text(-0.2, 0.3, "tables", ha="right", va="center", fontsize=9)
    axes.set(xlim=(-1.6, n_pages), ylim=(3.5, -0.6))
    axes.axis("off")
    return style.say_origin(figure, origin)


@plt.rc_context(style.HOUSE)
def split_and_merge(states: pd.DataFrame, whole: tuple[float, float], *, origin: str) -> Figure:
    """Draw the states of the splits, and the state that they merge to.

    Shapes: states has keys (in words), m and l, one row per split. whole: m and l of all keys.
    """
    figure, (axes,) = style.new_figure(height_inches=2.5)
    n = len(states)
    width = 10 / n
    for i, state in enumerate(states.itertuples()):
        x = i * width
        box(axes, x + 0.1, 0, width - 0.2, 1.0, mutation_aspect=1)
        axes.text(
            x + width / 2, 0.25, state.keys, ha="center", va="center", weight="bold", fontsize=8
        )
        words = f"m = {state.m:.2f}\nl = {state.l:.2f}"
        axes.text(x + width / 2, 0.65, words, ha="center", va="center", fontsize=8.5)
        factor = 2.0 ** (state.m - whole[0])
        axes.annotate("", (5, 2.0), (x + width / 2, 1.0), arrowprops=_ARROW)
        label = {"ha": "center", "va": "center", "fontsize": 8.5, "backgroundcolor": "white"}
        axes.text((x + width / 2 + 5) / 2, 1.5, f"× {factor:.2f}", **label)
    box(axes, 2.5, 2.0, 5, 0.8, fc="#d7ebf7")
    axes.text(5, 2.25, "all keys", ha="center", va="center", weight="bold")
    words = f"m = {whole[0]:.2f}, l = {whole[1]:.2f}"
    axes.text(5, 2.57, words, ha="center", va="center", fontsize=8.5)
    axes.set(xlim=(0, 10), ylim=(2.9, -0.1))
    axes.axis("off")
    return style.say_origin(figure, origin)


@plt.rc_context(style.HOUSE)
def timeline(events: list[tuple[str, int]], stages: int, *, origin: str) -> Figure:
    """Draw a pipeline's trace: when the copy of each tile is on its way, and when it is summed.

    Shapes: events has ("fetch", tile) and ("use", tile) in the order of the program; a copy is
    taken to be on its way until its tile is used, and stands in the row of its stage.
    """
    figure, (axes,) = style.new_figure(height_inches=0.9 + 0.5 * stages)
    at = {event: turn for turn, event in enumerate(events)}
    for (what, tile), turn in at.items():
        colour = _PAGES[tile % len(_PAGES)]
        if what == "fetch":
            until = at[("use", tile)]
            axes.barh(tile % stages, until - turn, left=turn, height=0.5, color=colour, alpha=0.55)
            middle, row, words = (turn + until) / 2, tile % stages, str(tile)
        else:
            axes.barh(stages, 1, left=turn, height=0.5, color=colour)
            middle, row, words = turn + 0.5, stages, str(tile)
        axes.text(middle, row, words, ha="center", va="center", fontsize=8)
    names = [f"copies to\nstage {stage}" for stage in range(stages)]
    axes.set_yticks(range(stages + 1), [*names, "sums"])
    axes.set(
        xlabel="order in the program, with the numbers of the tiles", ylim=(stages + 0.45, -0.45)
    )
    axes.set_xticks([])
    axes.grid(visible=False)
    return style.say_origin(figure, origin)


@plt.rc_context(style.HOUSE)
def tile_walk(blocks: pd.DataFrame, walker: int, *, origin: str) -> Figure:
    """Draw S as tiles of rows and KV tiles, and the steps of one tile of rows through K and V.

    Shapes: blocks has tile, block, and seen ("all", "some" or "none"), a row per pair; walker is
    the tile whose steps are numbered.
    """
    n_tiles, n_blocks = blocks.tile.max() + 1, blocks.block.max() + 1
    figure, (axes,) = style.new_figure(height_inches=1.3 + 0.42 * n_tiles)
    shades = {"all": "#9fc8e4", "some": "#f2c9a8", "none": "#eceff3"}
    for row, name in enumerate(("K", "V")):
        for block in range(n_blocks):
            box(axes, block + 0.05, 0.72 * row + 0.05, 0.9, 0.56, fc="#d7ebf7")
            label = {"ha": "center", "va": "center", "fontsize": 8.5, "color": "#10161d"}
            axes.text(block + 0.5, 0.72 * row + 0.33, f"{name} {block}", **label)
    step = 0
    for part in blocks.itertuples():
        y = 1.6 + part.tile
        box(axes, part.block + 0.04, y + 0.06, 0.92, 0.88, fc=shades[part.seen])
        if part.tile == walker and part.seen != "none":
            step += 1
            bold = {"ha": "center", "va": "center", "weight": "bold", "color": "#10161d"}
            axes.text(part.block + 0.5, y + 0.5, str(step), fontsize=9.5, **bold)
    for tile in range(n_tiles):
        axes.text(-0.12, tile + 2.1, f"Q {tile}", ha="right", va="center", fontsize=8.5)
    end = n_blocks + 0.35
    axes.annotate("", (end, walker + 2.1), (n_blocks + 0.02, walker + 2.1), arrowprops=_ARROW)
    box(axes, end, walker + 1.66, 1.25, 0.88, fc="#d7ebf7")
    place: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8.5, "color": "#10161d"}
    axes.text(end + 0.62, walker + 2.1, f"O {walker}\n(m, l, o)", **place)
    names = {"all": "every row sees every key", "some": "masked", "none": "skipped"}
    keys = [Patch(fc=shades[seen], ec="#9aa3af", label=name) for seen, name in names.items()]
    axes.legend(handles=keys, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=3, frameon=False)
    axes.set(xlim=(-0.6, end + 1.35), ylim=(n_tiles + 1.65, -0.1))
    axes.axis("off")
    return style.say_origin(figure, origin)
