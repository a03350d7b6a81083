"""A figure for phones: narrow, panels below each other, and text that is read at 390 pixels."""

from __future__ import annotations

import itertools
import textwrap
import warnings

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.legend import Legend
from matplotlib.text import Annotation, Text

WIDTH_INCHES = 3.4
LEAST_POINTS = 8.0  # 11 pixels where a phone shows the figure 356 pixels wide
_PANEL_INCHES = 1.8  # a panel that would be narrower gets a row of its own
_LEAST_INCHES = 1.2  # of a panel, whatever stands out of the figure
_TRIES = 5  # to make room for what stands out of the figure
_LETTER = 0.56  # width of a letter, in its height


def made_narrow(figure: Figure) -> Figure:
    """Return the same figure, changed."""
    with warnings.catch_warnings():  # of a layout that finds no room before words are wrapped
        warnings.filterwarnings("ignore", "constrained_layout not applied")
        return _made_narrow(figure)


def _made_narrow(figure: Figure) -> Figure:
    wide, high = figure.get_size_inches()
    grown = _stacked(figure) if wide > WIDTH_INCHES else 1.0
    figure.set_size_inches(WIDTH_INCHES, high * grown)
    for text in figure.findobj(Text):
        text.set_fontsize(max(text.get_fontsize(), LEAST_POINTS))
    for axes in figure.findobj(Axes):
        for axis in (axes.xaxis, axes.yaxis):
            if (axis.get_tick_params().get("labelsize") or LEAST_POINTS) != LEAST_POINTS:
                axis.set_tick_params(labelsize=LEAST_POINTS)
    _fold_legends(figure)
    for text in figure.findobj(Text):
        _wrapped(text, figure)
    figure.draw_without_rendering()
    for axes in figure.findobj(Axes):
        _without_overlaps(axes)
    least = min(_LEAST_INCHES, _narrowest(figure))
    for _ in range(_TRIES):
        width, beyond = figure.get_figwidth(), figure.get_tightbbox().width - WIDTH_INCHES
        if beyond <= 0 or beyond >= width:
            break
        figure.set_figwidth(width - beyond)
        figure.draw_without_rendering()
        if _narrowest(figure) < least:  # what stands out does not shrink with the panels
            figure.set_figwidth(width)
            figure.draw_without_rendering()
            break
    return figure


def _narrowest(figure: Figure) -> float:
    """The width of the narrowest panel. Units: inches."""
    panels = [each for each in figure.axes if each.get_subplotspec() is not None]
    widths = [each.get_position().width * figure.get_figwidth() for each in panels]
    return min(widths, default=WIDTH_INCHES)


def _stacked(figure: Figure) -> float:
    """Put panels that would be too narrow below each other; return how much higher it became."""
    axes = [each for each in figure.axes if each.get_subplotspec() is not None]
    grids = {id(each.get_gridspec()): each.get_gridspec() for each in axes}
    if len(grids) != 1 or figure.subfigs:
        return 1.0
    (grid,) = grids.values()
    rows, columns = grid.get_geometry()
    if columns == 1 or WIDTH_INCHES / columns >= _PANEL_INCHES:
        return 1.0
    order = sorted(axes, key=lambda each: each.get_subplotspec().num1)
    below = GridSpec(len(order), 1, figure=figure)
    for i, each in enumerate(order):
        each.set_subplotspec(below[i])
        each.tick_params(labelleft=True, labelbottom=True)
    return 0.85 * len(order) / rows


def _fold_legends(figure: Figure) -> None:
    """Fold the legends that leave the figure, while the layout ignores those of panels.

    A layout takes the room for a panel's legend from the panel: one that is wider than its panel
    would make the panel narrower at each new layout.
    """
    of_panels = [legend for axes in figure.axes for legend in axes.findobj(Legend)]
    for legend in of_panels:
        legend.set_in_layout(False)
    figure.draw_without_rendering()
    for legend in figure.findobj(Legend):
        _folded(legend, figure)
    for legend in of_panels:
        legend.set_in_layout(True)


def _folded(legend: Legend, figure: Figure) -> None:
    """Give a legend fewer columns until the figure is wide enough for it."""
    labels = [text.get_text() for text in legend.get_texts()]
    for columns in range(legend._ncols - 1, 0, -1):
        box = legend.get_window_extent()
        if box.x0 >= 0 and box.x1 <= figure.bbox.width:
            return
        legend.set_ncols(columns)
        legend.markerscale, outside = 1.0, legend._outside_loc  # the markers are scaled already
        legend._init_legend_box(legend.legend_handles, labels)  # set_ncols alone lays nothing out
        legend.set_loc(legend._loc)
        legend._outside_loc = outside
        for text in legend.get_texts():
            text.set_fontsize(max(text.get_fontsize(), LEAST_POINTS))


def _wrapped(text: Text, figure: Figure) -> None:
    """Break a line that leaves the figure; formulas and what is rotated stay."""
    words = text.get_text()
    if not words.strip() or "$" in words or text.get_rotation() or isinstance(text, Annotation):
        return
    box = text.get_window_extent()
    beyond = max(0, box.x1 - figure.bbox.width) + max(0, -box.x0)
    if beyond > 0:
        letters = int((box.width - beyond) / figure.dpi * 72 / (_LETTER * text.get_fontsize()))
        lines = [textwrap.fill(line, max(12, letters)) for line in words.splitlines()]
        text.set_text("\n".join(lines))


def _without_overlaps(axes: Axes) -> None:
    """Turn the labels of the lower axis where two of them meet."""
    labels = [text for text in axes.get_xticklabels() if text.get_visible() and text.get_text()]
    boxes = sorted((text.get_window_extent() for text in labels), key=lambda box: box.x0)
    if any(left.x1 > right.x0 for left, right in itertools.pairwise(boxes)):
        axes.tick_params(axis="x", labelrotation=90)
