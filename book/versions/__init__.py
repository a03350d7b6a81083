"""A figure as a page of the book shows it: as SVG, again for phones and slides, and its values."""

from __future__ import annotations

import base64
import io
import math
import pickle
import re
import zlib
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from page_figures import MIME

from labkernels.plots import style
from versions import narrow, room, values

PADDING_INCHES = 0.1
RASTER_DPI = 2 * 144  # twice a page's resolution, for artists with too many points to be lines
MOST_VECTORS = 150  # points of an artist that is drawn as lines
DECIMALS = 1  # of coordinates in points, since a tenth of a point is not visible
_NOTHING = re.compile(
    r"""<!--.*?-->\s*|<metadata>.*?</metadata>\s*|(?<=<g) id="[^"]*\"""", re.DOTALL
)
_INDENT = re.compile(r"\n +")
_ATTRIBUTE = re.compile(r'="[^"]*"')
_LONG = re.compile(r"-?\b\d+\.\d{3,}\b")


_LOOK = {**style.HOUSE, "svg.hashsalt": "labkernels", "svg.fonttype": "none"}


@plt.rc_context(_LOOK)
def versions(figure: Figure) -> dict[str, Any]:
    """Return the figure as SVG, and under MIME a narrow SVG, the values at places, and the figure.

    A figure with words in small cells keeps its width; `pixels` is the least width at which these
    words are readable.
    """
    kept, points = _kept(figure), narrow.least_points(figure)
    wide = pickle.loads(kept)
    dense = points < narrow.DENSE_POINTS
    narrow.lay_out(wide)
    slim = wide if dense else narrow.made_narrow(pickle.loads(kept))
    boxes = _drawn_box(wide), _drawn_box(slim)
    found = values.values(wide, slim, boxes)
    drawn = [_svg(each, box) for each, box in dict(zip((wide, slim), boxes, strict=True)).items()]
    pixels = math.ceil(narrow.LEAST_PIXELS * 72 * boxes[0].width / points) if dense else None
    more = {"narrow": drawn[-1], "series": found, "pixels": pixels}
    more["figure"] = base64.b64encode(zlib.compress(kept)).decode()
    return {"image/svg+xml": drawn[0], MIME: more}


@plt.rc_context(_LOOK)
def flat(kept: str) -> str:
    """Return the figure that `versions` kept as an SVG for a slide."""
    figure = room.made_flat(pickle.loads(zlib.decompress(base64.b64decode(kept))))
    return _svg(figure, _drawn_box(figure))


def _kept(figure: Figure) -> bytes:
    """Return what makes other figures of the same artists, which pyplot does not know."""
    manager, figure.canvas.manager = figure.canvas.manager, None
    try:
        return pickle.dumps(figure)
    finally:
        figure.canvas.manager = manager


def _drawn_box(figure: Figure) -> Bbox:
    """Return the box of what a laid-out figure draws, with a margin. Units: inches."""
    return figure.get_tightbbox().padded(PADDING_INCHES)


def _svg(figure: Figure, box: Bbox) -> str:
    figure.set_layout_engine(None)  # the name "none" would leave an engine, which draws twice
    for axes in figure.findobj(Axes):
        for artist in [*axes.collections, *axes.lines]:
            artist.set_rasterized(values.n_points(artist) > MOST_VECTORS)
    file = io.StringIO()
    figure.savefig(file, format="svg", dpi=RASTER_DPI, bbox_inches=box, metadata={"Date": None})
    text = _NOTHING.sub("", file.getvalue()).replace("*{", "text{white-space:pre}*{", 1)
    text = text.replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif")
    return _ATTRIBUTE.sub(lambda found: _LONG.sub(_short, found[0]), _INDENT.sub("\n", text))


def _short(number: re.Match[str]) -> str:
    return f"{float(number[0]):.{DECIMALS}f}".rstrip("0").rstrip(".")
