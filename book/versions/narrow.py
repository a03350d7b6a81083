"""A figure for phones: narrow, with panels below each other, and readable at 390 pixels."""

from __future__ import annotations

import itertools
import re
import textwrap
import warnings
from weakref import WeakKeyDictionary

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.legend import Legend
from matplotlib.text import Annotation, Text

WIDTH_INCHES = 3.4
LEAST_PIXELS = 11  # size of the smallest text that is readable on a phone
DENSE_POINTS = 6.5  # a smaller text stands in a cell that has no room for a larger one
LEAST_POINTS = 8.0  # 11 pixels where a phone shows the figure 356 pixels wide
_PANEL_INCHES = 1.8  # a panel that would be narrower gets a row of its own
_LEAST_INCHES = 3.0  # least width of the figure itself, whatever stands out of it
_TRIES = 5  # attempts to make room for what stands out of the figure
_WHOLE: WeakKeyDictionary[Text, list[str]] = WeakKeyDictionary()  # lines before they were broken
_PAUSE = re.compile(" {2,}")
_FEWEST_LETTERS = 12  # least length of a line that was broken


def least_points(figure: Figure) -> float:
    """Return the size of the smallest text of a figure."""
    texts = (text for text in figure.findobj(Text) if text.get_text().strip())
    return min((text.get_fontsize() for text in texts if text.get_visible()), default=LEAST_POINTS)


def lay_out(figure: Figure) -> None:
    """Place the parts of a figure as a draw does, in less time than a draw takes."""
    engine = figure.get_layout_engine()
    if engine is None:
        figure.draw_without_rendering()
    else:
        engine.execute(figure)


def made_narrow(figure: Figure) -> Figure:
    """Change a figure for phones, and return it."""
    with warnings.catch_warnings():  # the layout may find no room before words are wrapped
        warnings.filterwarnings("ignore", "constrained_layout not applied")
        return _made_narrow(figure)


def _made_narrow(figure: Figure) -> Figure:
    wide, high = figure.get_size_inches()
    grown = _stacked(figure) if wide > WIDTH_INCHES else 1.0
    figure.set_size_inches(WIDTH_INCHES, high * grown)
    with_larger_words(figure, LEAST_POINTS)
    _fold_legends(figure)
    within(figure)
    changes = [_shortened(note, figure) for note in figure.findobj(Annotation)]
    changes += [_lifted([axes._left_title for axes in figure.findobj(Axes)], figure)]
    changes += [_without_overlaps(axes) for axes in figure.findobj(Axes)]
    if any(changes):
        within(figure)
    for _ in range(_TRIES):
        beyond = figure.get_tightbbox().width - WIDTH_INCHES
        if beyond <= 0:
            break
        figure.set_figwidth(max(figure.get_figwidth() - beyond, _LEAST_INCHES))
        within(figure)
    return figure


def with_larger_words(figure: Figure, least: float) -> None:
    """Give every text of a figure at least this size, in points."""
    for text in figure.findobj(Text):
        text.set_fontsize(max(text.get_fontsize(), least))
    for axes in figure.findobj(Axes):
        for axis in (axes.xaxis, axes.yaxis):
            if (axis.get_tick_params().get("labelsize") or least) != least:
                axis.set_tick_params(labelsize=least)


def within(figure: Figure) -> None:
    """Lay the figure out so that no legend, title or line of text leaves it."""
    lay_out(figure)
    changes = [_folded(legend, figure) for legend in figure.findobj(Legend)]
    changes += [_shifted(axes._left_title, axes, figure) for axes in figure.findobj(Axes)]
    changes += [_wrapped(text, figure) for text in figure.findobj(Text)]
    changes += [_broken(axes) for axes in figure.findobj(Axes)]
    if any(changes):  # a layout takes most of the time
        lay_out(figure)


def _stacked(figure: Figure) -> float:
    """Put panels that would be too narrow below each other; return the growth of the height."""
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

    A layout takes the room for a panel's legend from the panel: a legend that is wider than its
    panel would make the panel narrower at each new layout.
    """
    every = figure.findobj(Legend)
    if all(legend._ncols == 1 for legend in every):
        return
    of_panels = [legend for axes in figure.axes for legend in axes.findobj(Legend)]
    for legend in of_panels:
        legend.set_in_layout(False)
    lay_out(figure)
    for legend in every:
        _folded(legend, figure)
    for legend in of_panels:
        legend.set_in_layout(True)


def _folded(legend: Legend, figure: Figure) -> bool:
    """Give a legend fewer columns until it lies within the figure; say whether it changed."""
    labels, columns = [text.get_text() for text in legend.get_texts()], legend._ncols
    while legend._ncols > 1 and _beyond(legend, figure) > 0:
        legend.set_ncols(legend._ncols - 1)
        legend.markerscale = 1.0  # the markers are scaled already
        legend._init_legend_box(legend.legend_handles, labels)  # set_ncols alone lays nothing out
        legend._loc = legend._loc  # set_loc would forget that a legend stands outside the panels
        for text in legend.get_texts():
            text.set_fontsize(max(text.get_fontsize(), LEAST_POINTS))
    return legend._ncols != columns


def _beyond(artist: Artist, figure: Figure) -> float:
    """Return how far an artist stands out of a figure, on both sides. Units: pixels."""
    box = artist.get_window_extent()
    return max(0, box.x1 - figure.bbox.width) + max(0, -box.x0)


def _shifted(title: Text, axes: Axes, figure: Figure) -> bool:
    """Let a title that leaves the figure begin further left, above the labels of the axis."""
    if not title.get_text() or axes.bbox.width <= 0:
        return False
    shift = min(_beyond(title, figure), max(0, title.get_window_extent().x0))
    title.set_x(title.get_position()[0] - shift / axes.bbox.width)
    return shift > 0


def _shortened(note: Annotation, figure: Figure) -> bool:
    """Break a note that takes half of the figure where its words pause."""
    before = note.get_text()
    if note.get_window_extent().width > figure.bbox.width / 2:
        note.set_text(_PAUSE.sub("\n", before))
    return note.get_text() != before


def _lifted(titles: list[Text], figure: Figure) -> bool:
    """Lift each title that would cover one at its right; say whether any was lifted."""
    covers = False
    every = [text for axes in figure.findobj(Axes) for text in (axes.title, axes._right_title)]
    boxes = [text.get_window_extent() for text in (*titles, *every) if text.get_text()]
    for title in titles:
        box = title.get_window_extent()
        beside = (other for other in boxes if other.x0 > box.x0 and other.overlaps(box))
        if title.get_text() and any(beside):
            title.set_text(f"{title.get_text()}\n")
            covers = True
    return covers


def _wrapped(text: Text, figure: Figure) -> bool:
    """Break a line that leaves the figure, except in formulas, notes and rotated text."""
    words = text.get_text()
    if not words.strip() or "$" in words or text.get_rotation() or isinstance(text, Annotation):
        return False
    width, beyond = text.get_window_extent().width, _beyond(text, figure)
    if beyond > 0:
        letters = int(max(map(len, words.splitlines())) * (1 - beyond / width))
        lines = _WHOLE.setdefault(text, words.splitlines())  # so that no line is broken twice
        text.set_text("\n".join(_evenly(line, letters) for line in lines))
    return text.get_text() != words


def _evenly(line: str, letters: int) -> str:
    """Break a line into as few lines as this many letters allow, all of about the same length."""
    least = max([_FEWEST_LETTERS, *map(len, line.split())])
    letters = max(letters, least)
    needed = len(textwrap.wrap(line, letters))
    while letters > least and len(textwrap.wrap(line, letters - 1)) == needed:
        letters -= 1
    return textwrap.fill(line, letters)


def _broken(axes: Axes) -> bool:
    """Break the name of the upright axis where it is longer than the axis."""
    name = axes.yaxis.label
    words, length = name.get_text(), name.get_window_extent().height
    if "\n" in words or "$" in words or not 0 < axes.bbox.height < length:
        return False
    name.set_text(_evenly(words, -(-len(words) // 2)))
    return name.get_text() != words


def _without_overlaps(axes: Axes) -> bool:
    """Turn the labels of the lower axis where two of them meet."""
    labels = [text for text in axes.get_xticklabels() if text.get_visible() and text.get_text()]
    boxes = sorted((text.get_window_extent() for text in labels), key=lambda box: box.x0)
    meet = any(left.x1 > right.x0 for left, right in itertools.pairwise(boxes))
    if meet:
        axes.tick_params(axis="x", labelrotation=90)
    return meet
