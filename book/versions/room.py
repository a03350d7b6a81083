"""A figure for a slide: as flat as the slide, so that a room can read its words."""

from __future__ import annotations

import itertools
import warnings

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec

from versions import narrow

WIDTH_INCHES = 6.2
HEIGHTS_INCHES = (2.83, 3.4)  # more than a slide's share only where rows would meet
LEAST_POINTS = 8.0  # 18 pixels where a slide shows the figure 575 pixels high


def made_flat(figure: Figure) -> Figure:
    """Change a figure for a slide, and return it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "constrained_layout not applied")
        narrow.with_larger_words(figure, LEAST_POINTS)
        for height in HEIGHTS_INCHES:
            _lay_out(figure, height)
            if not _rows_meet(figure):
                return figure
        if _beside(figure):
            _lay_out(figure, HEIGHTS_INCHES[-1])
    return figure


def _lay_out(figure: Figure, height: float) -> None:
    figure.set_size_inches(WIDTH_INCHES, height)
    narrow.within(figure)


def _rows_meet(figure: Figure) -> bool:
    """Return whether labels of an upright axis meet, or words in a panel."""
    for axes in figure.findobj(Axes):
        labels = [text for text in axes.get_yticklabels() if text.get_visible() and text.get_text()]
        boxes = sorted((text.get_window_extent() for text in labels), key=lambda box: box.y0)
        if any(low.y1 > high.y0 + 1 for low, high in itertools.pairwise(boxes)):
            return True
        words = [text for text in axes.texts if text.get_visible() and text.get_text().strip()]
        inside = [text.get_window_extent().shrunk(1, 0.8) for text in words]
        if any(one.overlaps(other) for one, other in itertools.combinations(inside, 2)):
            return True
    return False


def _beside(figure: Figure) -> bool:
    """Put the panels into half as many rows; return whether this can be done."""
    panels = [each for each in figure.axes if each.get_subplotspec() is not None]
    grids = {id(each.get_gridspec()): each.get_gridspec() for each in panels}
    if len(grids) != 1 or figure.subfigs or next(iter(grids.values())).nrows == 1:
        return False
    rows = next(iter(grids.values())).nrows // 2
    grid = GridSpec(rows, -(-len(panels) // rows), figure=figure)
    for i, each in enumerate(sorted(panels, key=lambda each: each.get_subplotspec().num1)):
        each.set_subplotspec(grid[i])
        each.tick_params(labelleft=True, labelbottom=True)
    return True
