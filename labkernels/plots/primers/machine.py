"""A GPU in pictures: its memories, what an SM holds, and how warps hide waiting."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Patch

from labkernels.plots import style

_SHADES = ("#e3eff7", "#cfe3f1", "#b7d5ea", "#9fc8e4")
_BLOCKS = ("#0072b2", "#56b4e9")
_LEFT_OVER = "#eceff3"
_WAITS, _WORKS = "#dfe4ea", "#d55e00"


@plt.rc_context(style.HOUSE)
def memories(levels: pd.DataFrame, *, origin: str) -> Figure:
    """Draw the memories of a GPU as steps, the nearest on top, each as wide as its bytes.

    Shapes: levels has name, words, bytes; the nearest memory comes first. The axis is logarithmic.
    """
    figure, (axes,) = style.new_figure(height_inches=0.7 + 0.62 * len(levels))
    for row, level in enumerate(levels.itertuples()):
        axes.barh(row, level.bytes, left=1, height=0.62, color=_SHADES[-1 - row % len(_SHADES)])
        axes.text(1.4e3, row, level.words, va="center", fontsize=8.5, color="#10161d", clip_on=True)
    axes.set(
        xscale="log",
        xlim=(1e3, 2 * levels.bytes.max()),
        xlabel="bytes on the whole GPU, ten times as many at each mark",
    )
    axes.set_yticks(range(len(levels)), levels.name)
    axes.set_ylim(len(levels) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    return style.say_origin(figure, origin)


@plt.rc_context(style.HOUSE)
def sm_with_blocks(resources: pd.DataFrame, *, origin: str) -> Figure:
    """Draw an SM as one bar per resource, filled by the blocks that fit.

    Shapes: resources has name, per_block, available, unit, and blocks, the number on the SM.
    """
    figure, (axes,) = style.new_figure(height_inches=0.9 + 0.62 * len(resources))
    for row, have in enumerate(resources.itertuples()):
        axes.barh(row, 1, height=0.6, color=_LEFT_OVER, edgecolor=style.RULE)
        share = have.per_block / have.available
        for block in range(have.blocks):
            colour = _BLOCKS[block % 2]
            axes.barh(row, share, left=block * share, height=0.6, color=colour, edgecolor="white")
            if share > 0.06:
                centre = (block + 0.5) * share
                axes.text(centre, row, f"{block}", color="white", ha="center", va="center")
        used = f"{have.blocks} × {have.per_block:,} of {have.available:,} {have.unit}"
        axes.text(0.0, row - 0.34, used, va="bottom", fontsize=8)
    axes.set_yticks(range(len(resources)), resources.name)
    axes.set(xlim=(0, 1), ylim=(len(resources) - 0.5, -0.75), xlabel="share of the SM")
    axes.grid(visible=False)
    return style.say_origin(figure, origin)


@plt.rc_context(style.HOUSE)
def warps_in_time(runs: dict[int, pd.DataFrame], *, origin: str) -> Figure:
    """Draw what each warp does in each moment, a panel for each number of warps.

    Shapes: a run has warp, start, end and what, "waits" or "works"; times in steps of the unit.
    """
    heights = [len(run.warp.unique()) for run in runs.values()]
    ratios = [height + 1 for height in heights]
    inches = 0.9 + 0.5 * len(runs) + 0.13 * sum(heights)
    figure, panels = style.new_figure(
        len(runs), height_inches=inches, height_ratios=ratios, sharex=True
    )
    for axes, (n_warps, run) in zip(panels, runs.items(), strict=True):
        _lanes(axes, run)
        end = run.end.max()
        works = (run.end - run.start)[run.what == "works"].sum()
        name = f"{n_warps} warp{'s' * (n_warps > 1)}"
        axes.set_title(f"{name}: the unit works {100 * works / end:.0f} % of the time", fontsize=9)
    looks = [Patch(fc=_WAITS, label="waits"), Patch(fc=_WORKS, label="works")]
    where = {"loc": "lower right", "bbox_to_anchor": (1.02, 0.95), "ncols": 2}
    panels[0].legend(handles=looks, handlelength=1, columnspacing=1, **where)
    panels[-1].set_xlabel("time, in turns of the arithmetic unit")
    return style.say_origin(figure, origin)


def _lanes(axes: Axes, run: pd.DataFrame) -> None:
    for what, colour in (("waits", _WAITS), ("works", _WORKS)):
        part = run[run.what == what]
        axes.barh(part.warp, part.end - part.start, left=part.start, height=0.8, color=colour)
    axes.set_yticks([])
    axes.set_ylim(run.warp.max() + 0.6, -0.6)
    axes.grid(visible=False)


def box(axes: Axes, x: float, y: float, width: float, height: float, **look: object) -> None:
    """Draw a box with round corners in the house's look."""
    usual = {"boxstyle": "round,pad=0,rounding_size=0.04", "fc": "#eaf2f8", "ec": "#9aa3af"}
    axes.add_patch(FancyBboxPatch((x, y), width, height, **(usual | {"lw": 0.9} | look)))
