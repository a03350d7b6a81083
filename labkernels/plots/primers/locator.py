"""Where a kernel's parts run: grid, thread block, warp and lane beside GPU, SM and registers."""

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkernels.plots import style
from labkernels.plots.primers.machine import box

_LEFT, _RIGHT, _WIDE = 0.0, 5.5, 4.6
_WORK = {"fc": "#cfe3f1", "ec": "#0072b2"}  # what is launched
_PLACE = {"fc": "#f7dfc8", "ec": "#d55e00"}  # where it runs
_ZOOM: dict[str, Any] = {"color": "#9aa3af", "lw": 0.9, "ls": ":"}


@plt.rc_context(style.HOUSE)
def locator(*, origin: str) -> Figure:
    """Draw what a kernel is launched as beside what runs it."""
    figure, (axes,) = style.new_figure(height_inches=4.3)
    for x, words in ((_LEFT, "What you launch"), (_RIGHT, "Where it runs")):
        axes.text(x, -0.25, words, weight="bold", fontsize=10, va="bottom")
    _launched(axes)
    _machine(axes)
    for y, words in ((3.5, "runs\non"), (6.1, "has")):
        axes.text(5.05, y - 0.12, words, ha="center", va="bottom", fontsize=8.5)
        axes.annotate(
            "", (5.45, y), (4.65, y), arrowprops={"arrowstyle": "-|>", "color": "#56606d"}
        )
    axes.set(xlim=(-0.1, 10.2), ylim=(7.2, -0.7))
    axes.axis("off")
    return style.say_origin(figure, origin)


def _part(axes: Axes, at: tuple[float, ...], words: str, look: dict[str, Any]) -> None:
    """Draw a box (x, y, width, height) with its words in the middle."""
    box(axes, *at, **look)
    x, y, width, height = at
    middle: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8.5, "color": "#10161d"}
    axes.text(x + width / 2, y + height / 2, words, **middle)


def _titled(axes: Axes, at: tuple[float, ...], words: str, look: dict[str, Any]) -> None:
    box(axes, *at, **look)
    axes.text(at[0] + 0.12, at[1] + 0.1, words, va="top", fontsize=9, color="#10161d")


def _launched(axes: Axes) -> None:
    _titled(axes, (_LEFT, 0, _WIDE, 2.1), "grid of thread blocks", _WORK)
    for block in range(6):
        place = (_LEFT + 0.15 + block % 3 * 1.46, 0.55 + block // 3 * 0.74, 1.36, 0.62)
        _part(axes, place, f"block {block}", _WORK)
    axes.plot([1.6, _LEFT], [1.91, 2.6], **_ZOOM)
    axes.plot([2.96, _WIDE], [1.91, 2.6], **_ZOOM)
    _titled(axes, (_LEFT, 2.6, _WIDE, 2.0), "thread block 4: 128 threads", _WORK)
    for warp in range(4):
        place = (_LEFT + 0.15 + warp % 2 * 2.2, 3.12 + warp // 2 * 0.72, 2.1, 0.6)
        _part(axes, place, f"warp {warp}", _WORK)
    axes.plot([0.15, _LEFT], [4.44, 5.1], **_ZOOM)
    axes.plot([2.25, _WIDE], [4.44, 5.1], **_ZOOM)
    _titled(axes, (_LEFT, 5.1, _WIDE, 2.0), "warp 2: 32 lanes, in step", _WORK)
    for lane in range(32):
        place = (_LEFT + 0.15 + lane % 16 * 0.272, 5.7 + lane // 16 * 0.62, 0.24, 0.5)
        box(axes, *place, **_WORK | {"fc": "white"})


def _machine(axes: Axes) -> None:
    for number in range(3):
        words = ("SM 0", "SM 1", "SM …")[number]
        _part(axes, (_RIGHT + number * 1.56, 0, 1.48, 0.62), words, _PLACE)
    _part(axes, (_RIGHT, 0.74, _WIDE, 0.62), "L2 cache", _PLACE)
    _part(axes, (_RIGHT, 1.48, _WIDE, 0.62), "global memory (DRAM)", _PLACE)
    _titled(axes, (_RIGHT, 2.6, _WIDE, 2.0), "one SM: room for many warps", _PLACE)
    shared = (_RIGHT + 0.15, 3.12, _WIDE - 0.3, 1.32)
    words = "shared memory:\na part for each thread block"
    _part(axes, shared, words, _PLACE)
    words = "registers: up to 255 numbers\nof 32 bits for each lane,\nwhich no other lane reads"
    _part(axes, (_RIGHT, 5.1, _WIDE, 2.0), words, _PLACE)
