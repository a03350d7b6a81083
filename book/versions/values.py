"""The values of a figure in words, with their places: a page says them at pointer or arrow keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import PathCollection, QuadMesh
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FuncFormatter
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

MOST, MOST_OF_A_LINE = 6_000, 150  # most values that a page carries of a figure, and of a line
DIGITS = 4
TICK = 0.5  # largest distance at which a value has the name of a tick

Points = NDArray[np.float64]
Words = Callable[[float], str]


def n_points(artist: Artist) -> int:
    """Count the points of what a figure draws."""
    if isinstance(artist, Line2D):
        return len(artist.get_xdata())
    if isinstance(artist, PathCollection):
        return len(artist.get_offsets())
    if isinstance(artist, QuadMesh):
        return artist.get_array().size
    return sum(len(path.vertices) for path in artist.get_paths())


def values(figure: Figure, narrow: Figure, boxes: tuple[Bbox, Bbox]) -> list[dict[str, Any]]:
    """Return the series of two versions of a figure: names, values in words, and their places.

    A place is two integers for each value, in 1/10,000 of the version's box from its top left. The
    list is empty if a figure has no values, or too many. Units: boxes are in inches.
    """
    shown = []
    for axes, other in zip(_panels(figure), _panels(narrow), strict=True):
        words = _words(axes.xaxis), _words(axes.yaxis)
        for name, points, lengths in _series(axes):
            if len(points) and not (keep := _inside(axes, points)).all():
                points, lengths = points[keep], lengths[keep] if len(lengths) else lengths
            if len(points):
                said = [[x(at) for x, at in zip(words, point, strict=True)] for point in points]
                for each, length in zip(said, lengths, strict=False):
                    each.append(_short(length))
                places = [_places(*at, points) for at in ((axes, boxes[0]), (other, boxes[1]))]
                shown.append({"name": name, **_titles(axes), "values": said, "places": places})
    return shown if sum(len(each["values"]) for each in shown) <= MOST else []


def _panels(figure: Figure) -> list[Axes]:
    every = figure.findobj(Axes)
    return [axes for axes in every if axes.get_visible() and axes.get_label() != "<colorbar>"]


def _titles(axes: Axes) -> dict[str, str]:
    title = axes.get_title(loc="left") or axes.get_title()
    found = {"panel": title, "x": axes.get_xlabel(), "y": axes.get_ylabel()}
    return {name: " ".join(text.split()) for name, text in found.items()}


def _series(axes: Axes) -> Iterator[tuple[str, Points, Points]]:
    """Yield name, points in data units, and lengths of bars or values of cells, by artist."""
    handles, labels = axes.get_legend_handles_labels()
    names = {id(handle): label for handle, label in zip(handles, labels, strict=True)}
    nothing = np.empty(0)
    for line in axes.lines:
        if line.get_transform() == axes.transData:
            step = -(-len(line.get_xdata()) // MOST_OF_A_LINE) or 1
            yield names.get(id(line), ""), line.get_xydata()[::step], nothing
    for artist in axes.collections:
        if isinstance(artist, QuadMesh) and n_points(artist) <= MOST:
            corners = artist.get_coordinates()
            yield _cells((corners[:-1, :-1] + corners[1:, 1:]) / 2, artist.get_array())
        elif isinstance(artist, PathCollection) and n_points(artist) <= MOST:
            yield names.get(id(artist), ""), np.ma.filled(artist.get_offsets(), np.nan), nothing
    for image in axes.images:
        left, right, bottom, top = image.get_extent()
        rows, columns = image.get_array().shape[:2]
        if rows * columns <= MOST and image.get_array().ndim == len("xy"):
            x = left + (np.arange(columns) + 0.5) * (right - left) / columns
            y = top + (np.arange(rows) + 0.5) * (bottom - top) / rows
            upright = image.origin == "upper"
            grid = np.stack(np.meshgrid(x, y if upright else y[::-1]), axis=-1)
            yield _cells(grid, image.get_array())
    for bars in axes.containers:
        if isinstance(bars, BarContainer):
            ends = np.array([_end(bars, bar) for bar in bars]).reshape(-1, 3)
            yield names.get(id(bars), ""), ends[:, :2], ends[:, 2]


def _cells(middles: NDArray, numbers: NDArray) -> tuple[str, Points, Points]:
    cells = np.ma.filled(np.ma.asarray(numbers, float), np.nan).ravel()
    known = np.isfinite(cells)
    return "", middles.reshape(-1, 2)[known], cells[known]


def _end(bars: BarContainer, bar) -> tuple[float, float, float]:
    """Return the middle of a bar's far side, and its length: stacked bars do not begin at 0."""
    x, y, width, height = bar.get_x(), bar.get_y(), bar.get_width(), bar.get_height()
    if bars.orientation == "horizontal":
        return x + width, y + height / 2, width
    return x + width / 2, y + height, height


def _inside(axes: Axes, points: Points) -> NDArray[np.bool_]:
    with np.errstate(divide="ignore", invalid="ignore"):
        pixels = axes.transData.transform(points)
    box = axes.bbox.padded(2)
    return ((pixels >= box.min) & (pixels <= box.max)).all(axis=1)


def _places(axes: Axes, box: Bbox, points: Points) -> list[int]:
    pixels = axes.transData.transform(points)
    inches = axes.get_figure(root=True).dpi_scale_trans.inverted().transform(pixels)
    shares = (inches - box.min) / box.size
    shares[:, 1] = 1 - shares[:, 1]
    return np.rint(1e4 * shares).astype(int).ravel().tolist()


def _words(axis: Axis) -> Words:
    """Return how an axis names a number: by the label of its tick, or with a few digits."""
    if not (
        axis.have_units() or isinstance(axis.get_major_formatter(), FixedFormatter | FuncFormatter)
    ):
        return _short
    ticks = axis.get_majorticklocs()
    texts = [" ".join(text.get_text().split()) for text in axis.get_majorticklabels()]
    named = [(at, text) for at, text in zip(ticks, texts, strict=False) if text]

    def words(value: float) -> str:
        near = min(named, key=lambda tick: abs(tick[0] - value), default=(np.inf, ""))
        return near[1] if abs(near[0] - value) <= TICK else _short(value)

    return words


def _short(value: float) -> str:
    return f"{value:.{DIGITS}g}"
