"""A figure for a slide: as flat as the slide, so that a room can read its words."""

from __future__ import annotations

import warnings

from matplotlib.figure import Figure

from versions import narrow

SIZE_INCHES = (6.6, 3.45)
LEAST_POINTS = 7.5  # 18 pixels where a slide shows the figure 1240 pixels wide


def made_flat(figure: Figure) -> Figure:
    """Change a figure for a slide, and return it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "constrained_layout not applied")
        figure.set_size_inches(SIZE_INCHES)
        narrow.with_larger_words(figure, LEAST_POINTS)
        narrow.within(figure)
    return figure
